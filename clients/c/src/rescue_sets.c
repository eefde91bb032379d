/*
 * What a control slot says of a job, read as if a stranger had written it:
 * the CRC of the kept area, its runs, rows, layers, heads and the protected
 * prefix must all agree with what was asked.  All is copied before it is looked at.
 * Moving rows is recover.c's.
 */
#include "base/crc32c.h"
#include "clients/c/src/rescue.h"

#include <string.h>

/* ---- what is known of the job */

const Chunkkv__V1__GroupJob *ckv__rescue_job(const struct ckv__rescue *rescue, uint32_t group) {
        for (size_t i = 0; i < rescue->job->n_groups; i++) {
                if (rescue->job->groups[i]->group == group)
                        return rescue->job->groups[i];
        }
        return NULL;
}

bool ckv__rescue_load(struct ckv__rescue *rescue) {
        const struct ckv__writing *writing = rescue->writing;
        const struct ckv__page *page = rescue->client->page;
        const struct ckv__cache *cache;

        memcpy(&rescue->slot, ckv__page_slot(page, writing->ticket.number), sizeof(rescue->slot));
        rescue->job = ckv__writing_job(writing);
        cache = rescue->job ? ckv__cache_find(rescue->client, rescue->job->cache_id) : NULL;
        if (cache)
                rescue->layout = chunkkv__v1__register_cache__unpack(NULL, cache->size, cache->bytes);
        if (!rescue->layout)
                return ckv__rescue_refuse(rescue, "its cache is not registered here any more, or there is no memory");
        if (rescue->slot.request_id != writing->id ||
            (memcmp(rescue->slot.boot_id, writing->boot_id, sizeof(writing->boot_id)) != 0 &&
             memcmp(rescue->slot.boot_id, writing->repair_boot_id, sizeof(writing->repair_boot_id)) != 0))
                return ckv__rescue_refuse(rescue, "its control slot is of another request");
        if (rescue->slot.kept_used > page->kept_bytes || rescue->slot.set_count > rescue->slot.kept_used / 24)
                return ckv__rescue_refuse(rescue, "its kept area is absurd");
        rescue->kept = malloc(rescue->slot.kept_used ? rescue->slot.kept_used : 1);
        if (!rescue->kept)
                return ckv__rescue_refuse(rescue, "there is no memory");
        memcpy(rescue->kept, ckv__page_kept(page, writing->ticket.number), rescue->slot.kept_used);
        if (ckv_crc32c(rescue->kept, rescue->slot.kept_used) != rescue->slot.kept_crc)
                return ckv__rescue_refuse(rescue, "its kept area has another CRC-32C");
        return true;
}

/* ---- the kept sets */

bool ckv__rescue_has_layer(const Chunkkv__V1__LayerGroup *group, uint32_t layer) {
        for (size_t i = 0; i < group->n_layers; i++) {
                if (group->layers[i] == layer)
                        return true;
        }
        return false;
}

/* Rows at the front that stay where they are */
static uint32_t stays(const struct chunkkv_region_set *set) {
        return set->run_count > 0 && set->runs[0] == 0 ? set->runs[1] : 0;
}

static bool set_check(struct ckv__rescue *rescue, const struct chunkkv_region_set *set) {
        const Chunkkv__V1__GroupJob *job = ckv__rescue_job(rescue, set->group);
        const Chunkkv__V1__LayerGroup *group;
        uint64_t prefix;

        if (!job || set->group >= rescue->layout->n_groups || set->physical_before != job->physical_len)
                return ckv__rescue_refuse(rescue, "a kept set is not of this job");
        group = rescue->layout->groups[set->group];
        if (!ckv__rescue_has_layer(group, set->layer_first) || set->kv_head >= group->kv_heads)
                return ckv__rescue_refuse(rescue, "a kept set is of a layer or head that there is not");
        prefix = ((uint64_t)job->protect_prefix + group->tokens_per_block - 1) / group->tokens_per_block *
                 group->tokens_per_block;
        if (stays(set) < CKV_MIN(prefix, job->physical_len))
                return ckv__rescue_refuse(rescue, "a kept set would move rows of the protected prefix");
        return true;
}

/* Each head's sets begin with the first layer and go up; heads are all of the group, or head 0 stands for all. */
static bool sets_cover(struct ckv__rescue *rescue, const Chunkkv__V1__GroupJob *job) {
        const Chunkkv__V1__LayerGroup *group = rescue->layout->groups[job->group];
        uint32_t heads = 0;

        for (uint32_t head = 0; head < group->kv_heads; head++) {
                const struct chunkkv_region_set *before = NULL;

                for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                        const struct chunkkv_region_set *set = &rescue->found[i].set;

                        if (set->group != job->group || set->kv_head != head)
                                continue;
                        if (before ? set->layer_first <= before->layer_first : set->layer_first != group->layers[0])
                                return ckv__rescue_refuse(rescue, "kept sets are not one for each layer, in order");
                        before = set;
                }
                if (!before && head != heads)
                        continue;
                if (before && head != heads)
                        return ckv__rescue_refuse(rescue, "kept sets leave out a head");
                heads += before != NULL;
        }
        if (heads != group->kv_heads && heads != 1 && job->physical_len > 0)
                return ckv__rescue_refuse(rescue, "kept sets leave out a head or a group");
        return true;
}

bool ckv__rescue_read(struct ckv__rescue *rescue) {
        uint64_t at = 0;

        rescue->found = ckv__arena_take(&rescue->arena, rescue->slot.set_count, sizeof(*rescue->found));
        for (uint32_t i = 0; rescue->found && i < rescue->slot.set_count; i++) {
                struct ckv__found *found = &rescue->found[i];

                if (!chunkkv_region_set_next(rescue->kept, rescue->slot.kept_used, &at, &found->set))
                        return ckv__rescue_refuse(rescue, "its kept area holds no such sets");
                if (!set_check(rescue, &found->set))
                        return false;
                found->moves = ckv__arena_take(&rescue->arena, found->set.run_count / 2, sizeof(*found->moves));
                if (found->moves)
                        found->move_count = ckv__runs_split(found->set.runs, found->set.run_count, found->moves);
        }
        if (rescue->arena.failed)
                return ckv__rescue_refuse(rescue, "there is no memory");
        if (at != rescue->slot.kept_used)
                return ckv__rescue_refuse(rescue, "there is more in its kept area than its sets");
        for (size_t i = 0; i < rescue->job->n_groups; i++) {
                if (rescue->job->groups[i]->group >= rescue->layout->n_groups || !sets_cover(rescue, rescue->job->groups[i]))
                        return ckv__rescue_refuse(rescue, rescue->why ? rescue->why : "the job names a group that there is not");
        }
        return true;
}
