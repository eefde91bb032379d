# libchunkkv: the client library, and the generated messages inside its archive
chunkkv_SOURCES := clients/c/src/arena.c clients/c/src/cache.c clients/c/src/client.c clients/c/src/compress.c \
        clients/c/src/enums.c clients/c/src/error.c clients/c/src/exchange.c clients/c/src/job.c clients/c/src/memory.c \
        clients/c/src/policy.c clients/c/src/result.c clients/c/src/side.c clients/c/src/status.c \
        gen/proto/chunkkv.pb-c.c
# what a program that uses it links: our archives, then Debian's libraries
chunkkv_LIBS := chunkkv proto base
chunkkv_LDLIBS := -lzmq -lprotobuf-c
EXTRA_LIBRARIES += chunkkv
PB_SOURCES += $(filter clients/c/src/%,$(chunkkv_SOURCES))
