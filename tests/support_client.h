/*
 * For tests of the C client: a private daemon, and the worked example of
 * algorithm.md 6.4 as a cache in shared memory: 48 rows, 2 KV heads, 4 query
 * heads, head size 8, float32, 16 rows a block, blocks in the order 2 0 1 of 4.
 */
#ifndef CKV_TESTS_SUPPORT_CLIENT_H
#define CKV_TESTS_SUPPORT_CLIENT_H

#include "clients/c/include/chunkkv.h"
#include "tools/private.h"

#include <check.h>

enum { MODEL_ROWS = 48, MODEL_KV_HEADS = 2, MODEL_Q_HEADS = 4, MODEL_DIM = 8, MODEL_WINDOW = 4, MODEL_BLOCK = 16,
        MODEL_BLOCKS = 4 };
enum {
        MODEL_ROW_FLOATS = MODEL_KV_HEADS * MODEL_DIM,
        MODEL_PLANE_FLOATS = MODEL_BLOCKS * MODEL_BLOCK * MODEL_ROW_FLOATS,
        MODEL_QUERY_FLOATS = MODEL_WINDOW * MODEL_Q_HEADS * MODEL_DIM,
};

extern const uint32_t model_table[3];

struct model {
        struct chunkkv_memory memory;   /* K plane, V plane, queries */
        struct chunkkv_client *client;
        uint32_t region_id, cache_id;
        struct chunkkv_policy policy;
        struct chunkkv_queries queries;
        struct chunkkv_group_job group;
        struct chunkkv_job job;         /* refers to the three above */
};

/* support_daemon: started by support_daemon_start(), a checked fixture; each test has its own. */
extern struct ckv_private support_daemon;
void support_daemon_start(void);
void support_daemon_stop(void);
/* support_daemon_again() - wait for the end of one that was killed, and start it anew */
void support_daemon_again(void);

/**
 * support_client_run() - run tests that have a daemon each
 * @name:  of the suite
 * @tests: [count]
 *
 * Their directories lie in one that is removed, also after a failure.
 *
 * Return: exit status, 77 without a daemon to start.
 */
int support_client_run(const char *name, const TTest *const *tests, size_t count);

/* model_open() - connect, register, fill in a job of @mode that keeps half; fails the test otherwise */
void model_open(struct model *ret_model, enum chunkkv_mode mode);
/* model_open_with() - the same by options of one's own, whose endpoint is filled in */
void model_open_with(struct model *ret_model, enum chunkkv_mode mode, struct chunkkv_options options);
void model_close(struct model *model);

/* model_row() - [MODEL_ROW_FLOATS] a row of plane 0 (K) or 1 (V) in @base, which is laid out like the memory */
float *model_row(void *base, uint32_t plane, uint32_t row);

#endif
