/* Files read by mapping them, and files written whole or not at all. */
#ifndef CKV_TOOLS_FILES_H
#define CKV_TOOLS_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define CKV_FILES_WHY 256               /* bytes of a sentence about what is wrong */
#define CKV_FILES_PATH 4096

/**
 * ckv_file_map() - map a regular file that is not empty, read only
 * @ret_mapped, @ret_size: for munmap()
 * @ret_why: on failure one sentence, without the path
 *
 * Return: 0 or -errno; -EBADMSG if it is no such file.
 */
int ckv_file_map(const char *path, void **ret_mapped, size_t *ret_size, char ret_why[static CKV_FILES_WHY]);

/* A file being written under a name of its own beside the one it is to get. */
struct ckv_output {
        FILE *stream;                   /* NULL = not open */
        char path[CKV_FILES_PATH];      /* what it is to be called */
        char temporary[CKV_FILES_PATH + 32];    /* "" = there is none to be removed */
        bool force;
};

/**
 * ckv_output_check() - could a file be written there?
 * @force:   one that is there may be replaced
 * @inputs:  [input_count] paths that are read, and must not be replaced even so; NULL ones are passed over
 * @ret_why: on failure one sentence, without the path
 *
 * Looks only; to be asked before anything expensive is done.
 *
 * Return: 0 or -errno.
 */
int ckv_output_check(const char *path, bool force, const char *const *inputs, size_t input_count,
                     char ret_why[static CKV_FILES_WHY]);

/**
 * ckv_output_open() - begin to write
 * @ret_output: ends with ckv_output_close(), also after a failure
 *
 * Return: 0 or -errno.
 */
int ckv_output_open(const char *path, bool force, struct ckv_output *ret_output, char ret_why[static CKV_FILES_WHY]);

/**
 * ckv_output_commit() - put the whole file in its place, once it is on the disk
 * @ret_size: bytes written
 *
 * Return: 0; -EEXIST if another one came there in the meantime and may not be replaced; or -errno, as of a write that
 * failed at any time.
 */
int ckv_output_commit(struct ckv_output *output, uint64_t *ret_size, char ret_why[static CKV_FILES_WHY]);

/* ckv_output_close() - remove what was not committed; a closed one is fine */
void ckv_output_close(struct ckv_output *output);

#endif
