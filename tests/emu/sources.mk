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
