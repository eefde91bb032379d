# chunkkvctl
ctl_SOURCES := tools/batch.c tools/layers.c tools/numbers.c tools/options.c tools/plan.c tools/print.c tools/private.c \
        tools/safetensors.c tools/settings.c
PROGRAMS += chunkkvctl
chunkkvctl_SOURCES := tools/chunkkvctl.c $(ctl_SOURCES)
chunkkvctl_LIBS := $(chunkkv_LIBS)
chunkkvctl_LDLIBS := $(chunkkv_LDLIBS) -lcjson
