/* What the core gives up before it serves. */
#ifndef CKV_DAEMON_SANDBOX_H
#define CKV_DAEMON_SANDBOX_H

#include "daemon/options.h"

/**
 * ckv_sandbox_enter() - from here on only the files and the system calls of daemon/sandbox.c
 * @options: gate and runtime_dir name what must stay within reach; nothing happens with --sandbox off
 *
 * Before there is a thread, and after the sockets are bound. Logs one line: what holds, or why it cannot. Does nothing in
 * a build with sanitizers.
 *
 * Return: 0, or -errno where the daemon must not go on.
 */
int ckv_sandbox_enter(const struct ckv_options *options);

#endif
