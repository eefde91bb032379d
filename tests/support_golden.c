/*
 * A file of cases has one on each line, with parameters in the words of
 * algorithm.md.  An unknown word is an error: a case that silently ran with a
 * default would prove nothing.
 */
#include "tests/support_golden.h"

#include "base/macros.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const file_names[] = { "needle-1k.safetensors", "novel-4k.safetensors" };

/* Position of a word in a list that ends with NULL, or -1. */
static int word_index(const char *const *words, const char *word) {
        for (int i = 0; words[i]; i++)
                if (word && strcmp(words[i], word) == 0)
                        return i;
        return -1;
}

static int parse_ranges(const cJSON *array, struct golden_range **ret_ranges, uint32_t *ret_count) {
        uint32_t n = (uint32_t)cJSON_GetArraySize(array), i = 0;
        struct golden_range *ranges = calloc((size_t)n + 1, sizeof(*ranges));
        const cJSON *pair;

        if (!ranges)
                return -ENOMEM;
        cJSON_ArrayForEach(pair, array) {
                ranges[i].first = (uint32_t)cJSON_GetArrayItem(pair, 0)->valuedouble;
                ranges[i++].end = (uint32_t)cJSON_GetArrayItem(pair, 1)->valuedouble;
        }
        *ret_ranges = ranges;
        *ret_count = n;
        return 0;
}

/* A parameter whose value is a word. Return: was it one of those? */
static bool parse_word(struct golden_case *c, const char *key, const char *word) {
        static const char *const profiles[] = { "default", "paper", "kvpress", "retrieval", "vote", NULL };
        static const char *const scorers[] = { "", "window", "raw_qk", "drop", "knorm", "keydiff", NULL };
        static const char *const selectors[] = { "", "chunk", "chunk_at", "token", NULL };
        static const char *const pools[] = { "", "none", "avg", "max", NULL };
        static const char *const heads[] = { "", "sum", "max", NULL };
        static const char *const weights[] = { "", "l1", "l2", NULL };
        static const char *const units[] = { "", "mean", "sum", "max", NULL };
        static const char *const fills[] = { "", "lead", "best", "none", NULL };
        static const char *const joins[] = { "", "cut", "union", NULL };
        struct ckv_policy *p = &c->asked;
        const struct {
                const char *key;
                const char *const *words;
                void *value;
        } table[] = {
                { "profile", profiles, &p->profile },   { "scorer", scorers, &p->scorer },
                { "selector", selectors, &p->selector }, { "pool", pools, &p->pool },
                { "heads", heads, &p->heads },          { "group_heads", heads, &p->group_heads },
                { "value_weight", weights, &p->value_weight }, { "unit_reduce", units, &p->unit_reduce },
                { "fill", fills, &p->fill },            { "join", joins, &p->join },
        };
        int index;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(table); i++)
                if (strcmp(table[i].key, key) == 0) {
                        index = word_index(table[i].words, word);
                        memcpy(table[i].value, &index, sizeof(index));
                        return index >= 0;
                }
        if (strcmp(key, "file") != 0)
                return false;
        c->file = word && strcmp(word, file_names[0]) == 0 ? 0 : 1;
        return true;
}

static bool parse_number(struct golden_case *c, const char *key, double value) {
        struct ckv_policy *p = &c->asked;
        const struct {
                const char *key;
                uint32_t *value;
                uint32_t given;
        } table[] = {
                { "layer", &c->layers[0], 0 },  { "keep_ratio", &c->keep_ratio, 0 },
                { "query_rows", &c->query_rows, 0 },
                { "max_tokens", &c->max_tokens, 0 }, { "kept_count", &c->kept_count, 0 },
                { "window", &p->window, 0 },    { "chunk", &p->chunk, 0 },
                { "pool_size", &p->pool_size, 0 }, { "sliding", &p->sliding, 0 },
                { "sinks", &p->sinks, CKV_GIVEN_SINKS }, { "recent", &p->recent, CKV_GIVEN_RECENT },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(table); i++)
                if (strcmp(table[i].key, key) == 0) {
                        *table[i].value = (uint32_t)value;
                        p->given |= table[i].given;
                        return true;
                }
        if (strcmp(key, "softcap") != 0)
                return false;
        p->softcap = value;
        return true;
}

static int parse_layers(const cJSON *array, struct golden_case *c) {
        const cJSON *number;

        c->layer_count = 0;
        cJSON_ArrayForEach(number, array) {
                if (c->layer_count == CKV_ARRAY_SIZE(c->layers))
                        return -EBADMSG;
                c->layers[c->layer_count++] = (uint32_t)number->valuedouble;
        }
        return 0;
}

static int parse_case(const cJSON *object, struct golden_case *c) {
        const cJSON *item;

        c->layer_count = 1;
        cJSON_ArrayForEach(item, object) {
                int r = 0;
                bool known = true;

                if (strcmp(item->string, "kept") == 0)
                        r = parse_ranges(item, &c->kept, &c->kept_ranges);
                else if (strcmp(item->string, "layers") == 0)
                        r = parse_layers(item, c);
                else if (strcmp(item->string, "spans") == 0)
                        r = parse_ranges(item, &c->spans, &c->span_count);
                else if (cJSON_IsString(item))
                        known = parse_word(c, item->string, item->valuestring);
                else
                        known = cJSON_IsNumber(item) && parse_number(c, item->string, item->valuedouble);
                if (r < 0)
                        return r;
                if (!known) {
                        fprintf(stderr, "golden cases, line %u: unknown %s\n", c->line, item->string);
                        return -EBADMSG;
                }
        }
        return 0;
}

int golden_open(const char *name, struct golden *ret_golden) {
        struct golden golden = { 0 };
        _cleanup_free_ char *text = test_read_file(test_data_path(name));
        cJSON *array = text ? cJSON_Parse(text) : NULL;
        const cJSON *object;
        int r = 0;

        if (!array)
                return -ENOENT;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(file_names) && r == 0; i++)
                r = st_open(test_data_path(file_names[i]), &golden.files[i]);
        golden.cases = calloc((size_t)cJSON_GetArraySize(array) + 1, sizeof(*golden.cases));
        if (!golden.cases)
                r = -ENOMEM;
        if (r == 0)
                cJSON_ArrayForEach(object, array) {
                        struct golden_case *c = &golden.cases[golden.count++];

                        c->line = golden.count + 1;     /* line 1 is the bracket */
                        r = parse_case(object, c);
                        if (r < 0)
                                break;
                }
        cJSON_Delete(array);
        if (r < 0) {
                golden_close(&golden);
                return r;
        }
        *ret_golden = golden;
        return 0;
}

void golden_close(struct golden *golden) {
        for (uint32_t i = 0; i < golden->count; i++) {
                free(golden->cases[i].spans);
                free(golden->cases[i].kept);
        }
        free(golden->cases);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(golden->files); i++)
                st_close(&golden->files[i]);
        *golden = (struct golden){ 0 };
}

/* bf16 [rows, heads, d], row-major: one block that holds all rows */
static struct ckv_plane plane_of(const struct st_tensor *tensor) {
        uint64_t row_bytes = tensor->shape[1] * tensor->shape[2] * 2;

        return (struct ckv_plane){
                .base = (uint8_t *)(uintptr_t)tensor->data,
                .block_stride = tensor->bytes,
                .head_stride = tensor->shape[2] * 2,
                .token = { .tile = 1, .outer = row_bytes },
                .dim = { .tile = 1, .outer = 2 },
                .dtype = CKV_DTYPE_BF16,
                .dims = (uint32_t)tensor->shape[2],
                .scale = 1,
        };
}

static int find(const struct golden *golden, const struct golden_case *c, uint32_t layer, const char *what,
                struct st_tensor *ret_tensor) {
        char name[64];

        (void)snprintf(name, sizeof(name), "layer%u.%s", c->layers[layer], what);
        return st_find(&golden->files[c->file], name, ret_tensor);
}

static int fill_group(struct ckv_job_group *group, const struct golden_case *c) {
        struct ckv_span *spans = calloc((size_t)c->span_count + 1, sizeof(*spans));
        uint32_t *blocks = calloc(1, sizeof(*blocks));

        group->selection.spans = spans;
        group->table = (struct ckv_row_table){ .entries = blocks, .tokens_per_block = group->selection.rows };
        if (!spans || !blocks)
                return -ENOMEM;
        for (uint32_t i = 0; i < c->span_count; i++)
                spans[i] =
                        (struct ckv_span){ .first = c->spans[i].first, .count = c->spans[i].end - c->spans[i].first };
        group->selection.span_count = c->span_count;
        group->selection.keep_ratio = c->keep_ratio;
        group->selection.max_tokens = c->max_tokens;
        return 0;
}

/* One layer of the case; the newest query rows of the file are the last */
static int fill_layer(const struct golden *golden, const struct golden_case *c, uint32_t layer, struct ckv_job *job) {
        struct ckv_job_group *group = &job->groups[0];
        struct st_tensor q, k, v;
        uint64_t row_bytes;
        uint32_t given;

        if (find(golden, c, layer, "query", &q) || find(golden, c, layer, "key", &k) || find(golden, c, layer, "value", &v))
                return -EBADMSG;
        row_bytes = q.shape[1] * q.shape[2] * 2;
        given = c->query_rows > 0 ? c->query_rows : (uint32_t)q.shape[0];
        group->layers[layer] = (struct ckv_job_layer){
                .number = c->layers[layer], .k = plane_of(&k), .v = plane_of(&v),
                .query = q.data + (q.shape[0] - given) * row_bytes,
        };
        group->q_heads = (uint32_t)q.shape[1];
        group->kv_heads = (uint32_t)k.shape[1];
        group->head_dim_k = group->head_dim_v = (uint32_t)k.shape[2];
        group->selection.rows = (uint32_t)k.shape[0];
        job->queries = (struct ckv_job_queries){
                .dtype = CKV_DTYPE_BF16, .rows = given, .head_stride = q.shape[2] * 2, .row_stride = row_bytes,
        };
        return 0;
}

int golden_job(const struct golden *golden, const struct golden_case *c, struct ckv_job **ret_job,
               struct ckv_policy_fault *ret_fault) {
        _cleanup_(ckv_job_freep) struct ckv_job *job = ckv_job_new(1);
        struct ckv_job_group *group;
        int r = 0;

        if (!job)
                return -ENOMEM;
        group = &job->groups[0];
        if (!ckv_policy_resolve(&c->asked, &group->policy, ret_fault))
                return -EINVAL;
        group->layers = calloc(c->layer_count, sizeof(*group->layers));
        if (!group->layers)
                return -ENOMEM;
        group->layer_count = c->layer_count;
        for (uint32_t i = 0; i < c->layer_count && r == 0; i++)
                r = fill_layer(golden, c, i, job);
        if (r == 0)
                r = fill_group(group, c);
        if (r < 0)
                return r;
        *ret_job = ckv_steal(&job);
        return 0;
}


bool golden_equal(const struct golden_case *c, const struct ckv_kept *kept) {
        if (kept->run_count != c->kept_ranges)
                return false;
        for (uint32_t i = 0; i < c->kept_ranges; i++)
                if (kept->runs[i].src != c->kept[i].first || kept->runs[i].len != c->kept[i].end - c->kept[i].first)
                        return false;
        return true;
}
