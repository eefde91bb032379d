/*
 * Shared memory of the library's own.  A table of a million blocks, or the
 * sets of many layers, are longer than a message may be; they go through
 * memory that the daemon has mapped.  A piece stays registered for the next
 * request that needs one, because mapping costs more than most jobs.  A piece
 * whose request had no clear end is never used again: the daemon may still
 * write to it.
 */
#include "clients/c/src/client.h"

#include <errno.h>

/* Whole mebibytes: a little longer a table next time should not need another piece. */
#define SCRATCH_UNIT (UINT64_C(1) << 20)

static void scratch_free(struct ckv__scratch *scratch) {
        chunkkv_memory_release(&scratch->memory);
        free(scratch);
}

/* A free piece that is too small makes room for its successor. */
static void drop_one(struct chunkkv_client *client, uint64_t deadline_nsec) {
        struct ckv__scratch **link = &client->scratch, *scratch;

        while (*link && (*link)->busy)
                link = &(*link)->next;
        scratch = *link;
        if (!scratch)
                return;
        *link = scratch->next;
        /* if that fails, the end of the session unmaps it */
        (void)ckv__region_unregister(client, scratch->region_id, deadline_nsec, NULL);
        scratch_free(scratch);
}

int ckv__scratch_take(struct chunkkv_client *client, uint64_t size, uint64_t deadline_nsec,
                      struct ckv__scratch **ret_scratch, struct chunkkv_error *ret_error) {
        struct chunkkv_region region = { .access = CHUNKKV_ACCESS_READ_WRITE };
        struct ckv__scratch *scratch;
        int r;

        for (scratch = client->scratch; scratch; scratch = scratch->next) {
                if (!scratch->busy && scratch->memory.size >= size) {
                        scratch->busy = true;
                        *ret_scratch = scratch;
                        return 0;
                }
        }
        drop_one(client, deadline_nsec);
        scratch = calloc(1, sizeof(*scratch));
        if (!scratch)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for a piece of shared memory");
        r = chunkkv_memory_create("chunkkv-scratch", (size + SCRATCH_UNIT - 1) / SCRATCH_UNIT * SCRATCH_UNIT,
                                  CHUNKKV_ACCESS_READ_WRITE, &scratch->memory, ret_error);
        if (r == 0) {
                region.fd = scratch->memory.fd;
                r = ckv__region_register(client, &region, deadline_nsec, &scratch->region_id, ret_error);
        }
        if (r) {
                scratch_free(scratch);
                return r;
        }
        scratch->busy = true;
        scratch->next = client->scratch;
        client->scratch = scratch;
        *ret_scratch = scratch;
        return 0;
}

struct ckv__scratch *ckv__scratch_release(struct ckv__scratch *scratch) {
        if (scratch)
                scratch->busy = false;
        return NULL;
}

void ckv__scratch_free_all(struct chunkkv_client *client) {
        while (client->scratch) {
                struct ckv__scratch *scratch = client->scratch;

                client->scratch = scratch->next;
                scratch_free(scratch);
        }
}
