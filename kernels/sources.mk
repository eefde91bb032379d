kernels_SOURCES := kernels/policy.c kernels/policy_rules.c kernels/budget.c kernels/units.c kernels/select.c kernels/select_entropy.c kernels/kept.c kernels/sets.c kernels/steps.c \
        kernels/job.c kernels/mirror.c kernels/scores.c kernels/reference_math.c kernels/reference_score.c kernels/reference_block.c \
        kernels/reference_drop.c kernels/reference_keys.c kernels/reference.c kernels/reference_job.c \
        kernels/reference_move.c

# Between the event loop and a device's thread, whatever the device.
kernels_SOURCES += kernels/bell.c kernels/turns.c kernels/job_queue.c kernels/planner.c kernels/together.c

# The CPU device. Each instruction set has its own file and its own flags; one of them is chosen when the device opens.
kernels_SOURCES += kernels/cpu_backend.c kernels/cpu_machine.c kernels/cpu_nodes.c kernels/cpu_scratch.c kernels/cpu_pool.c kernels/cpu_plan.c kernels/cpu_score.c kernels/cpu_attention.c kernels/cpu_attention_work.c kernels/cpu_window_work.c kernels/cpu_scheme.c kernels/cpu_parts.c kernels/cpu_keys.c kernels/cpu_drop.c \
        kernels/cpu_fold.c kernels/cpu_move.c kernels/cpu_copy.c kernels/cpu_score_scalar.c \
        kernels/cpu_choice.c kernels/cpu_choice_text.c kernels/cpu_contest.c kernels/cpu_paths.c kernels/cpu_trial.c
# gcc's fake stack frames are not aligned for vectors, so these files keep their frames on the real stack
CPU_SCORE := -O3 -ffp-contract=fast $(if $(filter asan,$(BUILD)),--param asan-use-after-return=0)
FLAGS_kernels/cpu_score_scalar := $(CPU_SCORE)
# its loops are plain sums over rows: vectors, and no other rounding
FLAGS_kernels/cpu_fold := -O3
FLAGS_kernels/cpu_parts := -O3
ifeq ($(shell uname -m),x86_64)
kernels_SOURCES += kernels/cpu_score_avx2.c kernels/cpu_score_avx512.c
FLAGS_kernels/cpu_score_avx2 := $(CPU_SCORE) -mavx2 -mfma
FLAGS_kernels/cpu_score_avx512 := $(CPU_SCORE) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
kernels_SOURCES += kernels/cpu_window_avx2.c kernels/cpu_window_avx512.c kernels/cpu_window_avx512bf16.c
FLAGS_kernels/cpu_window_avx2 := $(CPU_SCORE) -mavx2 -mfma -mf16c
FLAGS_kernels/cpu_window_avx512 := $(CPU_SCORE) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
FLAGS_kernels/cpu_window_avx512bf16 := $(FLAGS_kernels/cpu_window_avx512) -mavx512bf16
# the tile instructions are assembly: the compiler needs no flag for them
kernels_SOURCES += kernels/cpu_window_amx.c
CPU_AMX := $(CPU_SCORE) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma
# its templates are long: with a check in line for each load and store they take the compiler a minute
ifeq ($(BUILD),asan)
CPU_AMX += -O2 -g1 -fno-var-tracking -fno-sanitize=undefined --param asan-instrumentation-with-call-threshold=0
else ifeq ($(BUILD),fuzz)
CPU_AMX += -O2 -fno-sanitize=undefined -mllvm -asan-instrumentation-with-call-threshold=0
endif
FLAGS_kernels/cpu_window_amx := $(CPU_AMX)
kernels_SOURCES += kernels/cpu_copy_avx.c
FLAGS_kernels/cpu_copy_avx := -mavx
endif

# The CUDA device: the driver as a table that is looked up at run time, so nothing of it is needed to build or to start.
kernels_SOURCES += kernels/cuda_api.c kernels/cuda_image.c
kernels_SOURCES += kernels/cuda_memory.c
include kernels/cuda/images.mk
kernels_SOURCES += kernels/cuda_backend.c kernels/cuda_device.c kernels/cuda_stream.c kernels/cuda_shape.c kernels/cuda_layers.c \
        kernels/cuda_score.c kernels/cuda_launches.c kernels/cuda_scheme.c kernels/cuda_select.c kernels/cuda_plan.c kernels/cuda_load.c \
        kernels/cuda_move.c
