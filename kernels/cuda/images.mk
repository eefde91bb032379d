# Images of the CUDA kernels, embedded into libkernels.a.
#
#   CUDA=0                none
#   CUDA=1                by a compiler that is here, or the build stops
#   CUDA_COMPILER=nvcc    a fat binary, for drivers of series 580 and newer with nvcc 13
#   CUDA_COMPILER=nvrtc   images side by side, for drivers of series 525 and newer
#
# With CUDA unset it is 1 where tools/cuda-compiler finds a compiler.  What was chosen is said by `make all`.  The images
# lie in build/cuda, since they are the same for every BUILD.
CUDA_WANTED := $(if $(CUDA_COMPILER),$(CUDA_COMPILER),nvcc)
CUDA_SETUP := $(if $(filter nvrtc,$(CUDA_WANTED)),nvrtc,cuda)
# what was looked at and is not used, asked for only where it is said
CUDA_PASSED_OVER = $(shell tools/cuda-compiler --passed-over $(CUDA_COMPILER))
CUDA_NOT_USED = $(if $(CUDA_PASSED_OVER),; not used: $(CUDA_PASSED_OVER))
CUDA_FOUND := $(if $(filter 0,$(CUDA)),,$(shell tools/cuda-compiler $(CUDA_COMPILER)))
ifeq ($(CUDA),)
CUDA := $(if $(CUDA_FOUND),1,0)
CUDA_WHY := $(if $(CUDA_FOUND),,: there is no $(CUDA_WANTED) to use, and `tools/setup $(CUDA_SETUP)` installs one)
endif
ifeq ($(filter 0 1,$(CUDA)),)
$(error CUDA=$(CUDA) is neither 0 nor 1)
endif
ifeq ($(CUDA),1)
ifeq ($(CUDA_FOUND),)
$(error CUDA=1, and there is no $(CUDA_WANTED) to use: `tools/setup cuda` installs nvcc, `tools/setup nvrtc` NVRTC$(CUDA_NOT_USED))
endif
CUDA_SAYS = CUDA=1: images for GPUs by $(wordlist 1,2,$(CUDA_FOUND)) ($(wordlist 3,99,$(CUDA_FOUND)))$(CUDA_NOT_USED)
CUDA_IMAGES := build/cuda/$(firstword $(CUDA_FOUND))
kernels_SOURCES += $(CUDA_IMAGES)/images.c

$(CUDA_IMAGES)/compiler: FORCE
	@mkdir -p $(@D)
	@echo '$(CUDA_FOUND)' | cmp -s - $@ || echo '$(CUDA_FOUND)' > $@

CUDA_PYTHON := $(firstword $(wildcard build/venv/bin/python) python3)
$(CUDA_IMAGES)/images.c: $(CUDA_IMAGES)/compiler $(wildcard kernels/cuda/*) tools/cuda-images
	@echo "  $(firstword $(CUDA_FOUND))  kernels/cuda/kernels.cu"
	@$(CUDA_PYTHON) tools/cuda-images '$(CUDA_FOUND)' $(@D)
else
CUDA_SAYS = CUDA=0: no images for GPUs$(if $(CUDA_WHY),$(CUDA_WHY)$(CUDA_NOT_USED))
CUDA_IMAGES := kernels/cuda_image_none.c
kernels_SOURCES += kernels/cuda_image_none.c
endif

# other images than those in the library make a new one
$(O)/images-of: FORCE
	@mkdir -p $(O)
	@echo '$(CUDA_IMAGES)' | cmp -s - $@ || echo '$(CUDA_IMAGES)' > $@
$(O)/libkernels.a: $(O)/images-of

.PHONY: say-cuda
say-cuda: # no shell sees the sentence: it would run what stands between backticks
	$(info $(CUDA_SAYS))@:
