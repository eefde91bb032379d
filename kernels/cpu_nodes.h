/*
 * Nodes of memory: which CPUs are near which part of it, and where a page is.
 * Only nodes count that have a CPU which this process may use.
 */
#ifndef CKV_KERNELS_CPU_NODES_H
#define CKV_KERNELS_CPU_NODES_H

#include "kernels/cpu_machine.h"

enum {
        CKV_CPU_NODES_MOST = 64,
        CKV_CPU_ANYWHERE = CKV_CPU_NODES_MOST,  /* in place of a node: not known, or one without a CPU for us */
};

/* Which CPUs a worker is held to */
enum ckv_cpu_pin {
        CKV_CPU_PIN_AUTO,               /* those of its node, if there are several nodes; else none */
        CKV_CPU_PIN_OFF,
        CKV_CPU_PIN_NODE,
        CKV_CPU_PIN_CORE,               /* one CPU */
};

struct ckv_cpu_nodes;

/* ckv__cpu_pin_parse() - "auto", "off", "node" or "core", as --pin has it. Return: is it one of them? */
bool ckv__cpu_pin_parse(const char *text, enum ckv_cpu_pin *ret_pin);

/**
 * ckv__cpu_nodes_new() - look at the machine
 * @sight:     borrowed until the end
 * @ret_nodes: owned by the caller, ckv__cpu_nodes_free()
 *
 * What cannot be read makes one node of all CPUs; more nodes than CKV_CPU_NODES_MOST are no nodes of their own.
 *
 * Return: 0 or -ENOMEM.
 */
int ckv__cpu_nodes_new(const struct ckv_cpu_sight *sight, struct ckv_cpu_nodes **ret_nodes);

/* ckv__cpu_nodes_free() - NULL is fine. Return: NULL. */
struct ckv_cpu_nodes *ckv__cpu_nodes_free(struct ckv_cpu_nodes *nodes);

/* ckv__cpu_nodes_count() - nodes that have a CPU for us, at least 1; they are numbered from 0 here */
uint32_t ckv__cpu_nodes_count(const struct ckv_cpu_nodes *nodes);

/**
 * ckv__cpu_nodes_pin() - hold the calling thread, worker @index, to its CPUs
 *
 * Workers are dealt out over the nodes by the number of CPUs that each has, and within a node over its CPUs in ascending order.
 *
 * Return: its node, or CKV_CPU_ANYWHERE if the thread is not held to one.
 */
uint32_t ckv__cpu_nodes_pin(const struct ckv_cpu_nodes *nodes, enum ckv_cpu_pin pin, uint32_t index);

/* ckv__cpu_nodes_here() - the node that the calling thread is on, or CKV_CPU_ANYWHERE */
uint32_t ckv__cpu_nodes_here(const struct ckv_cpu_nodes *nodes);

/* ckv__cpu_nodes_refresh() - before a list of questions: forget answers that are too old, or void */
void ckv__cpu_nodes_refresh(struct ckv_cpu_nodes *nodes);

/**
 * ckv__cpu_nodes_of() - the node that has the memory around @address, or CKV_CPU_ANYWHERE; one thread at a time
 *
 * Asks for one page in 2 MiB, and remembers the answer.
 */
uint32_t ckv__cpu_nodes_of(struct ckv_cpu_nodes *nodes, const void *address);

/* ckv__cpu_nodes_forget() - memory has been unmapped: what was found about pages is void; any thread */
void ckv__cpu_nodes_forget(struct ckv_cpu_nodes *nodes);

#endif
