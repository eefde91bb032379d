/*
 * What may follow a job: Commit of one that is held, and Repair of one that
 * an earlier daemon died in.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <string.h>

/* Is the daemon that had this job still the one we talk to? */
static bool is_with_daemon(struct chunkkv_client *client, const struct ckv__writing *writing) {
        return !ckv__core_is_dead(client) && memcmp(client->boot_id, writing->boot_id, sizeof(writing->boot_id)) == 0;
}

int chunkkv_commit(struct chunkkv_client *client, uint64_t request_id, uint32_t timeout_ms,
                   struct chunkkv_result **ret_result, struct chunkkv_error *ret_error) {
        Chunkkv__V1__Commit body = CHUNKKV__V1__COMMIT__INIT;
        Chunkkv__V1__Request message;
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        struct ckv__writing *writing = ckv__writing_find(client, request_id);
        struct ckv__request *request;
        uint64_t deadline_nsec;
        uint32_t cache;
        int r;

        if (!writing || !writing->selected || writing->waited_for)
                return ckv__fault(ret_error, -EINVAL, "request_id", "no job of this number is held");
        r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);
        if (r)
                return r;
        if (!is_with_daemon(client, writing)) {
                r = ckv__core_died(ret_error, ", and what it held with it");
                if (writing->ticket.number)
                        r = ckv__writing_recover(client, writing, !client->no_roll_forward, ret_result, &cache, ret_error);
                writing = ckv__writing_free(client, writing);
                return r;
        }
        body.target_request_id = writing->id;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_COMMIT;
        message.commit = &body;
        message.generation = writing->generation;
        r = ckv__request_new(client, &message, writing->mode, deadline_nsec, &request, ret_error);
        if (r)
                return r;
        request->handle = writing->handle;
        request->target = writing->id;
        request->writing = writing;
        writing->waited_for = true;
        return ckv__request_finish(client, request, ret_result, ret_error);
}

int chunkkv_repair(struct chunkkv_client *client, uint64_t request_id, uint32_t timeout_ms,
                   struct chunkkv_result **ret_result, struct chunkkv_error *ret_error) {
        Chunkkv__V1__Repair body = CHUNKKV__V1__REPAIR__INIT;
        Chunkkv__V1__Request message;
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        struct ckv__writing *writing = ckv__writing_find(client, request_id);
        struct ckv__request *request;
        uint64_t deadline_nsec;
        int r;

        if (!writing || writing->waited_for || !writing->torn)
                return ckv__fault(ret_error, -EINVAL, "request_id", "no job of this number waits for a repair");
        r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);
        if (r == 0)
                r = ckv__revive(client, deadline_nsec, ret_error);
        if (r)
                return r;
        body.job = ckv__writing_job(writing);
        if (!body.job)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for a job");
        body.target_request_id = writing->id;
        body.control_slot = writing->ticket.number;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_REPAIR;
        message.repair = &body;
        message.generation = writing->generation;
        r = ckv__request_new(client, &message, writing->mode, deadline_nsec, &request, ret_error);
        chunkkv__v1__compress__free_unpacked(body.job, NULL);
        if (r)
                return r;
        request->handle = writing->handle;
        request->writing = writing;
        request->reply_form = writing->reply_form;
        /* the slot names the last one that moved rows, the daemon of now will write its own name there */
        memcpy(writing->boot_id, ckv__page_slot(client->page, writing->ticket.number)->boot_id, sizeof(writing->boot_id));
        memcpy(writing->repair_boot_id, client->boot_id, sizeof(writing->repair_boot_id));
        writing->waited_for = true;
        r = ckv__request_finish(client, request, ret_result, ret_error);
        if (r == 0)
                ckv__result_repaired(*ret_result, request_id);
        return r;
}
