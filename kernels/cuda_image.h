/*
 * The compiled kernels that this program carries for GPUs, embedded by the build
 * (kernels/cuda/images.mk): one image for each architecture, and PTX that
 * drivers translate for GPUs that came later.
 *
 *     CUDA=1, CUDA_COMPILER=nvcc    a fat binary; the driver takes out of it what its GPU runs
 *     CUDA=1, CUDA_COMPILER=nvrtc   images side by side; ckv__cuda_image_find() takes the one for the GPU
 *     CUDA=0                        none: ckv__cuda_image_needed() says so in a sentence, and the CUDA backend does not open
 *
 * Tests against the stand-in for libcuda.so.1 need no compiler for GPUs: they
 * link tests/support_image.c before libkernels.a, whose images are a text that
 * the stand-in takes and a driver refuses.  chunkkvd-standin is the daemon
 * linked so.  No program that is installed has it.
 */
#ifndef CKV_KERNELS_CUDA_IMAGE_H
#define CKV_KERNELS_CUDA_IMAGE_H

#include "kernels/cuda_api.h"

#include <stddef.h>
#include <stdint.h>

enum { CKV_CUDA_IMAGE_TEXT = 320, CKV__CUDA_IMAGES_MOST = 8 };

/* What the build embedded: ascending by architecture, PTX last. */
struct ckv__cuda_images {
        const char *compiler;           /* "nvcc 13.0.88"; NULL: none */
        int needed;                     /* lowest driver version that loads them, 1000 * major + 10 * minor */
        const void *bundle;             /* fat binary of all of them; NULL: each for itself */
        uint32_t count;
        struct {
                uint32_t arch;          /* 90: sm_90, or compute_90 */
                uint32_t ptx;           /* 1: PTX, ended by a zero byte; 0: machine code */
                const void *data;       /* NULL in a bundle */
        } image[CKV__CUDA_IMAGES_MOST];
};

/* of kernels/cuda_image_none.c with CUDA=0, of a generated file with CUDA=1, of tests/support_image.c in tests */
extern const struct ckv__cuda_images ckv__cuda_images;

/* ckv_cuda_image_list() - "sm_80 sm_86 sm_90, PTX compute_80; nvcc 13.0.88; for drivers of series 580 (CUDA 13.0) or newer", or
 * that there is none and why, for people; cut to @size bytes, CKV_CUDA_IMAGE_TEXT are enough */
void ckv_cuda_image_list(char *ret_text, size_t size);

/* ckv_cuda_image_met() - a sentence for the log of a start: which driver was met (@driver_version of struct ckv_cuda), and what it
 * is given; cut to @size bytes, CKV_CUDA_IMAGE_TEXT are enough */
void ckv_cuda_image_met(int driver_version, char *ret_text, size_t size);

/**
 * ckv__cuda_image_needed() - lowest driver version that loads an image of this program
 * @ret_fault: a sentence, written only on failure
 *
 * Return: that version, as ckv_cuda_load() wants it; or -EOPNOTSUPP: this program carries none.
 */
int ckv__cuda_image_needed(struct ckv_cuda_fault *ret_fault);

/**
 * ckv__cuda_image_find() - the image for a GPU
 * @major:     its compute capability, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
 * @ret_image: for cuModuleLoadDataEx(); lives as long as the program
 * @ret_fault: a sentence, written only on failure
 *
 * Machine code runs on GPUs of its own major number and at least its minor one, PTX on all from its number on (CUDA C++
 * Programming Guide, Binary and PTX Compatibility).
 *
 * Return: 0; -EOPNOTSUPP: none is carried, or the GPU is older than all of them.
 */
int ckv__cuda_image_find(int major, int minor, const void **ret_image, struct ckv_cuda_fault *ret_fault);

#endif
