/*
 * kernels/cpu_window_amx.c once more, with the tile instructions of
 * kernels/cpu_tiles.h in software: the same source, another name.
 */
#define CKV_CPU_TILES_SOFTWARE
#define ckv__cpu_window_amx window_amx_software

#include "tests/support_amx_software.h"

#include "kernels/cpu_window_amx.c"
