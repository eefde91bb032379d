/*
 * stdint.h for NVRTC, which brings no headers: what the kernels use of it.
 * nvcc and the emulator include the C library's.
 */
#ifndef CKV_KERNELS_CUDA_NVRTC_STDINT_H
#define CKV_KERNELS_CUDA_NVRTC_STDINT_H

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;

#define INT32_C(n) n
#define INT64_C(n) n##L
#define UINT32_C(n) n##U
#define UINT64_C(n) n##UL
#define INT32_MAX 2147483647
#define UINT8_MAX 255
#define UINT16_MAX 65535
#define UINT32_MAX 4294967295U
#define UINT64_MAX 18446744073709551615UL

#endif
