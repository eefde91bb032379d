GATE_PB_SOURCES := $(addprefix daemon/gate/,check.c decode_cache.c decode_compress.c decode_envelope.c \
        decode_group.c decode_hello.c decode_policy.c decode_region.c encode.c encode_compressed.c)
PROGRAMS += chunkkv-gate
chunkkv-gate_SOURCES := $(GATE_PB_SOURCES) $(addprefix daemon/gate/,accept.c address.c budget.c connections.c link.c loop.c \
        main.c router.c sandbox.c unknown.c zap.c)
chunkkv-gate_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
chunkkv-gate_LIBS := proto ipc base
chunkkv-gate_LDLIBS := -lzmq -lprotobuf-c -lseccomp
PB_SOURCES += $(GATE_PB_SOURCES)
