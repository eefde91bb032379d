# Fuzz targets.  Each is a test (test_fuzz_NAME: the corpus and simple changes to it, in every build) and, in the builds
# fuzz and cover, which want clang, a program fuzz_NAME for libFuzzer.
FUZZERS := decode options safetensors channel side core repair

fuzz_decode_PARTS := $(addprefix daemon/gate/,budget.c check.c decode_cache.c decode_compress.c decode_envelope.c decode_group.c \
        decode_hello.c decode_policy.c decode_region.c link.c unknown.c)
fuzz_decode_OBJECTS := $(O)/gen/proto/chunkkv.pb-c.o
fuzz_decode_LIBS := proto ipc base
fuzz_decode_LDLIBS := -lprotobuf-c
PB_SOURCES += tests/fuzz/fuzz_decode.c
fuzz_options_PARTS := daemon/options.c daemon/access.c
fuzz_options_LIBS := proto base
fuzz_safetensors_PARTS := tools/safetensors.c tools/tokens.c tools/files.c
fuzz_safetensors_LIBS := base
fuzz_safetensors_LDLIBS := -lcjson -lm
fuzz_channel_PARTS := daemon/gate_channel.c
fuzz_channel_LIBS := ipc base
fuzz_side_PARTS := tests/fuzz/assertions.c $(SIDE_SOURCES)
fuzz_side_LIBS := proto ipc base
fuzz_side_LDLIBS := -lsystemd -lm
fuzz_core_PARTS := tests/fuzz/assertions.c tests/support_page.c $(CORE_SOURCES)
fuzz_core_LIBS := kernels proto ipc base
fuzz_core_LDLIBS := -lsystemd -lm
fuzz_repair_PARTS := $(fuzz_core_PARTS)
fuzz_repair_LIBS := $(fuzz_core_LIBS)
fuzz_repair_LDLIBS := $(fuzz_core_LDLIBS)

define fuzzer
TESTS += test_fuzz_$(1)
test_fuzz_$(1)_SOURCES := tests/fuzz/fuzz_$(1).c tests/fuzz/replay.c $$(fuzz_$(1)_PARTS)
test_fuzz_$(1)_OBJECTS := $$(fuzz_$(1)_OBJECTS)
test_fuzz_$(1)_LIBS := $$(fuzz_$(1)_LIBS)
test_fuzz_$(1)_LDLIBS := $$(fuzz_$(1)_LDLIBS)
ifneq ($(filter fuzz cover,$(BUILD)),)
PROGRAMS += fuzz_$(1)
fuzz_$(1)_SOURCES := tests/fuzz/fuzz_$(1).c $$(fuzz_$(1)_PARTS)
fuzz_$(1)_LDFLAGS := -fsanitize=fuzzer
endif
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzzer,$(f))))
