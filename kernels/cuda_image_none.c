/*
 * The images of a build with CUDA=0: none.  The CUDA backend says so when it is
 * asked to open; everything else of it is there, and tests run it against a
 * driver that is a stand-in (tests/support_image.c).
 */
#include "kernels/cuda_image.h"

const struct ckv__cuda_images ckv__cuda_images = { 0 };
