/*
 * Jobs whose end is not known: those under way with a control slot, those that
 * are held, and those that are torn and may be repaired.  Each keeps a copy of
 * what was asked, in handles, so that a rescue or a repair needs nothing of the
 * caller's.
 */
#include "clients/c/src/control.h"

#include <string.h>

struct ckv__writing *ckv__writing_new(struct chunkkv_client *client, const Chunkkv__V1__Compress *job) {
        struct ckv__writing *writing = calloc(1, sizeof(*writing));

        if (!writing)
                return NULL;
        writing->job_size = chunkkv__v1__compress__get_packed_size(job);
        writing->job = malloc(writing->job_size ? writing->job_size : 1);
        if (!writing->job) {
                free(writing);
                return NULL;
        }
        (void)chunkkv__v1__compress__pack(job, writing->job);
        memcpy(writing->boot_id, client->boot_id, sizeof(writing->boot_id));
        writing->mode = (uint32_t)job->mode;
        writing->next = client->writings;
        client->writings = writing;
        return writing;
}

struct ckv__writing *ckv__writing_find(const struct chunkkv_client *client, uint64_t handle) {
        struct ckv__writing *writing = client->writings;

        while (writing && writing->handle != handle)
                writing = writing->next;
        return writing;
}

struct ckv__writing *ckv__writing_free(struct chunkkv_client *client, struct ckv__writing *writing) {
        struct ckv__writing **link = &client->writings;

        if (!writing)
                return NULL;
        while (*link != writing)
                link = &(*link)->next;
        *link = writing->next;
        if (writing->ticket.number)
                ckv__ticket_release(client->page, &writing->ticket);
        free(writing->job);
        free(writing);
        return NULL;
}

static bool is_over(const struct chunkkv_client *client, const struct ckv__writing *writing) {
        uint32_t phase;

        if (writing->waited_for || writing->ticket.number == 0)
                return false;
        phase = ckv__ticket_phase(client->page, &writing->ticket);
        return phase == CHUNKKV_PHASE_NONE || phase >= CHUNKKV_PHASE_DONE;
}

void ckv__writings_sweep(struct chunkkv_client *client) {
        struct ckv__writing *next;

        for (struct ckv__writing *writing = client->writings; writing; writing = next) {
                next = writing->next;
                if (is_over(client, writing))
                        (void)ckv__writing_free(client, writing);
        }
}

Chunkkv__V1__Compress *ckv__writing_job(const struct ckv__writing *writing) {
        return chunkkv__v1__compress__unpack(NULL, writing->job_size, writing->job);
}
