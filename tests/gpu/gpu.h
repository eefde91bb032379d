/*
 * gpu-check: what tests/gpu_check.sh runs on a machine with a GPU, a row at a
 * time, each in a process of its own.  It is linked with neither ZeroMQ nor the
 * daemon: driver table, backend and reference are enough.
 *
 * On the stand-in for the driver rows run small, to see that they run, and what
 * only a GPU can answer says "skipped: stand-in".
 */
#ifndef CKV_TESTS_GPU_H
#define CKV_TESTS_GPU_H

#include "kernels/backend.h"
#include "kernels/cuda_api.h"

#include "base/macros.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu {
        struct ckv_cuda cuda;
        const char *library;            /* path of the driver; NULL: libcuda.so.1 */
        const char *probes_path;        /* of the image of tests/gpu/probes.cu; NULL: not told */
        bool stand_in;
        char name[64];
        int major, minor, processors;   /* compute capability, streaming multiprocessors */
        size_t memory_bytes;
        CUdevice device;
        CUcontext context;
        CUstream stream;
        CUmodule kernels, probes;       /* the product's; those of tests/gpu/probes.cu, NULL: not built */
        uint32_t failures;
};

enum { GPU_NONE = 3 };                  /* exit status: no row can say anything, for there is no driver or no GPU */

/* gpu_open() - driver, context and stream; ends the process where there is none. Members are as in struct gpu; there may be no
 * such file of probes. */
void gpu_open(const char *library, const char *probes_path, struct gpu *ret_gpu);

/* gpu_say() - one line of the report */
void gpu_say(const char *format, ...) _printf_(1, 2);

/* gpu_judge() - one line that ends with "ok" or "WRONG"; the latter is counted */
void gpu_judge(struct gpu *gpu, bool good, const char *format, ...) _printf_(3, 4);

/* gpu_skip() - says why, if this is the stand-in. Return: is it? */
bool gpu_skip(const struct gpu *gpu, const char *what);

/* gpu_must() - ends the process with a line if a call of the driver failed */
void gpu_must(const struct gpu *gpu, const char *what, CUresult code);
#define GPU(gpu, name, ...) gpu_must(gpu, #name, (gpu)->cuda.name(__VA_ARGS__))

/* gpu_code() - name and number of an error, in a static buffer */
const char *gpu_code(const struct gpu *gpu, CUresult code);

/* gpu_alloc() - device memory; gpu_upload(), gpu_download(): copies, waited for */
CUdeviceptr gpu_alloc(const struct gpu *gpu, size_t bytes);
void gpu_upload(const struct gpu *gpu, CUdeviceptr to, const void *from, size_t bytes);
void gpu_download(const struct gpu *gpu, void *to, CUdeviceptr from, size_t bytes);

/* gpu_fill() - device memory full of normally distributed bfloat16, which repeat every 64 MiB */
void gpu_fill(const struct gpu *gpu, CUdeviceptr to, size_t bytes);

/* gpu_function() - a kernel of the probes; NULL: there is none */
CUfunction gpu_function(const struct gpu *gpu, const char *name);

/* gpu_launch() - queue a kernel of one dimension */
void gpu_launch(const struct gpu *gpu, CUfunction function, uint32_t grid, uint32_t block, void *parameters);

/* gpu_seconds() - of @repeats launches of a kernel, between two events, after one that is not counted; of the best of five */
double gpu_seconds(const struct gpu *gpu, CUfunction function, uint32_t grid, uint32_t block, void *parameters, uint32_t repeats);

/* gpu_backend() - the CUDA backend on the same driver; ends the process with its sentence if it does not open */
struct ckv_backend *gpu_backend(const struct gpu *gpu);

/* gpu_run() - one stage of a job, start to end */
void gpu_run(struct ckv_backend *backend, struct ckv_job *job, enum ckv_stage stage);

struct gpu_peer {
        int pid, in, out;               /* its output, its input */
};

/* gpu_peer_start() - this program again with another row, connected by pipes; @uid: as this user, 0: as this one; @new_pids: as
 * process 1 of a pid namespace of its own */
struct gpu_peer gpu_peer_start(const struct gpu *gpu, const char *row, const char *argument, uint32_t uid, bool new_pids);

/* gpu_peer_handle() - what "peer-export" exported. Return: false if it could not. */
bool gpu_peer_handle(const struct gpu_peer *peer, CUipcMemHandle *ret_handle);

/* gpu_peer_say() - all lines of a peer until it ends its output */
void gpu_peer_say(const struct gpu_peer *peer);

/* gpu_peer_end() - SIGKILL if @kill, else the end of its input. Return: exit status, 128 + signal */
int gpu_peer_end(struct gpu_peer *peer, bool kill);

/* The rows. */
void gpu_row_info(struct gpu *gpu);
void gpu_row_prims(struct gpu *gpu);
void gpu_row_conform(struct gpu *gpu);
void gpu_row_golden(struct gpu *gpu);
void gpu_row_peaks(struct gpu *gpu);
void gpu_row_request(struct gpu *gpu);
void gpu_row_ipc(struct gpu *gpu);
void gpu_row_codes(struct gpu *gpu);
void gpu_row_order(struct gpu *gpu);
void gpu_row_busy(struct gpu *gpu);
void gpu_row_users(struct gpu *gpu);
void gpu_row_vmm(struct gpu *gpu);
void gpu_row_deaths(struct gpu *gpu);

/* What peers do: hold exported memory until their input ends; keep the device busy until then; open the handle that they are
 * sent and say what came of it, or write there for ever; import a descriptor read-only. */
void gpu_peer_export(struct gpu *gpu, const char *argument);
void gpu_peer_burn(struct gpu *gpu, const char *argument);
void gpu_peer_look(struct gpu *gpu, const char *argument);
void gpu_peer_write(struct gpu *gpu, const char *argument);
void gpu_peer_readonly(struct gpu *gpu, const char *argument);

#endif
