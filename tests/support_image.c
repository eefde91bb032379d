/*
 * Images for programs that meet the stand-in for libcuda.so.1 alone, so that
 * their tests need no compiler for GPUs: a text.  The stand-in has the emulated
 * kernels inside and looks at no image; a driver refuses this one.  Linked
 * before libkernels.a, it takes the place of the images there.
 *
 * It passes for what nvcc 13 makes, so that drivers and GPUs that are too old
 * are refused as they are in the daemon that is installed.
 */
#include "kernels/cuda_image.h"

static const char text[] = "no kernels are in here: for the stand-in of tests/fake";

const struct ckv__cuda_images ckv__cuda_images = {
        .compiler = "no compiler: for the stand-in driver alone", .needed = 13000, .bundle = text, .count = 1,
        .image = { { .arch = 80, .ptx = 1 } },
};
