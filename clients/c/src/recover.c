/*
 * After the daemon's death: what its control slot says of a job, and the move
 * finished from there.
 *
 *   before COMMITTING   nothing was written: CLEAN
 *   DONE                the answer alone is missing; the kept sets are in the slot
 *   COMMITTING          the steps that are missing are done here, in memory of ours
 *   TORN, or no steps   TORN
 *
 * Page and kept area are copied first and then read as if a stranger had
 * written them: CRC, runs, rows, layers, heads, the protected prefix, and the
 * number of steps must all agree with what was asked, before a row moves.
 */
#include "base/crc32c.h"
#include "clients/c/src/control.h"
#include "clients/c/src/forward.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* A rescue under way.  Everything in it is freed at its end. */
struct rescue {
        struct chunkkv_client *client;
        struct ckv__writing *writing;
        struct ckv_control_slot slot;           /* private copy */
        uint8_t *kept;                          /* private copy of its area, [slot.kept_used] */
        Chunkkv__V1__Compress *job;
        Chunkkv__V1__RegisterCache *layout;
        struct ckv__arena arena;
        struct ckv__found *found;               /* [slot.set_count] */
        struct ckv__mover *movers;              /* [slot.set_count] */
        struct ckv__plane *planes;              /* [layout->n_planes] */
        struct mapping { uint32_t region; uint8_t *address; uint64_t size, offset; } *maps; /* [map_count] */
        size_t map_count;
        const char *why;                        /* not: why it cannot be done */
};

static bool refuse(struct rescue *rescue, const char *why) {
        rescue->why = why;
        return false;
}

static void rescue_deinit(struct rescue *rescue) {
        for (size_t i = 0; i < rescue->map_count; i++)
                (void)munmap(rescue->maps[i].address, rescue->maps[i].size + rescue->maps[i].offset);
        if (rescue->job)
                chunkkv__v1__compress__free_unpacked(rescue->job, NULL);
        if (rescue->layout)
                chunkkv__v1__register_cache__free_unpacked(rescue->layout, NULL);
        ckv__arena_deinit(&rescue->arena);
        free(rescue->kept);
}

/* ---- what is known of the job */

static const Chunkkv__V1__GroupJob *job_of(const struct rescue *rescue, uint32_t group) {
        for (size_t i = 0; i < rescue->job->n_groups; i++) {
                if (rescue->job->groups[i]->group == group)
                        return rescue->job->groups[i];
        }
        return NULL;
}

static bool load(struct rescue *rescue) {
        const struct ckv__writing *writing = rescue->writing;
        const struct ckv__page *page = rescue->client->page;
        const struct ckv__cache *cache;

        memcpy(&rescue->slot, ckv__page_slot(page, writing->ticket.number), sizeof(rescue->slot));
        rescue->job = ckv__writing_job(writing);
        cache = rescue->job ? ckv__cache_find(rescue->client, rescue->job->cache_id) : NULL;
        if (cache)
                rescue->layout = chunkkv__v1__register_cache__unpack(NULL, cache->size, cache->bytes);
        if (!rescue->layout)
                return refuse(rescue, "its cache is not registered here any more, or there is no memory");
        if (rescue->slot.request_id != writing->id ||
            memcmp(rescue->slot.boot_id, writing->boot_id, sizeof(writing->boot_id)) != 0)
                return refuse(rescue, "its control slot is of another request");
        if (rescue->slot.kept_used > page->kept_bytes || rescue->slot.set_count > rescue->slot.kept_used / 24)
                return refuse(rescue, "its kept area is absurd");
        rescue->kept = malloc(rescue->slot.kept_used ? rescue->slot.kept_used : 1);
        if (!rescue->kept)
                return refuse(rescue, "there is no memory");
        memcpy(rescue->kept, ckv__page_kept(page, writing->ticket.number), rescue->slot.kept_used);
        if (ckv_crc32c(rescue->kept, rescue->slot.kept_used) != rescue->slot.kept_crc)
                return refuse(rescue, "its kept area has another CRC-32C");
        return true;
}

/* ---- the kept sets */

static bool has_layer(const Chunkkv__V1__LayerGroup *group, uint32_t layer) {
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

static bool set_check(struct rescue *rescue, const struct chunkkv_region_set *set) {
        const Chunkkv__V1__GroupJob *job = job_of(rescue, set->group);
        const Chunkkv__V1__LayerGroup *group;
        uint64_t prefix;

        if (!job || set->group >= rescue->layout->n_groups || set->physical_before != job->physical_len)
                return refuse(rescue, "a kept set is not of this job");
        group = rescue->layout->groups[set->group];
        if (!has_layer(group, set->layer_first) || set->kv_head >= group->kv_heads)
                return refuse(rescue, "a kept set is of a layer or head that there is not");
        prefix = ((uint64_t)job->protect_prefix + group->tokens_per_block - 1) / group->tokens_per_block *
                 group->tokens_per_block;
        if (stays(set) < CKV_MIN(prefix, job->physical_len))
                return refuse(rescue, "a kept set would move rows of the protected prefix");
        return true;
}

/* Each head's sets begin with the first layer and go up; heads are all of the group, or head 0 stands for all. */
static bool sets_cover(struct rescue *rescue, const Chunkkv__V1__GroupJob *job) {
        const Chunkkv__V1__LayerGroup *group = rescue->layout->groups[job->group];
        uint32_t heads = 0;

        for (uint32_t head = 0; head < group->kv_heads; head++) {
                const struct chunkkv_region_set *before = NULL;

                for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                        const struct chunkkv_region_set *set = &rescue->found[i].set;

                        if (set->group != job->group || set->kv_head != head)
                                continue;
                        if (before ? set->layer_first <= before->layer_first : set->layer_first != group->layers[0])
                                return refuse(rescue, "kept sets are not one for each layer, in order");
                        before = set;
                }
                if (!before && head != heads)
                        continue;
                if (before && head != heads)
                        return refuse(rescue, "kept sets leave out a head");
                heads += before != NULL;
        }
        if (heads != group->kv_heads && heads != 1 && job->physical_len > 0)
                return refuse(rescue, "kept sets leave out a head or a group");
        return true;
}

static bool read_sets(struct rescue *rescue) {
        uint64_t at = 0;

        rescue->found = ckv__arena_take(&rescue->arena, rescue->slot.set_count, sizeof(*rescue->found));
        for (uint32_t i = 0; rescue->found && i < rescue->slot.set_count; i++) {
                struct ckv__found *found = &rescue->found[i];

                if (!chunkkv_region_set_next(rescue->kept, rescue->slot.kept_used, &at, &found->set))
                        return refuse(rescue, "its kept area holds no such sets");
                if (!set_check(rescue, &found->set))
                        return false;
                found->moves = ckv__arena_take(&rescue->arena, found->set.run_count / 2, sizeof(*found->moves));
                if (found->moves)
                        found->move_count = ckv__runs_split(found->set.runs, found->set.run_count, found->moves);
        }
        if (rescue->arena.failed)
                return refuse(rescue, "there is no memory");
        if (at != rescue->slot.kept_used)
                return refuse(rescue, "there is more in its kept area than its sets");
        for (size_t i = 0; i < rescue->job->n_groups; i++) {
                if (rescue->job->groups[i]->group >= rescue->layout->n_groups || !sets_cover(rescue, rescue->job->groups[i]))
                        return refuse(rescue, rescue->why ? rescue->why : "the job names a group that there is not");
        }
        return true;
}

/* ---- memory and tables */

/* A region as it is mapped for this rescue; NULL if it cannot be. */
static uint8_t *map_region(struct rescue *rescue, uint32_t handle, bool writable, uint64_t *ret_size) {
        const struct ckv__region *region = ckv__region_find(rescue->client, handle);
        struct mapping *maps;
        void *address;

        if (!region)
                return NULL;
        *ret_size = region->size;
        for (size_t i = 0; i < rescue->map_count; i++) {
                if (rescue->maps[i].region == handle)
                        return rescue->maps[i].address + rescue->maps[i].offset;
        }
        maps = ckv__arena_take(&rescue->arena, rescue->map_count + 1, sizeof(*maps));
        if (!maps)
                return NULL;
        address = mmap(NULL, region->offset + region->size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, region->fd, 0);
        if (address == MAP_FAILED)
                return NULL;
        if (rescue->map_count > 0)
                memcpy(maps, rescue->maps, rescue->map_count * sizeof(*maps));
        maps[rescue->map_count++] = (struct mapping){ handle, address, region->size, region->offset };
        rescue->maps = maps;
        return (uint8_t *)address + region->offset;
}

static struct chunkkv_axis axis_of(const Chunkkv__V1__Axis *axis) {
        return axis ? (struct chunkkv_axis){ axis->tile, axis->outer, axis->inner } : (struct chunkkv_axis){ 0 };
}

static const Chunkkv__V1__LayerGroup *group_of_layer(const struct rescue *rescue, uint32_t layer) {
        for (size_t i = 0; i < rescue->layout->n_groups; i++) {
                if (has_layer(rescue->layout->groups[i], layer))
                        return rescue->layout->groups[i];
        }
        return NULL;
}

static bool plane_fill(struct rescue *rescue, const Chunkkv__V1__Plane *message, struct ckv__plane *plane) {
        const Chunkkv__V1__LayerGroup *group = group_of_layer(rescue, message->layer_first);
        struct chunkkv_group shape;
        uint64_t size;

        if (!group)
                return refuse(rescue, "a plane is of no group");
        plane->plane = (struct chunkkv_plane){
                .kind = (uint32_t)message->kind, .dtype = (uint32_t)message->dtype, .layer_first = message->layer_first,
                .layer_count = message->layer_count, .offset = message->offset, .layer_stride = message->layer_stride,
                .block_stride = message->block_stride, .head_stride = message->head_stride,
                .token = axis_of(message->token), .dim = axis_of(message->dim),
        };
        plane->dims = message->kind == CHUNKKV__V1__PLANE_KIND__PLANE_V ? group->head_dim_v : group->head_dim_k;
        plane->element_bytes = ckv__dtype_bytes(plane->plane.dtype);
        plane->memory = map_region(rescue, message->region_id, true, &size);
        shape = (struct chunkkv_group){
                .kv_heads = group->kv_heads, .head_dim_k = group->head_dim_k, .head_dim_v = group->head_dim_v,
                .tokens_per_block = group->tokens_per_block, .num_blocks = group->num_blocks,
        };
        if (!plane->memory || chunkkv_plane_check(&shape, &plane->plane, size, NULL, NULL))
                return refuse(rescue, "the memory of its cache is not to be had here");
        return true;
}

static const uint32_t *table_words(struct rescue *rescue, const Chunkkv__V1__Table *table, size_t *ret_count) {
        uint64_t size;
        uint8_t *memory;
        uint32_t *words;

        if (!table->from) {
                *ret_count = table->n_numbers;
                return table->numbers;
        }
        memory = map_region(rescue, table->from->region_id, false, &size);
        if (!memory || table->from->offset > size || table->from->size > size - table->from->offset)
                return NULL;
        *ret_count = table->from->size / sizeof(uint32_t);
        /* a slice need not be aligned */
        words = ckv__arena_take(&rescue->arena, *ret_count, sizeof(*words));
        if (words)
                memcpy(words, memory + table->from->offset, *ret_count * sizeof(*words));
        return words;
}

/* [physical_len] block * tokens_per_block + token of each row, in the arena; NULL: refused */
static const uint64_t *slots_of(struct rescue *rescue, const Chunkkv__V1__GroupJob *job) {
        const Chunkkv__V1__LayerGroup *group = rescue->layout->groups[job->group];
        uint64_t *slots = ckv__arena_take(&rescue->arena, job->physical_len, sizeof(*slots));
        uint64_t most = (uint64_t)group->num_blocks * group->tokens_per_block;
        size_t count = 0;
        const uint32_t *words = job->table ? table_words(rescue, job->table, &count) : NULL;
        bool runs = job->table && (job->table->form == CHUNKKV__V1__TABLE_FORM__TABLE_BLOCK_RUNS ||
                                   job->table->form == CHUNKKV__V1__TABLE_FORM__TABLE_TOKEN_RUNS);
        bool blocks = job->table && (job->table->form == CHUNKKV__V1__TABLE_FORM__TABLE_BLOCKS ||
                                     job->table->form == CHUNKKV__V1__TABLE_FORM__TABLE_BLOCK_RUNS);
        uint32_t per_entry = blocks ? group->tokens_per_block : 1, row = 0;

        if (!slots || (!words && job->physical_len > 0))
                return NULL;
        for (size_t i = 0; i < count && row < job->physical_len; i += runs ? 2 : 1) {
                uint64_t length = runs ? (i + 1 < count ? words[i + 1] : 0) : 1;

                for (uint64_t k = 0; k < length * per_entry && row < job->physical_len; k++) {
                        slots[row] = (uint64_t)words[i] * per_entry + k;
                        if (slots[row++] >= most)
                                return NULL;
                }
        }
        return row == job->physical_len ? slots : NULL;
}

/* ---- the steps */

static uint32_t layer_end(const struct rescue *rescue, const struct chunkkv_region_set *set) {
        uint32_t end = UINT32_MAX;

        for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                const struct chunkkv_region_set *other = &rescue->found[i].set;

                if (other->group == set->group && other->kv_head == set->kv_head && other->layer_first > set->layer_first)
                        end = CKV_MIN(end, other->layer_first);
        }
        return end;
}

static bool each_head(const struct rescue *rescue, uint32_t group) {
        for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                if (rescue->found[i].set.group == group && rescue->found[i].set.kv_head > 0)
                        return true;
        }
        return false;
}

static bool prepare(struct rescue *rescue) {
        const uint64_t **slots = ckv__arena_take(&rescue->arena, rescue->layout->n_groups, sizeof(*slots));

        rescue->movers = ckv__arena_take(&rescue->arena, rescue->slot.set_count, sizeof(*rescue->movers));
        rescue->planes = ckv__arena_take(&rescue->arena, rescue->layout->n_planes, sizeof(*rescue->planes));
        if (!rescue->movers || !rescue->planes || !slots)
                return refuse(rescue, "there is no memory");
        for (size_t i = 0; i < rescue->layout->n_planes; i++) {
                if (!plane_fill(rescue, rescue->layout->planes[i], &rescue->planes[i]))
                        return false;
        }
        for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                const struct chunkkv_region_set *set = &rescue->found[i].set;
                const Chunkkv__V1__LayerGroup *group = rescue->layout->groups[set->group];
                bool each = each_head(rescue, set->group);

                if (!slots[set->group])
                        slots[set->group] = slots_of(rescue, job_of(rescue, set->group));
                if (!slots[set->group])
                        return refuse(rescue, "its table is too short, names a block that there is not, or is not to be had here");
                rescue->movers[i] = (struct ckv__mover){
                        .cut = ckv__cut_first(rescue->found[i].moves, rescue->found[i].move_count, rescue->slot.batch_rows),
                        .planes = rescue->planes, .plane_count = rescue->layout->n_planes,
                        .layer_first = set->layer_first, .layer_end = layer_end(rescue, set),
                        .layers = group->layers, .layer_count = group->n_layers,
                        .head_first = each ? set->kv_head : 0, .head_end = each ? set->kv_head + 1 : group->kv_heads,
                        .slots = slots[set->group], .tokens_per_block = group->tokens_per_block,
                };
        }
        return true;
}

/* Goes through all steps from the first; moves those from @from on. Return: how many there are. */
static uint32_t walk(struct rescue *rescue, uint32_t from, bool move) {
        struct ckv_control_slot *slot = ckv__page_slot(rescue->client->page, rescue->writing->ticket.number);
        struct ckv__cut *cut;
        uint32_t steps = 0;

        for (bool more = true; more && steps <= CKV__STEPS_MAX; steps += more) {
                more = false;
                for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                        cut = &rescue->movers[i].cut;
                        if (cut->begin == cut->end)
                                continue;
                        more = true;
                        if (move && steps >= from)
                                ckv__mover_move(&rescue->movers[i]);
                        ckv__cut_next(cut, rescue->slot.batch_rows);
                }
                if (more && move && steps >= from)
                        __atomic_store_n(&slot->steps_done, steps + 1, __ATOMIC_RELEASE);
        }
        return steps;
}

static bool roll_forward(struct rescue *rescue) {
        uint32_t steps;

        if (!prepare(rescue))
                return false;
        steps = walk(rescue, 0, false);
        if (steps != rescue->slot.steps || rescue->slot.steps_done > steps)
                return refuse(rescue, rescue->slot.steps ? "its sets need another number of steps" : "it moved in a single pass");
        for (uint32_t i = 0; i < rescue->slot.set_count; i++)
                rescue->movers[i].cut = ckv__cut_first(rescue->found[i].moves, rescue->found[i].move_count,
                                                       rescue->slot.batch_rows);
        (void)walk(rescue, rescue->slot.steps_done, true);
        return true;
}

/* ---- the whole */

static int report(struct ckv__writing *writing, uint32_t cache, const char *what, const char *why, uint32_t *ret_cache,
                  struct chunkkv_error *ret_error) {
        char tail[sizeof(ret_error->detail)];

        (void)snprintf(tail, sizeof(tail), ": %s%s%s", what, why ? ": " : "", why ? why : "");
        (void)ckv__core_died(ret_error, tail);
        *ret_cache = cache;
        if (ret_error) {
                ret_error->cache = cache;
                ret_error->request_id = writing->handle;
        }
        return -EOWNERDEAD;
}

int ckv__writing_recover(struct chunkkv_client *client, struct ckv__writing *writing, bool may_move,
                         struct chunkkv_result **ret_result, uint32_t *ret_cache, struct chunkkv_error *ret_error) {
        _cleanup_(rescue_deinit) struct rescue rescue = { .client = client, .writing = writing };
        uint32_t phase = ckv__ticket_phase(client->page, &writing->ticket);
        bool committing = phase == CHUNKKV_PHASE_COMMITTING;
        int r;

        if (phase == CHUNKKV_PHASE_TORN || phase == CHUNKKV_PHASE_NONE)
                return report(writing, CHUNKKV_CACHE_TORN, phase ? "it had given up in the middle of the move" :
                              "its control slot was overwritten", NULL, ret_cache, ret_error);
        if (!committing && phase != CHUNKKV_PHASE_DONE) {
                ckv__ticket_end(client->page, &writing->ticket, CHUNKKV_PHASE_CANCELLED);
                return report(writing, CHUNKKV_CACHE_CLEAN, "before it wrote anything", NULL, ret_cache, ret_error);
        }
        if (!load(&rescue) || !read_sets(&rescue) || (committing && may_move && !roll_forward(&rescue))) {
                if (!committing)
                        return report(writing, CHUNKKV_CACHE_COMMITTED, "after it had moved the rows, but which is not known",
                                      rescue.why, ret_cache, ret_error);
                ckv__ticket_end(client->page, &writing->ticket, CHUNKKV_PHASE_TORN);
                return report(writing, CHUNKKV_CACHE_TORN, "in the move", rescue.why, ret_cache, ret_error);
        }
        if (committing && !may_move && rescue.slot.steps > 0)
                return report(writing, CHUNKKV_CACHE_TORN_REPAIRABLE, "in the move; chunkkv_repair() can finish it", NULL,
                              ret_cache, ret_error);
        ckv__ticket_end(client->page, &writing->ticket, CHUNKKV_PHASE_DONE);
        *ret_cache = CHUNKKV_CACHE_COMMITTED;
        if (!ret_result)
                return 0;
        r = ckv__result_of_sets(writing, rescue.job, rescue.layout, rescue.found, rescue.slot.set_count, ret_result);
        if (r)
                return report(writing, CHUNKKV_CACHE_COMMITTED, "the rows are moved, and there is no memory to say which", NULL,
                              ret_cache, ret_error);
        if (committing)
                ckv__result_repaired(*ret_result, writing->handle);
        return 0;
}
