/* The AMX kernel with tile instructions in software: needs a CPU with AVX-512 and nothing more. */
#ifndef CKV_TESTS_SUPPORT_AMX_SOFTWARE_H
#define CKV_TESTS_SUPPORT_AMX_SOFTWARE_H

#include "kernels/cpu_window.h"

extern const struct ckv_cpu_window_kernel window_amx_software;

#endif
