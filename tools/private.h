/* A daemon of one's own: started for one command or test, in a directory of its own, and gone afterwards. */
#ifndef CKV_TOOLS_PRIVATE_H
#define CKV_TOOLS_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CKV_PRIVATE_WHY 512             /* bytes of a sentence about what is wrong */

struct ckv_private {
        pid_t pid;                      /* 0 = not running */
        char directory[64];             /* "" = none */
        char endpoint[80];              /* prefix for chunkkv_connect() */
};

/**
 * ckv_private_start() - start chunkkvd and wait until it answers
 * @timeout_ms:  how long at most
 * @ret_private: ends with ckv_private_stop(), also after a failure
 * @ret_why:     on failure one sentence
 *
 * The program is the chunkkvd beside the running executable, else the one in
 * PATH.  It is told to end when this process does.
 *
 * Return: 0 or -errno.
 */
int ckv_private_start(uint32_t timeout_ms, struct ckv_private *ret_private, char ret_why[static CKV_PRIVATE_WHY]);

/**
 * ckv_private_again() - start one that has ended anew, in the same directory and at the same endpoint
 * @private: its process was waited for
 * @ret_why: on failure one sentence
 *
 * Return: 0 or -errno.
 */
int ckv_private_again(struct ckv_private *private, uint32_t timeout_ms, char ret_why[static CKV_PRIVATE_WHY]);

/* ckv_private_stop() - SIGTERM, then SIGKILL after 10 s, and remove the directory; a stopped one is fine */
void ckv_private_stop(struct ckv_private *private);

/* ckv_private_program() - path of chunkkvd beside the running executable. Return: true if it can be run. */
bool ckv_private_program(char *ret_path, size_t size);

#endif
