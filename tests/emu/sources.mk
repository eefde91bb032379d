# The kernels of the CUDA device as a library that runs them on the CPU (tests/emu/launch.h). The kernels get the sanitizer of
# the build, the scheduler below them none: it is told about in words. x86-64 only. Users link with -lstdc++.
CXX ?= g++
EMU_FLAGS := -std=c++17 -g -fPIC -fvisibility=hidden -ffp-contract=off -Wall -Wextra -Wno-unknown-pragmas $(if $(filter 1,$(WERROR)),-Werror) -I.
EMU_SANITIZER_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
EMU_SANITIZER_tsan := -fsanitize=thread -fno-omit-frame-pointer
EMU_TOLD_asan := -DEMU_ASAN
EMU_TOLD_tsan := -DEMU_TSAN
$(O)/tests/emu/kernels.o: tests/emu/kernels.cpp $(STAMP)
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(CXX) $(EMU_FLAGS) -O2 $(EMU_SANITIZER_$(BUILD)) -include tests/emu/emu.h -MMD -MP -c -o $@ $<

$(O)/tests/emu/runtime.o: tests/emu/runtime.cpp $(STAMP)
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(CXX) $(EMU_FLAGS) -O2 $(EMU_TOLD_$(BUILD)) -MMD -MP -c -o $@ $<

$(O)/libemu.a: $(O)/tests/emu/kernels.o $(O)/tests/emu/runtime.o
	@echo "  ar    $@"
	@rm -f $@ && $(AR) rcs $@ $^

OBJECTS += $(O)/tests/emu/kernels.o $(O)/tests/emu/runtime.o

# The kernels with mistakes planted in them, in builds with each sanitizer beside one another; the rest of the test is that of
# this build, which must have none of its own.
PLANTED := $(O)/planted
EMU_CHECK := $(foreach k,plain asan tsan,$(PLANTED)/$(k)-test_emu_kernels)
EMU_LINK_asan := -fsanitize=address,undefined
EMU_LINK_tsan := -fsanitize=thread
$(PLANTED)/planted.cpp: tests/emu/plant.py tests/emu/planted.txt $(wildcard kernels/cuda/*.cuh)
	@echo "  plant $@"
	@tests/emu/plant.py write $(PLANTED)
define planted
$(PLANTED)/$(1)-kernels.o: $(PLANTED)/planted.cpp tests/emu/kernels.cpp $$(wildcard kernels/cuda/*.h kernels/cuda/*.def tests/emu/*.h) $$(STAMP)
	@echo "  c++   $$@"
	@$$(CXX) -I$(PLANTED) $$(filter-out -Wall -Wextra -Werror,$$(EMU_FLAGS)) -O2 $$(EMU_SANITIZER_$(1)) -include tests/emu/emu.h -c -o $$@ $$<
$(PLANTED)/$(1)-runtime.o: tests/emu/runtime.cpp $$(wildcard tests/emu/*.h) $$(STAMP)
	@mkdir -p $$(@D)
	@echo "  c++   $$@"
	@$$(CXX) $$(EMU_FLAGS) -O2 $$(EMU_TOLD_$(1)) -c -o $$@ $$<
$(PLANTED)/$(1)-test_emu_kernels: $$(patsubst %.c,$(O)/%.o,$$(test_emu_kernels_SOURCES)) $(O)/libkernels.a $(O)/libbase.a \
                $(PLANTED)/$(1)-kernels.o $(PLANTED)/$(1)-runtime.o
	@echo "  link  $$@"
	@$$(CC) $$(CKV_LDFLAGS) $$(EMU_LINK_$(1)) -o $$@ $$^ $$(test_emu_kernels_LDLIBS)
endef
$(foreach k,plain asan tsan,$(eval $(call planted,$(k))))
.PHONY: check-emu
check-emu: $(EMU_CHECK)
	@tests/emu/plant.py check $(PLANTED)
