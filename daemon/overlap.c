/*
 * Planes of one cache often lie in one buffer, interleaved: block by block,
 * layer by layer, K and V in turn.  As stretches from first to last byte they
 * overlap; as sets of elements they do not.  What tells them apart is the
 * stride that both share: modulo that stride each is a short stretch, and if
 * these do not meet, nothing does; if they do, the question is asked again for
 * the next stride inside.
 *
 * Index ranges are not looked at on the way down, so the answer can be yes
 * where the elements that would meet do not exist.
 */
#include "daemon/overlap.h"

#include "base/macros.h"

bool ckv_places_overlap(const struct ckv_place *a, const struct ckv_place *b) {
        return a->dev == b->dev && a->ino == b->ino && a->bytes > 0 && b->bytes > 0 && a->start < b->start + b->bytes &&
               b->start < a->start + a->bytes;
}

void ckv_footprint_init(struct ckv_footprint *footprint, const struct ckv_place *place, const struct ckv_dim *dims, uint32_t n,
                        uint64_t element) {
        *footprint = (struct ckv_footprint){ .place = *place, .element = element };
        for (uint32_t i = 0; i < n; i++) {
                uint32_t at = footprint->dim_count;

                if (dims[i].count < 2)
                        continue;
                for (; at > 0 && footprint->dims[at - 1].stride < dims[i].stride; at--)
                        footprint->dims[at] = footprint->dims[at - 1];
                footprint->dims[at] = dims[i];
                footprint->dim_count++;
        }
}

/* inside() - bytes of what lies at each index of the dims before @level */
static uint64_t inside(const struct ckv_footprint *footprint, uint32_t level) {
        uint64_t bytes = footprint->element;

        for (uint32_t i = level; i < footprint->dim_count; i++)
                bytes += (footprint->dims[i].count - 1) * footprint->dims[i].stride;
        return bytes;
}

static bool stretches_meet(int64_t a, uint64_t a_bytes, int64_t b, uint64_t b_bytes) {
        return a < b + (int64_t)b_bytes && b < a + (int64_t)a_bytes;
}

/* modulo() - 0 .. stride-1, also below 0 */
static int64_t modulo(int64_t at, int64_t stride) {
        return (at % stride + stride) % stride;
}

/* meet() - the parts of a and b inside their dims before @i and @j, with their first bytes at @at and @bt */
static bool meet(const struct ckv_footprint *a, uint32_t i, int64_t at, const struct ckv_footprint *b, uint32_t j, int64_t bt) {
        int64_t stride;

        if (!stretches_meet(at, inside(a, i), bt, inside(b, j)))
                return false;
        if (i == a->dim_count || j == b->dim_count || a->dims[i].stride != b->dims[j].stride)
                return true;
        stride = (int64_t)a->dims[i].stride;
        at = modulo(at, stride);
        bt = modulo(bt, stride);
        for (int64_t shift = -stride; shift <= stride; shift += stride)
                if (meet(a, i + 1, at, b, j + 1, bt + shift))
                        return true;
        return false;
}

bool ckv_footprints_overlap(const struct ckv_footprint *a, const struct ckv_footprint *b) {
        if (!ckv_places_overlap(&a->place, &b->place))
                return false;
        return meet(a, 0, (int64_t)a->place.start, b, 0, (int64_t)b->place.start);
}
