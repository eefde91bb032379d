/*
 * For tests of device memory that is imported: the stand-in for the driver, with
 * a log of its calls, and imports that must end as expected.
 */
#ifndef CKV_TESTS_SUPPORT_IMPORTS_H
#define CKV_TESTS_SUPPORT_IMPORTS_H

#include "kernels/cuda_memory.h"

extern struct ckv_cuda imports_cuda;    /* after imports_driver() */

/* imports_setup(), imports_teardown() - a checked fixture: the log, and its end */
void imports_setup(void);
void imports_teardown(void);

/* imports_driver() - the stand-in, with the context of its device on this thread */
void imports_driver(void);

/* imports_calls() - how often this process called an entry point */
int imports_calls(const char *name);

/* imports_memory_new() - imports_driver(), and nothing is open yet; imports_memory_end() - all that was opened has been closed */
struct ckv_cuda_memory *imports_memory_new(uint32_t most);
void imports_memory_end(struct ckv_cuda_memory *memory);

/* imports_serve() - with this outcome; imports_give_back() - what was served is closed */
void imports_serve(struct ckv_cuda_memory *memory, struct ckv_import *import, enum ckv_import_outcome outcome);
void imports_give_back(struct ckv_cuda_memory *memory, struct ckv_import *import);

#endif
