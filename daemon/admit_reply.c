/*
 * The size of the answer, before there is one: refused is what could not be
 * sent, or would not fit the memory that the client keeps for it.  A request
 * that passes here is never refused later because of what it kept.  The same
 * bounds say what the kept sets may take here, which the request pays for.
 */
#include "daemon/admit.h"

#include "base/limits.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/mapped.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

/* even_unit() - rows of the units that the selection keeps or drops whole; 1 where they may be of any length */
static uint64_t even_unit(const struct ckv_job_group *group) {
        switch (group->policy.selector) {
        case CKV_SELECTOR_CHUNK:
                return group->selection.positions ? 1 : group->policy.chunk;
        case CKV_SELECTOR_PAGE:
                return group->policy.page;
        default:
                return 1;
        }
}

/* least_rows() - the fewest rows that the budget of any layer of the group can be */
static uint64_t least_rows(const struct ckv_job_group *group) {
        const struct ckv_selection *s = &group->selection;
        uint64_t least = s->rows;

        /* budgets of their own for each layer (PyramidKV) go down to the protected rows, those of H2O to nothing */
        if (group->policy.beta || group->policy.selector == CKV_SELECTOR_H2O)
                return 0;
        if (s->keep_ratio)
                least = (uint64_t)s->rows * s->keep_ratio / 1000000;
        if (s->max_tokens)
                least = CKV_MIN(least, s->max_tokens);
        return least;
}

/* most_rows() - the most rows, beside the protected ones, that the budget of any layer can be */
static uint64_t most_rows(const struct ckv_job_group *group) {
        if (group->policy.beta || group->policy.selector == CKV_SELECTOR_H2O)
                return group->selection.rows;
        return CKV_MIN(least_rows(group) + group->policy.align, group->selection.rows);
}

/*
 * kept_runs_bound() - the most kept runs that one set of this group can have
 *
 * A unit is a stretch of rows, but for the protected rows that lie in it, and is kept or dropped whole, but for the one at
 * which the budget ends: fill = best keeps any rows of it.  Protected rows form at most one stretch for each span, one at
 * the start and one at the end.  A kept run holds such a stretch or whole kept units; a dropped run holds whole dropped
 * units, or touches a stretch, which has two sides.
 */
static uint64_t kept_runs_bound(const struct ckv_job_group *group) {
        const struct ckv_selection *s = &group->selection;
        uint64_t unit = even_unit(group), stretches = s->span_count + 2;
        uint64_t cut = unit > 1 && group->policy.fill == CKV_FILL_BEST ? unit / 2 + 1 : 1, by_kept, by_dropped;

        if (group->given)
                return group->kept[0].run_count;
        if (group->policy.selector == CKV_SELECTOR_STREAMING)
                return CKV_MIN(2 * stretches, (uint64_t)s->rows / 2 + 1);       /* the newest rows, cut by protected ones */
        by_kept = most_rows(group) / unit + stretches + cut + 2;
        by_dropped = (s->rows - least_rows(group)) / unit + 2 * stretches + cut + 2;
        return CKV_MIN(CKV_MIN(by_kept, by_dropped), (uint64_t)s->rows / 2 + 1);
}

/* sets_bound() - kept sets of a part: of each layer and KV head where they are asked for */
static uint64_t sets_bound(const struct ckv_job_group *group) {
        uint64_t layers = group->given || group->policy.layers == CKV_LAYERS_ONE ? 1 : group->layer_count;

        return layers * (!group->given && group->policy.heads == CKV_HEADS_EACH ? group->kv_heads : 1);
}

uint64_t ckv_kept_bytes_bound(const struct ckv_job_group *group) {
        return sets_bound(group) * (kept_runs_bound(group) + 1) * sizeof(struct ckv_run);
}

/* varints_bound() - bytes of @count run lengths whose sum is at most @sum: one each, and one more for each 7 bits beyond */
static uint64_t varints_bound(uint64_t count, uint64_t sum) {
        uint64_t bytes = count;

        for (unsigned shift = 7; shift < 32; shift += 7)
                bytes += CKV_MIN(count, sum >> shift);
        return bytes;
}

/* What an answer takes, at most: the message, the record's attachment, the sets in memory of the client. */
struct room {
        uint64_t message, ring, words;  /* words: bytes of the sets where they lie in memory, region or slot */
};

/* add_part() - what one group of the job adds; @position_runs: words of the positions that the request gave */
static void add_part(const struct ckv_request *request, const struct ckv_job_group *group, uint32_t position_runs, struct room *room) {
        uint64_t sets = sets_bound(group), rows = group->selection.rows, runs = kept_runs_bound(group), places = 0;

        room->message += 400;
        room->ring += sizeof(struct ckv_record_policy);
        if (group->want_mass) {
                room->message += 8 + group->layer_count * sizeof(float);
                room->ring += group->layer_count * sizeof(float);
        }
        room->words += sets * (24 + 8 * runs);
        if (request->reply_form != CKV_REPLY_RUNS && request->reply_form != CKV_REPLY_ROWS)
                return;
        /* a run of rows breaks where their positions do */
        if (group->selection.positions)
                places = CKV_MIN(runs + position_runs / 2, rows);
        room->message += sets * (28 + varints_bound(2 * runs, rows) + varints_bound(2 * places, request->logical_len));
        if (request->reply_form == CKV_REPLY_ROWS)
                room->message += sets * 4 * rows;
        room->ring += sets * (sizeof(struct ckv_record_set) + 8 * (runs + places));
}

bool ckv_admit_reply_size(const struct ckv_request *request, const struct ckv_record_group *groups,
                          struct ckv_record_status *ret_status) {
        uint64_t limit = request->session->daemon->options->reply_bytes;
        struct room room = { .message = 512 };

        for (uint32_t i = 0; i < request->group_count; i++) {
                const struct ckv_request_group *parts = &request->groups[i];

                room.ring += sizeof(struct ckv_record_group_result);
                for (uint32_t k = 0; k < parts->part_count; k++)
                        add_part(request, &request->job->groups[parts->first_part + k], groups[i].position_run_count, &room);
        }
        if (request->reply_form == CKV_REPLY_IN_REGION && room.words > request->reply_bytes)
                return ckv_refuse(ret_status, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_TO, CKV_D_REPLY_TOO_LARGE, room.words,
                                  request->reply_bytes, 0);
        if (ckv_request_stores_sets(request) && room.words > request->claim.kept_bytes)
                return ckv_refuse(ret_status, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_CONTROL_SLOT, CKV_D_KEPT_AREA, room.words,
                                  request->claim.kept_bytes, 0);
        if (room.message > limit)
                return ckv_refuse(ret_status, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_FORM, CKV_D_REPLY_TOO_LARGE,
                                  room.message, limit, 0);
        if (room.ring > CKV_ATTACHMENT_MAX_BYTES)
                return ckv_refuse(ret_status, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_FORM, CKV_D_REPLY_TOO_LARGE, room.ring,
                                  CKV_ATTACHMENT_MAX_BYTES, 0);
        return true;
}

bool ckv_admit_reply_slice(struct ckv_request *request, const struct ckv_record_compress *body, struct ckv_record_status *ret_status) {
        struct ckv_region *region;

        if (request->reply_form != CKV_REPLY_IN_REGION)
                return body->reply_to.region_id == 0 ||
                       ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_REPLY_TO, CKV_D_NOT_USED, 0, 0, 0);
        if (!ckv_region_slice(request->session, &body->reply_to, 0, CKV_F_COMPRESS_REPLY_TO, ret_status, &region,
                              &request->reply_address))
                return false;
        if (!ckv_region_on_host(region, CKV_F_COMPRESS_REPLY_TO, 0, ret_status))
                return false;
        if ((uintptr_t)request->reply_address % sizeof(uint32_t))
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_REPLY_TO, CKV_D_UNALIGNED, sizeof(uint32_t),
                                  body->reply_to.offset, 0);
        if (region->mapped->key.copied)
                return ckv_refuse(ret_status, CKV_CODE_UNSUPPORTED, CKV_F_COMPRESS_REPLY_TO, CKV_D_SHM_OUTPUT, region->id, 0, 0);
        if (!region->writable)
                return ckv_refuse(ret_status, CKV_CODE_PERMISSION, CKV_F_COMPRESS_REPLY_TO, CKV_D_READ_ONLY, region->id, 0, 0);
        if (ckv_request_use_region(request, region))
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        request->reply_bytes = body->reply_to.size;
        return true;
}
