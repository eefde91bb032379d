/*
 * Nobody may ever find half a file under the name that was asked for, so it is
 * written beside it, forced to the disk, and then renamed.  A file that came
 * there meanwhile is not replaced unasked: renameat2() decides that in the
 * same step.  (On a file system that cannot, the look before has to do.)
 *
 * What a kill in the middle leaves is a file called NAME.PID.tmp.
 */
#include "tools/files.h"

#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static int fail(char *why, int error, const char *format, ...) _printf_(3, 4);
static int fail(char *why, int error, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(why, CKV_FILES_WHY, format, args);
        va_end(args);
        return error;
}

int ckv_file_map(const char *path, void **ret_mapped, size_t *ret_size, char ret_why[static CKV_FILES_WHY]) {
        _cleanup_close_ int fd = -1;
        struct stat info;
        void *mapped;

        /* NONBLOCK: a FIFO must be refused, not waited for */
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &info) < 0)
                return fail(ret_why, -errno, "%s", strerror(errno));
        if (!S_ISREG(info.st_mode))
                return fail(ret_why, -EBADMSG, "%s",
                            S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file");
        if (info.st_size == 0)
                return fail(ret_why, -EBADMSG, "it is empty");
        mapped = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (mapped == MAP_FAILED)
                return fail(ret_why, -errno, "mapping it: %s", strerror(errno));
        *ret_mapped = mapped;
        *ret_size = (size_t)info.st_size;
        return 0;
}

int ckv_output_check(const char *path, bool force, const char *const *inputs, size_t input_count,
                     char ret_why[static CKV_FILES_WHY]) {
        struct stat info, input;

        if (!*path)
                return fail(ret_why, -EINVAL, "an empty name");
        if (strlen(path) >= CKV_FILES_PATH)
                return fail(ret_why, -ENAMETOOLONG, "%s", strerror(ENAMETOOLONG));
        if (stat(path, &info) < 0)
                return errno == ENOENT ? 0 : fail(ret_why, -errno, "%s", strerror(errno));
        if (!S_ISREG(info.st_mode))
                return fail(ret_why, -EBADMSG, "%s",
                            S_ISDIR(info.st_mode) ? "it is a directory" : "it is not a regular file");
        for (size_t i = 0; i < input_count; i++) {
                if (inputs[i] && stat(inputs[i], &input) == 0 && input.st_dev == info.st_dev &&
                    input.st_ino == info.st_ino)
                        return fail(ret_why, -EINVAL, "it is the file that is read, which is never overwritten");
        }
        return force ? 0 : fail(ret_why, -EEXIST, "it is there already; --force replaces it");
}

int ckv_output_open(const char *path, bool force, struct ckv_output *ret_output, char ret_why[static CKV_FILES_WHY]) {
        int fd;

        *ret_output = (struct ckv_output){ .force = force };
        (void)snprintf(ret_output->path, sizeof(ret_output->path), "%s", path);
        (void)snprintf(ret_output->temporary, sizeof(ret_output->temporary), "%s.%ld.tmp", path, (long)getpid());
        fd = open(ret_output->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0) {
                ret_output->temporary[0] = '\0';
                return fail(ret_why, -errno, "%s", strerror(errno));
        }
        ret_output->stream = fdopen(fd, "w");
        if (!ret_output->stream) {
                (void)close(fd);
                return fail(ret_why, -ENOMEM, "no memory to write it");
        }
        return 0;
}

static int name_give(const struct ckv_output *output) {
        if (!output->force) {
                if (renameat2(AT_FDCWD, output->temporary, AT_FDCWD, output->path, RENAME_NOREPLACE) == 0)
                        return 0;
                if (errno != EINVAL && errno != ENOSYS)
                        return -errno;
        }
        return rename(output->temporary, output->path) == 0 ? 0 : -errno;
}

int ckv_output_commit(struct ckv_output *output, uint64_t *ret_size, char ret_why[static CKV_FILES_WHY]) {
        struct stat info;
        int r = 0;

        /* a write that failed long ago left its mark in the stream, but not its errno */
        if (ferror(output->stream))
                r = -EIO;
        else if (fflush(output->stream) != 0 || fsync(fileno(output->stream)) < 0 ||
                 fstat(fileno(output->stream), &info) < 0)
                r = -errno;
        if (fclose(output->stream) != 0 && r == 0)
                r = -errno;
        output->stream = NULL;
        if (r == 0)
                r = name_give(output);
        if (r)
                return fail(ret_why, r, "%s", r == -EIO ? "writing it failed, perhaps the disk is full" : strerror(-r));
        output->temporary[0] = '\0';
        *ret_size = (uint64_t)info.st_size;
        return 0;
}

void ckv_output_close(struct ckv_output *output) {
        if (output->stream)
                (void)fclose(output->stream);
        output->stream = NULL;
        if (output->temporary[0])
                (void)unlink(output->temporary);
        output->temporary[0] = '\0';
}
