/*
 * Names of code paths.  A record has no strings, so the core puts a number in
 * place of a name, and the gate turns it back.  A path without a number would
 * be shown as "?": tests/test_cpu_choice.c looks for one.
 */
#include "proto/code_path.h"

#include "base/macros.h"

#include <string.h>

static const struct { uint32_t number; const char *name; } paths[] = {
#define PATH(name, number) { number, #name },
#include "proto/code_path.def"
#undef PATH
};

uint32_t ckv_code_path_parse(const char *name) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(paths); i++)
                if (strcmp(paths[i].name, name) == 0)
                        return paths[i].number;
        return 0;
}

const char *ckv_code_path_to_string(uint32_t number) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(paths); i++)
                if (paths[i].number == number)
                        return paths[i].name;
        return "?";
}
