/*
 * The nodes as the system lists them, less what this process may not use.
 * Numbers may have holes, a node may have memory and no CPU, and an affinity
 * mask may leave a node out: rows there are anybody's.  CPUs that no node lists
 * are near nothing, and no worker is dealt to them.
 *
 * Where pages are is asked for as items are handed out.  A mapping of a whole
 * cache is placed by whoever touched it first, in large stretches, and an answer
 * takes about as long as reading a few hundred bytes from memory; so one page
 * stands for 2 MiB, and a small table that any new stretch may overwrite is
 * enough.  An answer that has become wrong, because pages have moved, costs time
 * and nothing else; so it is kept for ten seconds.
 */
#include "kernels/cpu_nodes.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
        STRETCH_LOG2 = 21,
        STRETCHES = 1024,               /* that answers are kept of */
        NUMBERS_MOST = 1024,            /* of nodes, in Linux */
};

#define KEPT_NSEC (10 * CKV_NSEC_PER_SEC)

struct node {
        struct ckv_cpu_set cpus;
        uint32_t count;
};

struct ckv_cpu_nodes {
        const struct ckv_cpu_sight *sight;
        struct node *nodes;                     /* [count] */
        uint32_t count;
        uint8_t of_number[NUMBERS_MOST];        /* CKV_CPU_ANYWHERE: none of ours */

        atomic_bool forget;
        uint64_t until_nsec;                    /* then the answers are void */
        struct {
                uintptr_t stretch;              /* address >> STRETCH_LOG2; 0: not used */
                uint8_t node;
        } answers[STRETCHES];
};

bool ckv__cpu_pin_parse(const char *text, enum ckv_cpu_pin *ret_pin) {
        static const char *const names[] = {
                [CKV_CPU_PIN_AUTO] = "auto", [CKV_CPU_PIN_OFF] = "off", [CKV_CPU_PIN_NODE] = "node", [CKV_CPU_PIN_CORE] = "core",
        };

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(names); i++)
                if (strcmp(text, names[i]) == 0) {
                        *ret_pin = (enum ckv_cpu_pin)i;
                        return true;
                }
        return false;
}

/* A list of numbers in a file; empty if it cannot be read */
static struct ckv_cpu_set read_set(const char *dir, const char *name) {
        char path[PATH_MAX], text[8192] = "";
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
        file = fopen(path, "re");
        if (file) {
                if (!fgets(text, sizeof(text), file))
                        text[0] = 0;
                (void)fclose(file);
        }
        return ckv__cpu_set_parse(text);
}

/* Return: how many of our CPUs the node of this number has. */
static uint32_t read_node(const struct ckv_cpu_sight *sight, uint32_t number, const struct ckv_cpu_set *ours,
                          struct ckv_cpu_set *ret_cpus) {
        char name[32];

        (void)snprintf(name, sizeof(name), "node%u/cpulist", number);
        *ret_cpus = read_set(sight->nodes_dir, name);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(ours->bits); i++)
                ret_cpus->bits[i] &= ours->bits[i];
        return ckv__cpu_set_count(ret_cpus);
}

/* Return: 0 or -ENOMEM; no node if none is found, or too many. */
static int read_nodes(struct ckv_cpu_nodes *nodes, const struct ckv_cpu_set *ours) {
        struct ckv_cpu_set online = read_set(nodes->sight->nodes_dir, "online");
        struct node node;

        memset(nodes->of_number, CKV_CPU_ANYWHERE, sizeof(nodes->of_number));
        for (uint32_t number = 0; number < NUMBERS_MOST; number++) {
                struct node *grown;

                if (!ckv__cpu_set_has(&online, number))
                        continue;
                node.count = read_node(nodes->sight, number, ours, &node.cpus);
                if (node.count == 0)
                        continue;
                if (nodes->count == CKV_CPU_NODES_MOST) {
                        nodes->count = 0;
                        return 0;
                }
                grown = reallocarray(nodes->nodes, nodes->count + 1U, sizeof(*grown));
                if (!grown)
                        return -ENOMEM;
                nodes->nodes = grown;
                nodes->of_number[number] = (uint8_t)nodes->count;
                nodes->nodes[nodes->count++] = node;
        }
        return 0;
}

int ckv__cpu_nodes_new(const struct ckv_cpu_sight *sight, struct ckv_cpu_nodes **ret_nodes) {
        struct ckv_cpu_nodes *nodes = calloc(1, sizeof(*nodes));
        struct ckv_cpu_set ours = { 0 };
        int r = 0;

        if (!nodes)
                return ckv_error_origin(-ENOMEM);
        nodes->sight = sight;
        if (sight->affinity(&ours))
                r = read_nodes(nodes, &ours);
        if (r == 0 && nodes->count == 0) {
                free(nodes->nodes);
                nodes->nodes = calloc(1, sizeof(*nodes->nodes));
                r = nodes->nodes ? 0 : -ENOMEM;
                if (r == 0) {
                        nodes->nodes[0] = (struct node){ .cpus = ours, .count = ckv__cpu_set_count(&ours) };
                        nodes->count = 1;
                }
        }
        if (r < 0) {
                (void)ckv__cpu_nodes_free(nodes);
                return ckv_error_origin(r);
        }
        *ret_nodes = nodes;
        return 0;
}

struct ckv_cpu_nodes *ckv__cpu_nodes_free(struct ckv_cpu_nodes *nodes) {
        if (nodes)
                free(nodes->nodes);
        free(nodes);
        return NULL;
}

uint32_t ckv__cpu_nodes_count(const struct ckv_cpu_nodes *nodes) {
        return nodes->count;
}

/* ---- workers */

/* The next worker goes where the fewest are for the CPUs there. Return: node of worker @index, and how many it has before it. */
static uint32_t deal(const struct ckv_cpu_nodes *nodes, uint32_t index, uint32_t *ret_before) {
        uint32_t dealt[CKV_CPU_NODES_MOST] = { 0 }, best = 0;

        for (uint32_t i = 0; i <= index; i++) {
                best = 0;
                for (uint32_t n = 1; n < nodes->count; n++)
                        if ((uint64_t)dealt[n] * nodes->nodes[best].count < (uint64_t)dealt[best] * nodes->nodes[n].count)
                                best = n;
                dealt[best]++;
        }
        *ret_before = dealt[best] - 1;
        return best;
}

/* The CPU with so many of the set before it */
static uint32_t cpu_at(const struct ckv_cpu_set *cpus, uint32_t before) {
        for (uint32_t cpu = 0; cpu < CKV_CPUS_MOST; cpu++)
                if (ckv__cpu_set_has(cpus, cpu) && before-- == 0)
                        return cpu;
        return 0;
}

uint32_t ckv__cpu_nodes_pin(const struct ckv_cpu_nodes *nodes, enum ckv_cpu_pin pin, uint32_t index) {
        const struct node *node;
        uint32_t at, before;
        struct ckv_cpu_set cpus = { 0 };

        if (pin == CKV_CPU_PIN_OFF || (pin == CKV_CPU_PIN_AUTO && nodes->count == 1))
                return CKV_CPU_ANYWHERE;
        at = deal(nodes, index, &before);
        node = &nodes->nodes[at];
        if (node->count == 0)
                return CKV_CPU_ANYWHERE;
        if (pin == CKV_CPU_PIN_CORE)
                ckv__cpu_set_add(&cpus, cpu_at(&node->cpus, before % node->count));
        else
                cpus = node->cpus;
        return nodes->sight->bind(&cpus) ? at : CKV_CPU_ANYWHERE;
}

uint32_t ckv__cpu_nodes_here(const struct ckv_cpu_nodes *nodes) {
        int cpu = nodes->sight->cpu();

        for (uint32_t n = 0; cpu >= 0 && n < nodes->count; n++)
                if (ckv__cpu_set_has(&nodes->nodes[n].cpus, (uint32_t)cpu))
                        return n;
        return CKV_CPU_ANYWHERE;
}

/* ---- pages */

void ckv__cpu_nodes_refresh(struct ckv_cpu_nodes *nodes) {
        uint64_t now = ckv_now_nsec();

        /* acquire: what is mapped since then is asked about */
        if (now < nodes->until_nsec && !atomic_exchange_explicit(&nodes->forget, false, memory_order_acquire))
                return;
        memset(nodes->answers, 0, sizeof(nodes->answers));
        nodes->until_nsec = now + KEPT_NSEC;
}

uint32_t ckv__cpu_nodes_of(struct ckv_cpu_nodes *nodes, const void *address) {
        uintptr_t stretch = (uintptr_t)address >> STRETCH_LOG2;
        uint32_t at = (uint32_t)(stretch % STRETCHES);

        if (nodes->answers[at].stretch != stretch) {
                int number = nodes->sight->node_of(address);

                nodes->answers[at].stretch = stretch;
                nodes->answers[at].node = number >= 0 && number < NUMBERS_MOST ? nodes->of_number[number] : CKV_CPU_ANYWHERE;
        }
        return nodes->answers[at].node;
}

void ckv__cpu_nodes_forget(struct ckv_cpu_nodes *nodes) {
        /* release: before whatever is mapped there next */
        atomic_store_explicit(&nodes->forget, true, memory_order_release);
}
