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
#include "clients/c/src/rescue.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static void rescue_deinit(struct ckv__rescue *rescue) {
        for (size_t i = 0; i < rescue->map_count; i++)
                (void)munmap(rescue->maps[i].address, rescue->maps[i].size + rescue->maps[i].offset);
        if (rescue->job)
                chunkkv__v1__compress__free_unpacked(rescue->job, NULL);
        if (rescue->layout)
                chunkkv__v1__register_cache__free_unpacked(rescue->layout, NULL);
        ckv__arena_deinit(&rescue->arena);
        free(rescue->kept);
}

/* ---- memory and tables */

/* A region as it is mapped for this rescue; NULL if it cannot be. */
static uint8_t *map_region(struct ckv__rescue *rescue, uint32_t handle, bool writable, uint64_t *ret_size) {
        const struct ckv__region *region = ckv__region_find(rescue->client, handle);
        struct ckv__mapping *maps;
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
        maps[rescue->map_count++] = (struct ckv__mapping){ handle, address, region->size, region->offset };
        rescue->maps = maps;
        return (uint8_t *)address + region->offset;
}

static struct chunkkv_axis axis_of(const Chunkkv__V1__Axis *axis) {
        return axis ? (struct chunkkv_axis){ axis->tile, axis->outer, axis->inner } : (struct chunkkv_axis){ 0 };
}

static const Chunkkv__V1__LayerGroup *group_of_layer(const struct ckv__rescue *rescue, uint32_t layer) {
        for (size_t i = 0; i < rescue->layout->n_groups; i++) {
                if (ckv__rescue_has_layer(rescue->layout->groups[i], layer))
                        return rescue->layout->groups[i];
        }
        return NULL;
}

static bool plane_fill(struct ckv__rescue *rescue, const Chunkkv__V1__Plane *message, struct ckv__plane *plane) {
        const Chunkkv__V1__LayerGroup *group = group_of_layer(rescue, message->layer_first);
        struct chunkkv_group shape;
        uint64_t size;

        if (!group)
                return ckv__rescue_refuse(rescue, "a plane is of no group");
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
                return ckv__rescue_refuse(rescue, "the memory of its cache is not to be had here");
        return true;
}

static const uint32_t *table_words(struct ckv__rescue *rescue, const Chunkkv__V1__Table *table, size_t *ret_count) {
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
static const uint64_t *slots_of(struct ckv__rescue *rescue, const Chunkkv__V1__GroupJob *job) {
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

static uint32_t layer_end(const struct ckv__rescue *rescue, const struct chunkkv_region_set *set) {
        uint32_t end = UINT32_MAX;

        for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                const struct chunkkv_region_set *other = &rescue->found[i].set;

                if (other->group == set->group && other->kv_head == set->kv_head && other->layer_first > set->layer_first)
                        end = CKV_MIN(end, other->layer_first);
        }
        return end;
}

static bool each_head(const struct ckv__rescue *rescue, uint32_t group) {
        for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                if (rescue->found[i].set.group == group && rescue->found[i].set.kv_head > 0)
                        return true;
        }
        return false;
}

static bool prepare(struct ckv__rescue *rescue) {
        const uint64_t **slots = ckv__arena_take(&rescue->arena, rescue->layout->n_groups, sizeof(*slots));

        rescue->movers = ckv__arena_take(&rescue->arena, rescue->slot.set_count, sizeof(*rescue->movers));
        rescue->planes = ckv__arena_take(&rescue->arena, rescue->layout->n_planes, sizeof(*rescue->planes));
        if (!rescue->movers || !rescue->planes || !slots)
                return ckv__rescue_refuse(rescue, "there is no memory");
        for (size_t i = 0; i < rescue->layout->n_planes; i++) {
                if (!plane_fill(rescue, rescue->layout->planes[i], &rescue->planes[i]))
                        return false;
        }
        for (uint32_t i = 0; i < rescue->slot.set_count; i++) {
                const struct chunkkv_region_set *set = &rescue->found[i].set;
                const Chunkkv__V1__LayerGroup *group = rescue->layout->groups[set->group];
                bool each = each_head(rescue, set->group);

                if (!slots[set->group])
                        slots[set->group] = slots_of(rescue, ckv__rescue_job(rescue, set->group));
                if (!slots[set->group])
                        return ckv__rescue_refuse(rescue, "its table is too short, names a block that there is not, or is not to be had here");
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
static uint32_t walk(struct ckv__rescue *rescue, uint32_t from, bool move) {
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

static bool roll_forward(struct ckv__rescue *rescue) {
        uint32_t steps;

        if (!prepare(rescue))
                return false;
        steps = walk(rescue, 0, false);
        if (steps != rescue->slot.steps || rescue->slot.steps_done > steps)
                return ckv__rescue_refuse(rescue, rescue->slot.steps ? "its sets need another number of steps" : "it moved in a single pass");
        for (uint32_t i = 0; i < rescue->slot.set_count; i++)
                rescue->movers[i].cut = ckv__cut_first(rescue->found[i].moves, rescue->found[i].move_count,
                                                       rescue->slot.batch_rows);
        (void)walk(rescue, rescue->slot.steps_done, true);
        return true;
}

/* Can this process move its rows? Those on a device only the next daemon can. */
static bool within_reach(const struct ckv__rescue *rescue) {
        for (size_t i = 0; i < rescue->layout->n_planes; i++) {
                const struct ckv__region *region = ckv__region_find(rescue->client, rescue->layout->planes[i]->region_id);

                if (region && region->device)
                        return false;
        }
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
        _cleanup_(rescue_deinit) struct ckv__rescue rescue = { .client = client, .writing = writing };
        uint32_t phase = ckv__ticket_phase(client->page, &writing->ticket);
        bool committing = phase == CHUNKKV_PHASE_COMMITTING, loaded;
        int r;

        if (phase == CHUNKKV_PHASE_TORN || phase == CHUNKKV_PHASE_NONE)
                return report(writing, CHUNKKV_CACHE_TORN, phase ? "it had given up in the middle of the move" :
                              "its control slot was overwritten", NULL, ret_cache, ret_error);
        if (!committing && phase != CHUNKKV_PHASE_DONE) {
                ckv__ticket_end(client->page, &writing->ticket, CHUNKKV_PHASE_CANCELLED);
                return report(writing, CHUNKKV_CACHE_CLEAN, "before it wrote anything", NULL, ret_cache, ret_error);
        }
        loaded = ckv__rescue_load(&rescue) && ckv__rescue_read(&rescue);
        may_move = may_move && (!loaded || within_reach(&rescue));
        if (loaded && committing && !may_move && rescue.slot.steps == 0)
                loaded = ckv__rescue_refuse(&rescue, "it moved in a single pass");
        if (!loaded || (committing && may_move && !roll_forward(&rescue))) {
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
