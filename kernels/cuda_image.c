/*
 * Which of the embedded images a GPU gets, and what people are told of them.
 *
 * A fat binary goes to the driver whole, which takes out of it what it likes
 * best; yet a GPU older than everything in it is told here, since the driver
 * says only that it found no image.  Images side by side, which NVRTC makes, are
 * chosen here by the rule that the driver has for fat binaries: machine code of
 * the same major number, the highest minor one that is not above; else PTX.
 *
 * What a driver loads is a matter of the compiler's major version: images of
 * CUDA 12 load from series 525 on, those of CUDA 13 from 580 (NVIDIA, CUDA
 * Compatibility).  PTX is apart from that: a driver older than its compiler
 * refuses it, and the backend forwards what the driver says.
 */
#include "kernels/cuda_image.h"

#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

/* first driver series of a major version of CUDA */
static int series_of(int version) {
        return version / 1000 >= 13 ? 580 : version / 1000 == 12 ? 525 : 450;
}

__attribute__((format(printf, 4, 5))) static size_t add(char *text, size_t size, size_t at, const char *format, ...) {
        va_list arguments;
        int n;

        va_start(arguments, format);
        n = vsnprintf(text + at, size - at, format, arguments);
        va_end(arguments);
        return n < 0 ? at : (size_t)n < size - at ? at + (size_t)n : size - 1;
}

static size_t list(const struct ckv__cuda_images *images, char *text, size_t size, size_t at) {
        if (images->count == 0)
                return add(text, size, at, "none, built with CUDA=0");
        for (uint32_t i = 0; i < images->count; i++)
                at = add(text, size, at, "%s%s%u", i == 0 ? "" : images->image[i].ptx ? ", " : " ",
                         images->image[i].ptx ? "PTX compute_" : "sm_", images->image[i].arch);
        return add(text, size, at, "; %s; for drivers of series %d (CUDA %d.%d) or newer", images->compiler,
                   series_of(images->needed), images->needed / 1000, images->needed % 1000 / 10);
}

void ckv_cuda_image_list(char *ret_text, size_t size) {
        (void)list(&ckv__cuda_images, ret_text, size, 0);
}

void ckv_cuda_image_met(int driver_version, char *ret_text, size_t size) {
        size_t at = add(ret_text, size, 0, "the NVIDIA driver is made for CUDA %d.%d; images here: ", driver_version / 1000,
                        driver_version % 1000 / 10);

        (void)list(&ckv__cuda_images, ret_text, size, at);
}

static int none(struct ckv_cuda_fault *ret_fault) {
        *ret_fault = (struct ckv_cuda_fault){ 0 };
        (void)snprintf(ret_fault->text, sizeof(ret_fault->text), "%s", "this program was built with CUDA=0 and carries no kernels "
                       "for GPUs: `tools/setup cuda` installs a compiler for them, `make CUDA=1 all` builds them in");
        return ckv_error_origin(-EOPNOTSUPP);
}

int ckv__cuda_image_needed(struct ckv_cuda_fault *ret_fault) {
        return ckv__cuda_images.count > 0 ? ckv__cuda_images.needed : none(ret_fault);
}

int ckv__cuda_image_find(int major, int minor, const void **ret_image, struct ckv_cuda_fault *ret_fault) {
        const struct ckv__cuda_images *images = &ckv__cuda_images;
        uint32_t arch = 10 * (uint32_t)major + (uint32_t)minor, best = images->count;

        if (images->count == 0)
                return ckv_error_trace(none(ret_fault));
        /* ascending, PTX last: the last machine code that fits is the best, and PTX serves where there was none */
        for (uint32_t i = 0; i < images->count; i++)
                if (images->image[i].arch <= arch &&
                    (images->image[i].ptx ? best == images->count : images->image[i].arch / 10 == arch / 10))
                        best = i;
        if (best == images->count) {
                *ret_fault = (struct ckv_cuda_fault){ 0 };
                (void)snprintf(ret_fault->text, sizeof(ret_fault->text), "the GPU has compute capability %d.%d, and the kernels here "
                               "need %u.%u or newer", major, minor, images->image[0].arch / 10, images->image[0].arch % 10);
                return ckv_error_origin(-EOPNOTSUPP);
        }
        *ret_image = images->bundle ? images->bundle : images->image[best].data;
        return 0;
}
