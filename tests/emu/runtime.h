/* Between the emulator's scheduler and the table of kernels; users include tests/emu/launch.h. */
#ifndef CKV_TESTS_EMU_RUNTIME_H
#define CKV_TESTS_EMU_RUNTIME_H

#include "tests/emu/emu.h"
#include "tests/emu/launch.h"

namespace emu {

/* launch() - run @kernel(@parameters) once for each thread of the grid; returns when all have */
void launch(const uint32_t grid_dim[3], const uint32_t block_dim[3], size_t shared_bytes, void (*kernel)(const void *),
            const void *parameters);

}

#endif
