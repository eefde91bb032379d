/*
 * PLAN writes nothing, and IN_PLACE writes rows: that holds only if the places
 * that a client names for scores and answers are neither cache nor input of the
 * same request (tables are copied first, but the client wants them back).  Planes are taken from first to last byte; a gap between
 * their rows is no place for an answer.
 */
#include "daemon/outputs.h"

#include "base/limits.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/overlap.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

/* One place that will be written to, and the field that named it. */
struct output {
        struct ckv_place place;
        enum ckv_field field;
        uint32_t index;         /* of the group */
};

static struct ckv_place place_of(const struct ckv_request *request, const struct ckv_record_slice *slice) {
        const struct ckv_region *region = ckv_region_find(request->session, slice->region_id);

        return region ? ckv_region_place(region, region->mapping.base + slice->offset, slice->size) : (struct ckv_place){ 0 };
}

static bool hits_cache(const struct ckv_request *request, const struct output *output) {
        for (uint32_t i = 0; i < request->job->group_count; i++) {
                const struct ckv_cache_group *group = &request->cache->groups[request->job->groups[i].number];

                for (uint32_t k = 0; k < group->layer_count; k++)
                        if (ckv_places_overlap(&output->place, &group->layers[k].k_place) ||
                            ckv_places_overlap(&output->place, &group->layers[k].v_place))
                                return true;
        }
        return false;
}

static bool hits_input(const struct ckv_request *request, const struct output *output, const struct ckv_record_compress *body,
                       const struct ckv_record_group *groups, const struct ckv_record_timeline *timeline) {
        const struct ckv_record_slice *of_queries[] = { &body->queries, &body->lse, &body->sink_logits };
        struct ckv_place place = timeline ? place_of(request, &timeline->wait) : (struct ckv_place){ 0 };

        if (ckv_places_overlap(&output->place, &place))
                return true;
        for (size_t k = 0; k < CKV_ARRAY_SIZE(of_queries); k++) {
                place = place_of(request, of_queries[k]);
                if (ckv_places_overlap(&output->place, &place))
                        return true;
        }
        for (uint32_t i = 0; i < body->group_count; i++) {
                const struct ckv_record_slice *inputs[] = { &groups[i].table_from, &groups[i].destination_from, &groups[i].scores_in };

                for (size_t k = 0; k < CKV_ARRAY_SIZE(inputs); k++) {
                        place = place_of(request, inputs[k]);
                        if (ckv_places_overlap(&output->place, &place))
                                return true;
                }
        }
        return false;
}

bool ckv_outputs_check(const struct ckv_request *request, const struct ckv_record_compress *body,
                       const struct ckv_record_group *groups, const struct ckv_record_timeline *timeline,
                       struct ckv_record_status *ret_status) {
        struct output outputs[18];      /* one for each group, the answer, and the word to signal */
        uint32_t n = 0;

        static_assert(CKV_ARRAY_SIZE(outputs) == 16 + 2, "CKV_LIMIT_GROUPS and two more");
        for (uint32_t i = 0; i < body->group_count; i++)
                if (groups[i].scores_out.region_id)
                        outputs[n++] = (struct output){ place_of(request, &groups[i].scores_out), CKV_F_GROUP_SCORES_OUT, i };
        if (body->reply_to.region_id)
                outputs[n++] = (struct output){ place_of(request, &body->reply_to), CKV_F_COMPRESS_REPLY_TO, 0 };
        if (timeline && timeline->signal.region_id)
                outputs[n++] = (struct output){ place_of(request, &timeline->signal), CKV_F_COMPRESS_SIGNAL, 0 };
        for (uint32_t i = 0; i < n; i++) {
                bool hit = hits_cache(request, &outputs[i]) || hits_input(request, &outputs[i], body, groups, timeline);

                for (uint32_t k = 0; k < i && !hit; k++)
                        hit = ckv_places_overlap(&outputs[i].place, &outputs[k].place);
                if (hit)
                        return ckv_refuse_at(ret_status, CKV_CODE_INVALID_ARGUMENT, outputs[i].field, outputs[i].index, 0,
                                             CKV_D_OUTPUT_OVERLAPS, 0, 0, 0);
        }
        return true;
}
