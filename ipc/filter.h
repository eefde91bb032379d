/*
 * A filter for system calls, from a table.  What is not in the table is not
 * allowed.
 */
#ifndef CKV_IPC_FILTER_H
#define CKV_IPC_FILTER_H

#include <stddef.h>
#include <stdint.h>

/* One line of a table. Several lines of one call are alternatives. */
struct ckv_filter_call {
        int number;                     /* SCMP_SYS(name) */
        uint16_t error;                 /* 0: the call is allowed; else it fails with this errno */
        uint8_t argument;               /* from 0; looked at where mask is not 0 */
        uint64_t mask, value;           /* the line applies where (argument & mask) == value */
};

enum { CKV_FILTER_KILL = 0 };

/**
 * ckv_filter_install() - from here on this process makes only the calls of a table, on all of its threads, for ever
 * @calls:     [count]
 * @otherwise: what becomes of any other call: it fails with this errno, or, CKV_FILTER_KILL, SIGSYS ends the process
 *
 * Children have the filter too, whatever they execute. No new privileges are had by executing (no_new_privs).
 *
 * Return: 0 or -errno, and then nothing has changed but no_new_privs.
 */
int ckv_filter_install(const struct ckv_filter_call *calls, size_t count, uint16_t otherwise);

#endif
