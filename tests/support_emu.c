/*
 * See support_emu.h.  Device memory is memory of this process: an address of it
 * is a pointer.
 */
#include "tests/support_emu.h"

#include "tests/emu/launch.h"

#include <stdlib.h>
#include <string.h>

void emu_launch(const char *name, const struct ckv_k_launch *plan, void *parameters) {
        uint32_t grid[3] = { plan->grid_x, plan->grid_y, plan->grid_z }, block[3] = { plan->block, 1, 1 };
        ckv_emu_kernel *kernel = ckv_emu_find(name);

        ck_assert_msg(kernel != NULL, "%s", name);
        if (grid[0] > 0 && grid[1] > 0 && grid[2] > 0)
                kernel(grid, block, plan->shared_bytes, &parameters);
}

void *emu_room(size_t bytes) {
        void *at = malloc(bytes + (bytes == 0));

        ck_assert_ptr_nonnull(at);
        return memset(at, 0xff, bytes);
}

struct ckv_k_plane emu_plane(const struct ckv_plane *plane) {
        return (struct ckv_k_plane){
                .base = AT(plane->base), .block_stride = plane->block_stride, .head_stride = plane->head_stride,
                .token_outer = plane->token.outer, .token_inner = plane->token.inner, .dim_outer = plane->dim.outer,
                .dim_inner = plane->dim.inner, .token_tile = plane->base ? plane->token.tile : 1,
                .dim_tile = plane->base ? plane->dim.tile : 1, .dtype = plane->dtype, .dims = plane->dims, .scale = plane->scale,
        };
}

struct ckv_k_table emu_table(const struct ckv_row_table *table) {
        return (struct ckv_k_table){ .entries = AT(table->entries), .by_token = table->by_token,
                                     .tokens_per_block = table->tokens_per_block };
}
