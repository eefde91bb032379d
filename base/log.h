/*
 * The log: one line on stderr for each event, a message id and fields.
 *
 *         ckv_log(CKV_LOG_WARNING, GATE_DIED, "endpoint=%s deaths=%" PRIu64, name, deaths);
 *
 * Message ids come from base/log.def and are explained there.  Under systemd
 * ($JOURNAL_STREAM names stderr) a line begins with the level as "<4>", which
 * the journal understands; elsewhere with the program's name and the level as
 * a word.  What is logged once, and where: style guide, "Logs".
 *
 * Safe from several threads: a line is one write.
 */
#ifndef CKV_BASE_LOG_H
#define CKV_BASE_LOG_H

#include "base/macros.h"

#include <stdbool.h>
#include <stdint.h>

/* Numbers of syslog and of sd-daemon. */
enum ckv_log_level { CKV_LOG_ERROR = 3, CKV_LOG_WARNING = 4, CKV_LOG_NOTICE = 5, CKV_LOG_INFO = 6, CKV_LOG_DEBUG = 7 };

#define LOG(id, explanation) CKV_MSG_##id,
enum ckv_log_message {
#include "base/log.def"
        _CKV_MSG_N,
};
#undef LOG

/**
 * ckv_log_open() - settle prefix and threshold; before it: program "chunkkv", level INFO
 * @program: for the human prefix; not copied, a string constant
 * @level:   less urgent lines than this are dropped
 */
void ckv_log_open(const char *program, enum ckv_log_level level);

/* ckv_log() - leave a line with the message id spelled @id (without CKV_MSG_) and printf-formatted fields */
#define ckv_log(level, id, ...) ckv__log_write((level), CKV_MSG_##id, __VA_ARGS__)

/* ckv_log_once() - like ckv_log(), but only if *@logged (a bool) is still false; sets it */
#define ckv_log_once(logged, level, id, ...) do { \
        bool *_logged = (logged); \
        if (!*_logged) { \
                *_logged = true; \
                ckv_log((level), id, __VA_ARGS__); \
        } \
} while (0)

/* Lines that somebody outside can provoke: at most CKV_LOG_BURST of one kind in CKV_LOG_WINDOW_NSEC. Zeroed = fresh. */
struct ckv_log_rate {
        uint64_t window_nsec;   /* when the current window began */
        uint32_t lines;         /* in it */
        uint64_t suppressed;    /* lines withheld since the last line that was let through */
};
enum { CKV_LOG_BURST = 10 };
#define CKV_LOG_WINDOW_NSEC UINT64_C(10000000000)

/**
 * ckv_log_allowed() - may one more line of this kind be written now?
 * @now_nsec:       CLOCK_MONOTONIC
 * @ret_suppressed: written when true: how many were withheld before this one, for a field of the line
 */
bool ckv_log_allowed(struct ckv_log_rate *rate, uint64_t now_nsec, uint64_t *ret_suppressed);

/* ckv_log_message_name() - "GATE_DIED"; ckv_log_message_explanation() - its sentence in base/log.def */
const char *ckv_log_message_name(enum ckv_log_message message);
const char *ckv_log_message_explanation(enum ckv_log_message message);

void ckv__log_write(enum ckv_log_level level, enum ckv_log_message message, const char *format, ...) _printf_(3, 4);

#endif
