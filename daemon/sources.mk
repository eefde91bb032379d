# chunkkvd: the process, its sockets and gates
chunkkvd_PROCESS := daemon/main.c daemon/sandbox.c daemon/options.c daemon/runtime_dir.c daemon/endpoints.c daemon/memory_limit.c daemon/reload.c daemon/watchdog.c daemon/lifecycle.c \
        daemon/gate_link.c daemon/gate_channel.c daemon/gate_spawn.c daemon/gate_stats.c daemon/side.c daemon/side_accept.c daemon/side_offer.c daemon/control.c \
        daemon/loop_thread.c
# chunkkvd: tenants, sessions, requests
chunkkvd_CORE := daemon/tenant.c daemon/share.c daemon/breach.c daemon/access.c daemon/device_time.c daemon/timeline.c daemon/closer.c daemon/mapped.c daemon/imported.c daemon/imported_status.c daemon/device.c daemon/session.c daemon/region.c daemon/shm_name.c daemon/extent.c daemon/overlap.c daemon/alias.c daemon/outputs.c daemon/cache.c daemon/window.c \
        daemon/dispatch.c daemon/request.c daemon/engine.c daemon/admit.c daemon/admit_table.c daemon/admit_policy.c \
        daemon/admit_parts.c daemon/admit_fault.c daemon/admit_lists.c daemon/admit_queries.c daemon/admit_floats.c daemon/admit_given.c daemon/admit_reply.c daemon/admit_timeline.c \
        daemon/answer.c daemon/answer_compressed.c daemon/answer_sets.c

# chunkkvd: from selection to the end, and the control page
chunkkvd_CORE += daemon/commit.c daemon/outcome.c daemon/hold.c daemon/slot.c \
        daemon/repair.c daemon/repair_slot.c

PROGRAMS += chunkkvd
chunkkvd_SOURCES := $(chunkkvd_PROCESS) $(chunkkvd_CORE)
chunkkvd_LIBS := kernels proto ipc base
chunkkvd_LDLIBS := -lsystemd -lm -lseccomp
