# The daemon with plans by the scalar reference, for bench/random_problems.py.
TEST_PROGRAMS += chunkkvd-reference
chunkkvd-reference_SOURCES := bench/reference_plans.c $(chunkkvd_SOURCES)
chunkkvd-reference_LIBS := $(chunkkvd_LIBS)
chunkkvd-reference_LDLIBS := $(chunkkvd_LDLIBS)
chunkkvd-reference_LDFLAGS := -Wl,--wrap=ckv__cpu_plan_new,--wrap=ckv__cpu_plan_step,--wrap=ckv__cpu_plan_free
$(O)/chunkkvd-reference: | $(O)/chunkkv-gate
# How fast the CPU device scores (make bench). The loops have the flags of the kernels that they are beside.
TEST_PROGRAMS += chunkkv-bench
chunkkv-bench_SOURCES := $(addprefix bench/,main.c measure.c cases.c problem.c lse.c device.c check.c score.c linear.c memory.c peaks.c loops.c loops_scalar.c)
chunkkv-bench_LIBS := kernels base
chunkkv-bench_LDLIBS := -lm
FLAGS_bench/loops_scalar := $(CPU_SCORE)
ifeq ($(shell uname -m),x86_64)
chunkkv-bench_SOURCES += $(addprefix bench/,loops_avx2.c loops_avx512.c loops_avx512bf16.c loops_amx.c)
FLAGS_bench/loops_avx2 := $(CPU_SCORE) -mavx2 -mfma -mf16c
FLAGS_bench/loops_avx512 := $(FLAGS_kernels/cpu_score_avx512)
FLAGS_bench/loops_avx512bf16 := $(FLAGS_kernels/cpu_score_avx512) -mavx512bf16
FLAGS_bench/loops_amx := $(CPU_AMX)
endif
# How fast rows move, against memcpy().
TEST_PROGRAMS += chunkkv-bench-move
chunkkv-bench-move_SOURCES := bench/move.c bench/measure.c
chunkkv-bench-move_LIBS := kernels base
chunkkv-bench-move_LDLIBS := -lm
# Whole requests to a daemon.
TEST_PROGRAMS += chunkkv-bench-request
chunkkv-bench-request_SOURCES := bench/request.c bench/problem.c bench/lse.c bench/cases.c
chunkkv-bench-request_LIBS := $(chunkkv_LIBS) kernels base
chunkkv-bench-request_LDLIBS := $(chunkkv_LDLIBS) -lm
# What a request costs beside its kernels, against the bare transport.
TEST_PROGRAMS += chunkkv-bench-rpc
chunkkv-bench-rpc_SOURCES := $(addprefix bench/,rpc.c echo.c wakeups.c)
chunkkv-bench-rpc_LIBS := $(chunkkv_LIBS) base
chunkkv-bench-rpc_LDLIBS := $(chunkkv_LDLIBS)
# The rules that all of these measure by.
TESTS += test_bench
test_bench_SOURCES := tests/test_bench.c $(addprefix bench/,measure.c problem.c lse.c cases.c)
test_bench_LIBS := kernels base
test_bench_LDLIBS := $(CHECK_LDLIBS)
