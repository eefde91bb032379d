/*
 * Tests run each path by its name, as an operator would force it.
 */
#include "tests/support_paths.h"

#include <check.h>

uint32_t paths_list(const struct ckv_cpu_path *ret_paths[PATHS_AT_MOST]) {
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count);
        uint32_t usable = 0;

        ck_assert_uint_le(count, PATHS_AT_MOST);
        for (size_t i = 0; i < count; i++)
                if (paths[i].usable())
                        ret_paths[usable++] = &paths[i];
        return usable;
}

const struct ckv_cpu_path *paths_widest(void) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST] = { NULL };

        return paths[paths_list(paths) - 1];
}

struct ckv_cpu_choice *paths_choice(const struct ckv_cpu_path *path) {
        struct ckv_cpu_choice *choice;

        ck_assert_int_eq(ckv__cpu_choice_new(path->name, &choice), 0);
        return choice;
}
