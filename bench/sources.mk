# The daemon with plans by the scalar reference, for bench/random_problems.py.
TEST_PROGRAMS += chunkkvd-reference
chunkkvd-reference_SOURCES := bench/reference_plans.c $(chunkkvd_SOURCES)
chunkkvd-reference_LIBS := $(chunkkvd_LIBS)
chunkkvd-reference_LDLIBS := $(chunkkvd_LDLIBS)
chunkkvd-reference_LDFLAGS := -Wl,--wrap=ckv__cpu_plan_new,--wrap=ckv__cpu_plan_step,--wrap=ckv__cpu_plan_free
$(O)/chunkkvd-reference: | $(O)/chunkkv-gate
