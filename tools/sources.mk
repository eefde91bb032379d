# chunkkvctl
ctl_SOURCES := tools/batch.c tools/code_paths.c tools/compress.c tools/explain.c tools/explain_data.c tools/explain_template.c tools/files.c tools/grid.c \
        tools/html.c tools/layers.c tools/npy.c tools/numbers.c tools/options.c tools/plan.c tools/print.c tools/private.c \
        tools/safetensors.c tools/settings.c tools/source.c tools/tokens.c
PROGRAMS += chunkkvctl
chunkkvctl_SOURCES := tools/chunkkvctl.c $(ctl_SOURCES)
chunkkvctl_LIBS := $(chunkkv_LIBS)
chunkkvctl_LDLIBS := $(chunkkv_LDLIBS) -lcjson
# the page goes into the program as it is
$(O)/tools/explain_template.o: tools/explain.html

# a CUDA engine in C, for make demo-cuda; it finds the driver by itself
TEST_PROGRAMS += compress-cuda
compress-cuda_SOURCES := examples/compress_cuda.c
compress-cuda_LIBS := $(chunkkv_LIBS)
compress-cuda_LDLIBS := $(chunkkv_LDLIBS)
FLAGS_examples/compress_cuda := -Iclients/c/include
