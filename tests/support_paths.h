/* The paths of the CPU device that this machine can take. */
#ifndef CKV_TESTS_SUPPORT_PATHS_H
#define CKV_TESTS_SUPPORT_PATHS_H

#include "kernels/cpu_choice.h"

enum { PATHS_AT_MOST = 8 };

/* paths_list() - slowest first, scalar is the first. Return: how many. */
uint32_t paths_list(const struct ckv_cpu_path *ret_paths[PATHS_AT_MOST]);

/* paths_widest() - the last of them */
const struct ckv_cpu_path *paths_widest(void);

/* paths_choice() - the choice that is forced to this one; owned */
struct ckv_cpu_choice *paths_choice(const struct ckv_cpu_path *path);

#endif
