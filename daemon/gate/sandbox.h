/* What the gate gives up, in the order in which it can. */
#ifndef CKV_GATE_SANDBOX_H
#define CKV_GATE_SANDBOX_H

#include <stdbool.h>

/* ckv_sandbox_limits() - memory, descriptors, core dumps; ends with its core, goes first without memory. Return: 0 or -errno. */
int ckv_sandbox_limits(void);

/**
 * ckv_sandbox_files() - no file can be opened any more, no signal sent to others, no abstract socket reached
 *
 * Before there is a thread. A kernel without Landlock restricts nothing, and that is no error: ckv_sandbox_calls()
 * forbids to open anything at all.
 *
 * Return: 0 or -errno.
 */
int ckv_sandbox_files(void);

/**
 * ckv_sandbox_calls() - from here on any call that a serving gate does not need kills the process
 *
 * After libzmq has made its threads, before the first peer is heard.
 *
 * Return: 0 or -errno.
 */
int ckv_sandbox_calls(void);

#endif
