/*
 * For tests that open files and sockets: a private directory, and a count of
 * open descriptors.
 */
#ifndef CKV_TESTS_SUPPORT_FILES_H
#define CKV_TESTS_SUPPORT_FILES_H

#include <stdint.h>

enum { SUPPORT_PATH_BYTES = 80 };       /* short: socket paths are made below the directory */

/* support_dir_make() - a new private directory below $TMPDIR or /tmp; fails the test otherwise */
void support_dir_make(char ret_path[static SUPPORT_PATH_BYTES]);
/* support_dir_remove() - a directory and the files and directories in it */
void support_dir_remove(const char *path);

/* support_fds_count() - open descriptors of this process, with the one that looks */
unsigned support_fds_count(void);

/* support_memfd() - a memfd of @size bytes with @filled of them allocated and @seals added; fails the test otherwise */
int support_memfd(uint64_t size, uint64_t filled, int seals);

#endif
