/*
 * Writing log lines.  A line is built on the stack, cleaned of control
 * characters (a field may hold bytes that a tenant chose) and written with one
 * write(2), so that lines of threads do not mix.
 *
 * stderr may be a pipe whose reader has stopped.  The event loop must not
 * stop with it: a line waits at most 50 ms, and once one was lost the next
 * ones do not wait at all until the reader is back; the first line then says
 * how many are missing.  A line is shorter than PIPE_BUF, so a pipe or socket
 * that poll(2) calls writable takes it whole.
 *
 * No file, no rotation, no syslog connection: the service manager has those.
 */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_BYTES 1024
#define WAIT_MSEC 50

static const char *program_name = "chunkkv";
static enum ckv_log_level threshold = CKV_LOG_INFO;
static bool journal;
/* Only a count, no other data hangs on it: relaxed is enough. */
static _Atomic unsigned lost;

#define LOG(id, explanation) { #id, explanation },
static const struct {
        const char *name, *explanation;
} messages[] = {
#include "base/log.def"
};
#undef LOG

const char *ckv_log_message_name(enum ckv_log_message message) {
        return (size_t)message < CKV_ARRAY_SIZE(messages) ? messages[message].name : "?";
}

const char *ckv_log_message_explanation(enum ckv_log_message message) {
        return (size_t)message < CKV_ARRAY_SIZE(messages) ? messages[message].explanation : "";
}

/* journal_reads_stderr() - $JOURNAL_STREAM is inherited by everything; it counts only if it still names our stderr */
static bool journal_reads_stderr(void) {
        const char *text = getenv("JOURNAL_STREAM");
        unsigned long long dev, ino;
        struct stat st;

        if (!text || sscanf(text, "%llu:%llu", &dev, &ino) != 2 || fstat(STDERR_FILENO, &st) < 0)
                return false;
        return st.st_dev == (dev_t)dev && st.st_ino == (ino_t)ino;
}

void ckv_log_open(const char *program, enum ckv_log_level level) {
        program_name = program;
        threshold = level;
        journal = journal_reads_stderr();
}

static const char *level_to_string(enum ckv_log_level level) {
        switch (level) {
        case CKV_LOG_ERROR:
                return "error";
        case CKV_LOG_WARNING:
                return "warning";
        case CKV_LOG_NOTICE:
                return "notice";
        case CKV_LOG_INFO:
                return "info";
        case CKV_LOG_DEBUG:
                return "debug";
        default:
                return "?";
        }
}

/* stderr_writable() - wait for room, but not while the reader has been seen to sleep */
static bool stderr_writable(void) {
        struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
        int timeout = atomic_load_explicit(&lost, memory_order_relaxed) ? 0 : WAIT_MSEC;

        return poll(&p, 1, timeout) == 1 && (p.revents & POLLOUT);
}

static void line_write(const char *line, size_t length) {
        ssize_t n = -1;

        if (stderr_writable())
                n = write(STDERR_FILENO, line, length);
        if (n != (ssize_t)length)
                atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
}

/* append() - printf at the end of @line, cut at its size */
static void append(char line[static LINE_BYTES], size_t *length, const char *format, ...) _printf_(3, 4);
static void append(char line[static LINE_BYTES], size_t *length, const char *format, ...) {
        va_list args;
        int n;

        va_start(args, format);
        n = vsnprintf(line + *length, LINE_BYTES - *length, format, args);
        va_end(args);
        if (n > 0)
                *length = CKV_MIN(*length + (size_t)n, (size_t)LINE_BYTES - 1);
}

void ckv__log_write(enum ckv_log_level level, enum ckv_log_message message, const char *format, ...) {
        char line[LINE_BYTES];
        int saved_errno = errno, n;
        size_t length = 0;
        unsigned missing;
        va_list args;

        if (level > threshold)
                return;

        if (journal)
                append(line, &length, "<%d>%s ", (int)level, ckv_log_message_name(message));
        else
                append(line, &length, "%s: %s: %s ", program_name, level_to_string(level), ckv_log_message_name(message));
        missing = atomic_load_explicit(&lost, memory_order_relaxed);
        if (missing && stderr_writable()) {
                append(line, &length, "lines_lost_before=%u ", missing);
                atomic_fetch_sub_explicit(&lost, missing, memory_order_relaxed);
        }

        va_start(args, format);
        n = vsnprintf(line + length, LINE_BYTES - length, format, args);
        va_end(args);
        if (n > 0)
                length = CKV_MIN(length + (size_t)n, (size_t)LINE_BYTES - 1);
        for (size_t i = 0; i < length; i++)
                if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
                        line[i] = '?';
        /* a cut line loses its last character to the newline */
        line[length < LINE_BYTES - 1 ? length++ : length - 1] = '\n';

        line_write(line, length);
        errno = saved_errno;
}

bool ckv_log_allowed(struct ckv_log_rate *rate, uint64_t now_nsec, uint64_t *ret_suppressed) {
        if (now_nsec - rate->window_nsec >= CKV_LOG_WINDOW_NSEC) {
                rate->window_nsec = now_nsec;
                rate->lines = 0;
        }
        if (rate->lines >= CKV_LOG_BURST) {
                rate->suppressed++;
                return false;
        }
        rate->lines++;
        *ret_suppressed = rate->suppressed;
        rate->suppressed = 0;
        return true;
}
