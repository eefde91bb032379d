/*
 * struct chunkkv_policy and message Policy are the same list of parameters, so
 * one table of names makes both directions, and none can be forgotten in one
 * of them.
 */
#include "clients/c/src/client.h"

#define NUMBERS(X) \
        X(layer_first) X(window) X(chunk) X(pool_size) X(reuse) X(align) X(sliding) X(spike_keep) X(page) X(beta) \
        X(heavy) X(recent_part) X(vote_rows) X(scale) X(softcap)
#define ENUMS(X) \
        X(profile, Profile) X(scorer, Scorer) X(selector, Selector) X(pool, Pool) X(norm, Norm) X(heads, Heads) \
        X(value_weight, ValueWeight) X(unit_reduce, UnitReduce) X(layers, Layers) X(fill, Fill) X(tight, Tight) \
        X(join, Join) X(group_heads, GroupHeads) X(window_reduce, WindowReduce) X(layer_reduce, LayerReduce)
#define COUNTS(X) X(sinks) X(recent) X(min_tokens) X(contrast_first) X(contrast_end) X(mute)

static Chunkkv__V1__Count *count_encode(struct ckv__arena *arena, struct chunkkv_count count) {
        Chunkkv__V1__Count *message;

        if (!count.given)
                return NULL;
        message = ckv__arena_take(arena, 1, sizeof(*message));
        if (!message)
                return NULL;
        chunkkv__v1__count__init(message);
        message->value = count.value;
        return message;
}

static struct chunkkv_count count_decode(const Chunkkv__V1__Count *message) {
        return (struct chunkkv_count){ .given = message != NULL, .value = message ? message->value : 0 };
}

Chunkkv__V1__Policy *ckv__policy_encode(struct ckv__arena *arena, const struct chunkkv_policy *policy) {
        Chunkkv__V1__Policy *message = ckv__arena_take(arena, 1, sizeof(*message));

        if (!message)
                return NULL;
        chunkkv__v1__policy__init(message);
#define X(name) message->name = policy->name;
        NUMBERS(X)
#undef X
#define X(name, type) message->name = (Chunkkv__V1__##type)policy->name;
        ENUMS(X)
#undef X
#define X(name) message->name = count_encode(arena, policy->name);
        COUNTS(X)
#undef X
        return message;
}

void ckv__policy_decode(const Chunkkv__V1__Policy *message, struct chunkkv_policy *ret_policy) {
#define X(name) ret_policy->name = message->name;
        NUMBERS(X)
#undef X
#define X(name, type) ret_policy->name = (uint32_t)message->name;
        ENUMS(X)
#undef X
#define X(name) ret_policy->name = count_decode(message->name);
        COUNTS(X)
#undef X
}
