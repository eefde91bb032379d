kernels_SOURCES := kernels/policy.c kernels/budget.c kernels/units.c kernels/select.c kernels/kept.c kernels/job.c \
        kernels/reference_math.c kernels/reference_score.c kernels/reference.c kernels/reference_job.c

# The CPU device. Each instruction set has its own file and its own flags; one of them is chosen when the device opens.
kernels_SOURCES += kernels/cpu_backend.c kernels/cpu_machine.c kernels/cpu_pool.c kernels/cpu_plan.c kernels/cpu_score.c \
        kernels/cpu_fold.c kernels/cpu_move.c kernels/cpu_score_generic.c
FLAGS_kernels/cpu_score_generic := -O3 -ffp-contract=fast
ifeq ($(shell uname -m),x86_64)
kernels_SOURCES += kernels/cpu_score_avx2.c kernels/cpu_score_avx512.c
FLAGS_kernels/cpu_score_avx2 := -O3 -mavx2 -mfma -ffp-contract=fast
FLAGS_kernels/cpu_score_avx512 := -O3 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -ffp-contract=fast
endif
