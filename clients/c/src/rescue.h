/*
 * A rescue: what is known of a job whose daemon is dead, from its control slot
 * and from what was asked.  recover.c begins and ends it, rescue_sets.c reads
 * the slot as if a stranger had written it.
 */
#ifndef CKV_CLIENTS_RESCUE_H
#define CKV_CLIENTS_RESCUE_H

#include "clients/c/src/control.h"
#include "clients/c/src/forward.h"

/* A rescue under way.  Everything in it is freed at its end. */
struct ckv__rescue {
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
        struct ckv__mapping { uint32_t region; uint8_t *address; uint64_t size, offset; } *maps; /* [map_count] */
        size_t map_count;
        const char *why;                        /* not: why it cannot be done */
};

/* ckv__rescue_refuse() - note why it cannot be done. Return: false. */
static inline bool ckv__rescue_refuse(struct ckv__rescue *rescue, const char *why) {
        rescue->why = why;
        return false;
}

/* ckv__rescue_load() - copy the slot and its kept area, unpack job and layout. Return: false with rescue->why. */
bool ckv__rescue_load(struct ckv__rescue *rescue);
/* ckv__rescue_read() - the kept sets, well-formed and all of this job's. Return: false with rescue->why. */
bool ckv__rescue_read(struct ckv__rescue *rescue);
/* ckv__rescue_job() - what was asked of a group; NULL: nothing */
const Chunkkv__V1__GroupJob *ckv__rescue_job(const struct ckv__rescue *rescue, uint32_t group);
/* ckv__rescue_has_layer() - is it a layer of this group? */
bool ckv__rescue_has_layer(const Chunkkv__V1__LayerGroup *group, uint32_t layer);

#endif
