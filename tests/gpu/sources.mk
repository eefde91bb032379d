COMMA := ,
# gpu-check, for tests/gpu_check.sh on a machine with a GPU; its own kernels, which measure, are made where there is nvcc.
TEST_PROGRAMS += gpu-check
gpu-check_SOURCES := $(addprefix tests/gpu/,main.c device.c info.c prims.c conform.c request.c peer.c ipc.c vmm.c deaths.c order.c) \
        $(addprefix tests/,support_random.c support_gap.c support_golden.c support_safetensors.c)
ifeq ($(CUDA),0)
gpu-check_SOURCES += tests/support_image.c
endif
gpu-check_OBJECTS := $(O)/tests/gpu/probes_host.o
gpu-check_LIBS := kernels base
gpu-check_LDLIBS := $(CHECK_LDLIBS) -lcjson -lstdc++
$(O)/tests/gpu/probes_host.o: tests/gpu/probes_host.cpp $(STAMP)
	@mkdir -p $(@D)
	@echo "  c++   $<"
	@$(CXX) $(EMU_FLAGS) -O2 -include tests/emu/emu.h -MMD -MP -c -o $@ $<
OBJECTS += $(O)/tests/gpu/probes_host.o

# the same for every BUILD, as the images of the product are
ifeq ($(firstword $(CUDA_FOUND)),nvcc)
build/cuda/gpu-probes.fatbin: tests/gpu/probes.cu tests/gpu/probes.cuh tests/gpu/probes.h kernels/cuda/prims.h
	@mkdir -p $(@D)
	@echo "  nvcc  $<"
	@$(wordlist 3,99,$(CUDA_FOUND)) -std=c++17 -I. -O3 -fatbin \
	    $(foreach a,80 86 89 90 100 120,-gencode arch=compute_$(a)$(COMMA)code=sm_$(a)) -gencode arch=compute_80,code=compute_80 \
	    -o $@.$(notdir $(O)) $< && mv $@.$(notdir $(O)) $@
check-programs: build/cuda/gpu-probes.fatbin
endif
