# Unit tests, one program each, with Debian's check.
CHECK_LDLIBS := -lcheck -lsubunit -lm -lrt

# ipc, proto and the gate
TESTS += test_ring test_seqpacket test_status test_runs
test_ring_SOURCES := tests/test_ring.c
test_ring_LIBS := ipc base
test_ring_LDLIBS := $(CHECK_LDLIBS)
test_seqpacket_SOURCES := tests/test_seqpacket.c
test_seqpacket_LIBS := ipc base
test_seqpacket_LDLIBS := $(CHECK_LDLIBS)
test_status_SOURCES := tests/test_status.c
test_status_LIBS := proto base
test_status_LDLIBS := $(CHECK_LDLIBS)
test_runs_SOURCES := tests/test_runs.c
test_runs_LIBS := proto base
test_runs_LDLIBS := $(CHECK_LDLIBS)

# the scalar reference and the selection
TESTS += test_policy test_select test_reference_math test_reference test_compact test_batches test_steps test_steps_kill test_golden
test_policy_SOURCES := tests/test_policy.c
test_policy_LIBS := kernels base
test_policy_LDLIBS := $(CHECK_LDLIBS)
test_select_SOURCES := tests/test_select.c tests/support_stage.c
test_select_LIBS := kernels base
test_select_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_select_entropy test_select_family test_sets test_sets_random
test_select_entropy_SOURCES := tests/test_select_entropy.c tests/support_stage.c
test_select_entropy_LIBS := kernels base
test_select_entropy_LDLIBS := $(CHECK_LDLIBS)
test_select_family_SOURCES := tests/test_select_family.c tests/support_stage.c
test_select_family_LIBS := kernels base
test_select_family_LDLIBS := $(CHECK_LDLIBS)
test_sets_SOURCES := tests/test_sets.c tests/support_subject.c tests/support_random.c tests/support_gap.c
test_sets_LIBS := kernels base
test_sets_LDLIBS := $(CHECK_LDLIBS)
test_sets_random_SOURCES := tests/test_sets_random.c tests/support_subject.c tests/support_random.c tests/support_gap.c
test_sets_random_LIBS := kernels base
test_sets_random_LDLIBS := $(CHECK_LDLIBS)
test_reference_math_SOURCES := tests/test_reference_math.c
test_reference_math_LIBS := kernels base
test_reference_math_LDLIBS := $(CHECK_LDLIBS)
test_reference_SOURCES := tests/test_reference.c tests/support_model.c
test_reference_LIBS := kernels base
test_reference_LDLIBS := $(CHECK_LDLIBS)
test_compact_SOURCES := tests/test_compact.c tests/support_moves.c
test_compact_LIBS := kernels base
test_compact_LDLIBS := $(CHECK_LDLIBS)
test_batches_SOURCES := tests/test_batches.c tests/support_moves.c
test_batches_LIBS := kernels base
test_batches_LDLIBS := $(CHECK_LDLIBS)
test_steps_SOURCES := tests/test_steps.c tests/support_moves.c
test_steps_LIBS := kernels base
test_steps_LDLIBS := $(CHECK_LDLIBS)
test_steps_kill_SOURCES := tests/test_steps_kill.c tests/support_moves.c
test_steps_kill_LIBS := kernels base
test_steps_kill_LDLIBS := $(CHECK_LDLIBS)
test_golden_SOURCES := tests/test_golden.c tests/support_golden.c tests/support_safetensors.c
test_golden_LIBS := kernels base
test_golden_LDLIBS := $(CHECK_LDLIBS) -lcjson

TESTS += test_extent test_overlap test_window
test_overlap_SOURCES := tests/test_overlap.c daemon/overlap.c daemon/extent.c
test_overlap_LIBS := base
test_overlap_LDLIBS := $(CHECK_LDLIBS)
test_extent_SOURCES := tests/test_extent.c daemon/extent.c
test_extent_LIBS := base
test_extent_LDLIBS := $(CHECK_LDLIBS)
test_window_SOURCES := tests/test_window.c daemon/window.c daemon/tenant.c daemon/share.c daemon/breach.c daemon/loop_thread.c
test_window_LIBS := base
test_window_LDLIBS := $(CHECK_LDLIBS) -lsystemd

# the CPU backend, and the suite that every backend passes
TESTS += test_cpu_score test_cpu_scheme test_cpu_parts test_backend_cpu test_conformance
test_cpu_parts_SOURCES := tests/test_cpu_parts.c tests/support_random.c
test_cpu_parts_LIBS := kernels base
test_cpu_parts_LDLIBS := $(CHECK_LDLIBS)
test_cpu_scheme_SOURCES := tests/test_cpu_scheme.c tests/support_random.c tests/support_paths.c
test_cpu_scheme_LIBS := kernels base
test_cpu_scheme_LDLIBS := $(CHECK_LDLIBS)
test_cpu_score_SOURCES := tests/test_cpu_score.c tests/support_random.c tests/support_endless.c tests/support_paths.c
test_cpu_score_LIBS := kernels base
test_cpu_score_LDLIBS := $(CHECK_LDLIBS)
test_backend_cpu_SOURCES := tests/test_backend_cpu.c tests/support_random.c tests/support_endless.c tests/support_paths.c
test_backend_cpu_LIBS := kernels base
test_backend_cpu_LDLIBS := $(CHECK_LDLIBS)
test_conformance_SOURCES := tests/test_conformance.c tests/support_subject.c tests/support_random.c tests/support_gap.c \
        tests/support_golden.c tests/support_safetensors.c
test_conformance_LIBS := kernels base
test_conformance_LDLIBS := $(CHECK_LDLIBS) -lcjson
TESTS += test_cpu_copy
test_cpu_copy_SOURCES := tests/test_cpu_copy.c
test_cpu_copy_LIBS := kernels base
test_cpu_copy_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_conformance_scores
test_conformance_scores_SOURCES := tests/test_conformance_scores.c tests/support_subject.c tests/support_random.c \
        tests/support_gap.c
test_conformance_scores_LIBS := kernels base
test_conformance_scores_LDLIBS := $(CHECK_LDLIBS)

# the window kernels by themselves; that of AMX with its tile instructions in software
ifeq ($(shell uname -m),x86_64)
TESTS += test_cpu_amx test_cpu_window
test_cpu_window_SOURCES := tests/test_cpu_window.c tests/support_window.c
test_cpu_window_LIBS := kernels base
test_cpu_window_LDLIBS := $(CHECK_LDLIBS)
test_cpu_amx_SOURCES := tests/test_cpu_amx.c tests/support_window.c tests/support_amx_software.c
test_cpu_amx_LIBS := kernels base
test_cpu_amx_LDLIBS := $(CHECK_LDLIBS)
FLAGS_tests/support_amx_software := $(CPU_AMX)
TESTS += test_cpu_choice
test_cpu_choice_SOURCES := tests/test_cpu_choice.c tests/support_amx_software.c
test_cpu_choice_LIBS := kernels proto base
test_cpu_choice_LDLIBS := $(CHECK_LDLIBS)

TESTS += test_cpu_contest
test_cpu_contest_SOURCES := tests/test_cpu_contest.c
test_cpu_contest_LIBS := kernels base
test_cpu_contest_LDLIBS := $(CHECK_LDLIBS)
endif

# base, sockets and the process half of the core
TESTS += test_base test_memfd test_listen test_guard
test_guard_SOURCES := tests/test_guard.c tests/support_files.c
test_guard_LIBS := base
test_guard_LDLIBS := $(CHECK_LDLIBS)
test_base_SOURCES := tests/test_base.c
test_base_LIBS := base
test_base_LDLIBS := $(CHECK_LDLIBS)
test_memfd_SOURCES := tests/test_memfd.c tests/support_files.c
test_memfd_LIBS := ipc base
test_memfd_LDLIBS := $(CHECK_LDLIBS)
test_listen_SOURCES := tests/test_listen.c tests/support_files.c
test_listen_LIBS := ipc base
test_listen_LDLIBS := $(CHECK_LDLIBS)

# the gate as a process; the program lies beside the test
TESTS += test_gate
test_gate_SOURCES := tests/test_gate.c tests/support_gate.c
test_gate_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
test_gate_LIBS := ipc base
test_gate_LDLIBS := $(CHECK_LDLIBS) -lzmq -lprotobuf-c
PB_SOURCES += $(test_gate_SOURCES)
$(O)/test_gate: | $(O)/chunkkv-gate

# the gate's parts, without a process
TESTS += test_gate_parts test_gate_decode test_gate_refusals test_gate_encode
test_gate_parts_SOURCES := tests/test_gate_parts.c $(addprefix daemon/gate/,address.c budget.c connections.c link.c)
test_gate_parts_LIBS := ipc base
test_gate_parts_LDLIBS := $(CHECK_LDLIBS)
GATE_DECODER_SOURCES := tests/support_requests.c $(addprefix daemon/gate/,budget.c check.c decode_cache.c decode_compress.c \
        decode_envelope.c decode_group.c decode_hello.c decode_policy.c decode_region.c link.c unknown.c)
test_gate_decode_SOURCES := tests/test_gate_decode.c $(GATE_DECODER_SOURCES)
test_gate_decode_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
test_gate_decode_LIBS := proto ipc base
test_gate_decode_LDLIBS := $(CHECK_LDLIBS) -lprotobuf-c
test_gate_refusals_SOURCES := tests/test_gate_refusals.c $(GATE_DECODER_SOURCES)
test_gate_refusals_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
test_gate_refusals_LIBS := proto ipc base
test_gate_refusals_LDLIBS := $(CHECK_LDLIBS) -lprotobuf-c
test_gate_encode_SOURCES := tests/test_gate_encode.c daemon/gate/encode.c daemon/gate/encode_compressed.c
test_gate_encode_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
test_gate_encode_LIBS := proto base
test_gate_encode_LDLIBS := $(CHECK_LDLIBS) -lprotobuf-c
PB_SOURCES += tests/test_gate_decode.c tests/test_gate_refusals.c tests/test_gate_encode.c tests/support_requests.c
TESTS += test_options test_runtime
test_options_SOURCES := tests/test_options.c daemon/options.c daemon/access.c
test_options_LIBS := proto base
test_options_LDLIBS := $(CHECK_LDLIBS)
test_runtime_SOURCES := tests/test_runtime.c tests/support_files.c daemon/memory_limit.c daemon/runtime_dir.c
test_runtime_LIBS := base
test_runtime_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_gate_channel test_gate_link
test_gate_channel_SOURCES := tests/test_gate_channel.c tests/support_files.c daemon/gate_channel.c
test_gate_channel_LIBS := ipc base
test_gate_channel_LDLIBS := $(CHECK_LDLIBS)
test_gate_link_SOURCES := tests/test_gate_link.c tests/support_files.c daemon/gate_link.c daemon/gate_channel.c daemon/gate_spawn.c daemon/gate_stats.c \
        daemon/loop_thread.c daemon/options.c daemon/access.c
test_gate_link_LIBS := proto ipc base
test_gate_link_LDLIBS := $(CHECK_LDLIBS) -lsystemd

# the C client against a private daemon, and chunkkvctl up to the point where it needs one
TESTS += test_client_c test_client_faults test_ctl test_ctl_files test_explain
test_client_c_SOURCES := tests/test_client_c.c tests/support_client.c tools/private.c
test_client_c_LIBS := $(chunkkv_LIBS)
test_client_c_LDLIBS := $(chunkkv_LDLIBS) $(CHECK_LDLIBS)
test_client_faults_SOURCES := tests/test_client_faults.c tests/support_client.c tools/private.c
test_client_faults_LIBS := $(chunkkv_LIBS)
test_client_faults_LDLIBS := $(chunkkv_LDLIBS) $(CHECK_LDLIBS)
test_ctl_SOURCES := tests/test_ctl.c $(ctl_SOURCES)
test_ctl_LIBS := $(chunkkv_LIBS)
test_ctl_LDLIBS := $(chunkkv_LDLIBS) -lcjson $(CHECK_LDLIBS)
test_ctl_files_SOURCES := tests/test_ctl_files.c $(ctl_SOURCES)
test_ctl_files_LIBS := $(chunkkv_LIBS)
test_ctl_files_LDLIBS := $(chunkkv_LDLIBS) -lcjson $(CHECK_LDLIBS)
test_explain_SOURCES := tests/test_explain.c $(ctl_SOURCES)
test_explain_LIBS := $(chunkkv_LIBS)
test_explain_LDLIBS := $(chunkkv_LDLIBS) -lcjson $(CHECK_LDLIBS)
$(O)/test_client_c $(O)/test_client_faults: | $(O)/chunkkvd $(O)/chunkkv-gate
TESTS += test_side
SIDE_SOURCES := tests/support_files.c $(addprefix daemon/,side.c side_accept.c side_offer.c control.c tenant.c share.c breach.c \
        loop_thread.c closer.c access.c options.c)
test_side_SOURCES := tests/test_side.c $(SIDE_SOURCES)
test_side_LIBS := proto ipc base
test_side_LDLIBS := $(CHECK_LDLIBS) -lsystemd
TESTS += test_daemon_process
test_daemon_process_SOURCES := tests/test_daemon_process.c tests/support_daemon.c tests/support_files.c
test_daemon_process_LIBS := ipc base
test_daemon_process_LDLIBS := $(CHECK_LDLIBS)

# what the daemon does for its service manager
TESTS += test_service
test_service_SOURCES := tests/test_service.c tests/support_files.c daemon/watchdog.c daemon/reload.c daemon/memory_limit.c \
        daemon/tenant.c daemon/share.c daemon/breach.c daemon/loop_thread.c
test_service_LIBS := base
test_service_LDLIBS := $(CHECK_LDLIBS) -lsystemd

# admission and answers of the core, without a process
TESTS += test_reply_bounds
CORE_SOURCES := tests/support_core.c $(addprefix daemon/,admit.c admit_fault.c admit_floats.c admit_given.c admit_lists.c admit_parts.c admit_policy.c admit_timeline.c timeline.c \
        admit_queries.c admit_reply.c admit_table.c answer.c answer_compressed.c answer_sets.c \
        overlap.c alias.c outputs.c cache.c extent.c loop_thread.c options.c region.c request.c tenant.c share.c breach.c access.c closer.c mapped.c imported.c imported_status.c shm_name.c window.c \
        commit.c control.c hold.c outcome.c repair.c repair_slot.c slot.c)
test_reply_bounds_SOURCES := tests/test_reply_bounds.c tests/support_random.c daemon/gate/encode.c daemon/gate/encode_compressed.c \
        $(CORE_SOURCES)
test_reply_bounds_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
test_reply_bounds_LIBS := kernels proto ipc base
test_reply_bounds_LDLIBS := $(CHECK_LDLIBS) -lsystemd -lprotobuf-c
CORE_TESTS := test_admit test_admit_policies test_admit_tables test_admit_queries test_cache test_request
TESTS += $(CORE_TESTS)
define core_test
$(1)_SOURCES := tests/$(1).c tests/support_random.c $$(CORE_SOURCES)
$(1)_LIBS := kernels proto ipc base
$(1)_LDLIBS := $$(CHECK_LDLIBS) -lsystemd
endef
$(foreach t,$(CORE_TESTS),$(eval $(call core_test,$(t))))

# charges, shares between users, and what is said of them
TESTS += test_tenant
test_tenant_SOURCES := tests/test_tenant.c $(addprefix daemon/,tenant.c share.c breach.c access.c device_time.c loop_thread.c options.c)
test_tenant_LIBS := proto base
test_tenant_LDLIBS := $(CHECK_LDLIBS) -lsystemd

# closing away from the loop
TESTS += test_closer
test_closer_SOURCES := tests/test_closer.c $(addprefix daemon/,closer.c tenant.c share.c breach.c access.c loop_thread.c options.c)
test_closer_LIBS := proto ipc base
test_closer_LDLIBS := $(CHECK_LDLIBS) -lsystemd

# turns between keys, by device time
TESTS += test_turns
test_turns_SOURCES := tests/test_turns.c tests/support_endless.c
test_turns_LIBS := kernels base
test_turns_LDLIBS := $(CHECK_LDLIBS)

# the scorers, by hand and on random caches
TESTS += test_scorers test_scorers_random
test_scorers_SOURCES := tests/test_scorers.c tests/support_paths.c
test_scorers_LIBS := kernels base
test_scorers_LDLIBS := $(CHECK_LDLIBS)
test_scorers_random_SOURCES := tests/test_scorers_random.c tests/support_random.c tests/support_paths.c
test_scorers_random_LIBS := kernels base
test_scorers_random_LDLIBS := $(CHECK_LDLIBS)

# the sandboxes of both processes; a gate that was taken over, for the Python tests
TESTS += test_sandbox
test_sandbox_SOURCES := tests/test_sandbox.c tests/support_files.c daemon/sandbox.c daemon/gate/sandbox.c
test_sandbox_LIBS := ipc base
test_sandbox_LDLIBS := $(CHECK_LDLIBS) -lseccomp
TEST_PROGRAMS += hostile_gate
hostile_gate_SOURCES := tests/hostile_gate.c
hostile_gate_LIBS := ipc base
TESTS += test_gate_accept
test_gate_accept_SOURCES := tests/test_gate_accept.c tests/support_gate.c
test_gate_accept_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
test_gate_accept_LIBS := ipc base
test_gate_accept_LDLIBS := $(CHECK_LDLIBS) -lzmq -lprotobuf-c
PB_SOURCES += $(test_gate_accept_SOURCES)
$(O)/test_gate_accept: | $(O)/chunkkv-gate

# requests with a control slot, hold, Repair
CONTROL_TESTS := test_control test_repair
TESTS += $(CONTROL_TESTS)
define control_test
$(1)_SOURCES := tests/$(1).c tests/support_page.c $$(CORE_SOURCES)
$(1)_LIBS := kernels proto ipc base
$(1)_LDLIBS := $$(CHECK_LDLIBS) -lsystemd
endef
$(foreach t,$(CONTROL_TESTS),$(eval $(call control_test,$(t))))

# calls of the C library that fail, preloaded into daemons of the Python tests (tests/python/faults.py)
$(O)/fault.so: tests/fault.c $(STAMP)
	@mkdir -p $(@D)
	@echo "  cc    $<"
	@$(CC) $(filter-out -Wpedantic -fvisibility=hidden -fsanitize=%,$(CKV_CFLAGS)) -Wno-pedantic -shared -o $@ $<

# the n-th allocation fails: of the core's requests, and of kernels, gate and options
WRAPPED := $(foreach f,malloc calloc realloc reallocarray aligned_alloc strdup asprintf __asprintf_chk,-Wl,--wrap=$(f))
TESTS += test_alloc_core test_alloc_parts
test_alloc_core_SOURCES := tests/test_alloc_core.c tests/support_alloc.c tests/support_page.c $(CORE_SOURCES)
test_alloc_core_LIBS := kernels proto ipc base
test_alloc_core_LDFLAGS := $(WRAPPED)
test_alloc_core_LDLIBS := $(CHECK_LDLIBS) -lsystemd
test_alloc_parts_SOURCES := tests/test_alloc_parts.c tests/support_alloc.c tests/support_random.c $(GATE_DECODER_SOURCES) \
        daemon/gate/encode.c daemon/gate/encode_compressed.c
test_alloc_parts_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
test_alloc_parts_LIBS := kernels proto ipc base
test_alloc_parts_LDFLAGS := $(WRAPPED)
test_alloc_parts_LDLIBS := $(CHECK_LDLIBS) -lprotobuf-c
TESTS += test_alloc_client
test_alloc_client_SOURCES := tests/test_alloc_client.c tests/support_alloc.c tests/support_client.c tools/private.c
test_alloc_client_LIBS := $(chunkkv_LIBS)
test_alloc_client_LDFLAGS := $(WRAPPED)
test_alloc_client_LDLIBS := $(chunkkv_LDLIBS) $(CHECK_LDLIBS)
$(O)/test_alloc_client: | $(O)/chunkkvd $(O)/chunkkv-gate
PB_SOURCES += tests/test_alloc_parts.c

# the stand-in for the CUDA driver; in a folder of its own, so that nobody finds it by accident
FAKE_CUDA_SOURCES := $(addprefix tests/fake/,faults.c device.c memory.c vmm.c stream.c module.c)
FAKE_CUDA_OBJECTS := $(patsubst %.c,$(O)/%.o,$(FAKE_CUDA_SOURCES))
OBJECTS += $(FAKE_CUDA_OBJECTS)
$(O)/fake/libcuda.so.1: $(FAKE_CUDA_OBJECTS) $(O)/libemu.a
	@mkdir -p $(@D)
	@echo "  link  $@"
	@$(CC) $(CKV_LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -lstdc++
TESTS += test_fake_cuda test_client_export
test_client_export_SOURCES := tests/test_client_export.c tests/support_fake.c
test_client_export_LIBS := kernels $(chunkkv_LIBS) base
test_client_export_LDLIBS := $(chunkkv_LDLIBS) $(CHECK_LDLIBS)
test_fake_cuda_SOURCES := tests/test_fake_cuda.c tests/support_fake.c
test_fake_cuda_LIBS := kernels base
test_fake_cuda_LDLIBS := $(CHECK_LDLIBS)
$(O)/test_fake_cuda $(O)/test_client_export: | $(O)/fake/libcuda.so.1

# the CUDA kernels in the emulator of tests/emu
TESTS += test_emu_kernels
test_emu_kernels_SOURCES := tests/test_emu_kernels.c tests/emu_sums.c tests/support_emu.c tests/support_random.c tests/support_gap.c
test_emu_kernels_LIBS := kernels base emu
test_emu_kernels_LDLIBS := $(CHECK_LDLIBS) -lstdc++

# images for GPUs: which one is taken; and the daemon with images for the stand-in driver in place of those of the build
TESTS += test_cuda_image
test_cuda_image_SOURCES := tests/test_cuda_image.c
test_cuda_image_LIBS := kernels base
test_cuda_image_LDLIBS := $(CHECK_LDLIBS)
TEST_PROGRAMS += chunkkvd-standin
chunkkvd-standin_SOURCES := tests/support_image.c $(chunkkvd_SOURCES)
chunkkvd-standin_LIBS := $(chunkkvd_LIBS)
chunkkvd-standin_LDLIBS := $(chunkkvd_LDLIBS)
$(O)/chunkkvd-standin: | $(O)/chunkkv-gate $(O)/fake/libcuda.so.1

# the C client beside a daemon whose device fails
TESTS += test_cuda_client
test_cuda_client_SOURCES := tests/test_cuda_client.c tests/support_fake.c tests/support_files.c
test_cuda_client_LIBS := kernels $(chunkkv_LIBS) base
test_cuda_client_LDLIBS := $(chunkkv_LDLIBS) $(CHECK_LDLIBS)
$(O)/test_cuda_client: | $(O)/chunkkvd-standin

# device memory of other processes
TESTS += test_cuda_memory test_cuda_pieces
test_cuda_memory_SOURCES := tests/test_cuda_memory.c tests/support_imports.c tests/support_fake.c
test_cuda_memory_LIBS := kernels base
test_cuda_memory_LDLIBS := $(CHECK_LDLIBS)
test_cuda_pieces_SOURCES := tests/test_cuda_pieces.c tests/support_imports.c tests/support_fake.c
test_cuda_pieces_LIBS := kernels base
test_cuda_pieces_LDLIBS := $(CHECK_LDLIBS)
$(O)/test_cuda_memory $(O)/test_cuda_pieces: | $(O)/fake/libcuda.so.1

# the CUDA backend on the stand-in driver
TESTS += test_cuda_backend
test_cuda_backend_SOURCES := tests/support_image.c tests/test_cuda_backend.c tests/support_fake.c tests/support_subject.c \
        tests/support_random.c tests/support_gap.c
test_cuda_backend_LIBS := kernels base
test_cuda_backend_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_cuda_faults
test_cuda_faults_SOURCES := tests/support_image.c tests/test_cuda_faults.c tests/support_fake.c tests/support_subject.c \
        tests/support_random.c tests/support_gap.c
test_cuda_faults_LIBS := kernels base
test_cuda_faults_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_cuda_scores
test_cuda_scores_SOURCES := tests/support_image.c tests/test_cuda_scores.c tests/support_fake.c tests/support_subject.c \
        tests/support_random.c tests/support_gap.c
test_cuda_scores_LIBS := kernels base
test_cuda_scores_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_cuda_scheme
test_cuda_scheme_SOURCES := tests/test_cuda_scheme.c tests/support_random.c
test_cuda_scheme_LIBS := kernels base
test_cuda_scheme_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_cuda_golden
test_cuda_golden_SOURCES := tests/support_image.c tests/test_cuda_golden.c tests/support_fake.c tests/support_subject.c \
        tests/support_random.c tests/support_gap.c tests/support_golden.c tests/support_safetensors.c
test_cuda_golden_LIBS := kernels base
test_cuda_golden_LDLIBS := $(CHECK_LDLIBS) -lcjson
TESTS += test_cuda_alloc
test_cuda_alloc_SOURCES := tests/support_image.c tests/test_cuda_alloc.c tests/support_fake.c tests/support_alloc.c tests/support_random.c
test_cuda_alloc_LIBS := kernels base
test_cuda_alloc_LDFLAGS := $(WRAPPED)
test_cuda_alloc_LDLIBS := $(CHECK_LDLIBS)
$(O)/test_cuda_backend $(O)/test_cuda_faults $(O)/test_cuda_scores $(O)/test_cuda_golden $(O)/test_cuda_alloc: | $(O)/fake/libcuda.so.1

# what the CPU device sees of the machine, and work near its memory
TESTS += test_cpu_nodes test_cpu_near
test_cpu_nodes_SOURCES := tests/test_cpu_nodes.c tests/support_machine.c tests/support_files.c
test_cpu_nodes_LIBS := kernels base
test_cpu_nodes_LDLIBS := $(CHECK_LDLIBS)
test_cpu_near_SOURCES := tests/test_cpu_near.c tests/support_machine.c tests/support_files.c tests/support_random.c tests/support_paths.c
test_cpu_near_LIBS := kernels base
test_cpu_near_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_bell
test_bell_SOURCES := tests/test_bell.c tests/support_endless.c
test_bell_LIBS := kernels base
test_bell_LDFLAGS := -Wl,--wrap=write
test_bell_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_job_queue
test_job_queue_SOURCES := tests/test_job_queue.c
test_job_queue_LIBS := kernels base
test_job_queue_LDFLAGS := -Wl,--wrap=write -Wl,--wrap=read
test_job_queue_LDLIBS := $(CHECK_LDLIBS)
TESTS += test_cpu_scratch
test_cpu_scratch_SOURCES := tests/test_cpu_scratch.c tests/support_random.c tests/support_paths.c
test_cpu_scratch_LIBS := kernels base
test_cpu_scratch_LDLIBS := $(CHECK_LDLIBS)
