/*
 * Device memory of other processes, opened and closed.  Every function here
 * runs on the device thread, with the primary context current.
 *
 * The device thread of the backend hands each import to ckv__cuda_memory_serve()
 * in the order in which they came, so that what a client has given back is
 * closed before it comes again.
 */
#ifndef CKV_KERNELS_CUDA_MEMORY_H
#define CKV_KERNELS_CUDA_MEMORY_H

#include "kernels/backend.h"
#include "kernels/cuda_api.h"

/* Most allocations that are open at a time; more than the regions that users may have by default. */
#define CKV_CUDA_MEMORY_MOST UINT32_C(65536)

struct ckv_cuda_memory;         /* what is open */

/**
 * ckv__cuda_memory_new() - nothing is open yet; no call of the driver
 * @cuda:   borrowed until ckv__cuda_memory_free()
 * @device: memory of pieces is mapped on it
 * @most:   allocations that may be open at a time, CKV_CUDA_MEMORY_MOST
 *
 * Return: NULL if out of memory.
 */
struct ckv_cuda_memory *ckv__cuda_memory_new(const struct ckv_cuda *cuda, CUdevice device, uint32_t most);

/* ckv__cuda_memory_free() - close what is still open, unless the device is lost; NULL is fine. Return: NULL. */
struct ckv_cuda_memory *ckv__cuda_memory_free(struct ckv_cuda_memory *memory);

/**
 * ckv__cuda_memory_serve() - do what an import asks for, and write its outcome
 * @import: IPC and VMM: mapping is written with CKV_IMPORT_OK. CLOSE: mapping is zeroed, whatever came of it; no job uses it
 *
 * Return: CUDA_SUCCESS; or the code of an error that ends the process: the outcome is CKV_IMPORT_DEVICE_LOST then, and every
 * later call returns it without asking the driver.
 */
CUresult ckv__cuda_memory_serve(struct ckv_cuda_memory *memory, struct ckv_import *import);

/* ckv__cuda_memory_close() - CKV_IMPORT_CLOSE for a mapping alone. Return: as above; other errors of the driver are kept back. */
CUresult ckv__cuda_memory_close(struct ckv_cuda_memory *memory, struct ckv_mapping *mapping);

/* ckv__cuda_memory_lost() - the device was lost elsewhere: the driver is asked nothing from here on */
void ckv__cuda_memory_lost(struct ckv_cuda_memory *memory, CUresult code);

#endif
