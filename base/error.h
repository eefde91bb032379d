/*
 * Errors.  A function that can fail returns an int:
 *
 *   0           success
 *   negative    -errno: fatal here, the caller forwards it unchanged
 *   positive    an outcome of this function's own enum, documented beside it,
 *               which the caller must handle
 *
 * The three functions below cost nothing on success.  ckv_error_origin() marks
 * the place where a fatal error is born, ckv_error_trace() a place it passes,
 * ckv_error_fold() turns an outcome nobody can handle into -ENOTRECOVERABLE.
 * With CHUNKKVD_TRACE=1 in the environment each leaves one line on stderr.
 */
#ifndef CKV_BASE_ERROR_H
#define CKV_BASE_ERROR_H

int ckv__error_report(const char *file, int line, const char *how, int error);

/* A function, so that what is handed on is evaluated once: it is often a call. */
static inline int ckv__error_at(const char *file, int line, const char *how, int error) {
        return error ? ckv__error_report(file, line, how, error) : 0;
}

#define ckv_error_origin(error) ckv__error_at(__FILE__, __LINE__, "origin", (error))
#define ckv_error_trace(error) ckv__error_at(__FILE__, __LINE__, "trace", (error))
#define ckv_error_fold(error) ckv__error_at(__FILE__, __LINE__, "fold", (error))

#endif
