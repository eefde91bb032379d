/*
 * The core's end of one gate: the process, the pair, the two rings.  A gate is
 * started at once, restarted when it dies (after 5 deaths in 10 s once a
 * second, never switched off), killed when it breaks the record protocol or
 * does not answer GATE_PING for 3 s.  Its death costs its connections;
 * sessions, regions and stored answers stay.
 */
#ifndef CKV_DAEMON_GATE_LINK_H
#define CKV_DAEMON_GATE_LINK_H

#include "proto/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckv_daemon;
struct ckv_endpoint;
struct ckv_gate_link;

/**
 * ckv_gate_link_new() - start and supervise the gate of an endpoint
 * @endpoint: its stream_fd is handed to every gate, *NOT* consumed
 *
 * Return: 0 or -errno.
 */
int ckv_gate_link_new(struct ckv_daemon *daemon, struct ckv_endpoint *endpoint, struct ckv_gate_link **ret_link);

/* ckv_gate_link_free() - close the pair, wait briefly for the gate, then kill it. Return: NULL. */
struct ckv_gate_link *ckv_gate_link_free(struct ckv_gate_link *link);

/**
 * ckv_gate_link_send() - send a record to the gate, now or when there is room
 * @incarnation: the gate it is meant for (as given with the record that it answers): dropped silently if that gate died
 * @record:      type, flags, connection, ids and body filled in; the link fills in magic, version, sequence and ring fields
 * @attachment:  [bytes], copied; may be NULL with 0 bytes
 *
 * Never blocks. Return: 0, -ENOMEM, or -EMSGSIZE where @bytes is above CKV_ATTACHMENT_MAX_BYTES.
 */
int ckv_gate_link_send(struct ckv_gate_link *link, uint64_t incarnation, const struct ckv_record *record, const void *attachment,
                       size_t bytes);

/* ckv_gate_link_ready() - has a gate of this link ever answered a GATE_PING? True stays true. */
bool ckv_gate_link_ready(const struct ckv_gate_link *link);

/* ckv_gate_link_deaths() - gates that ended, or could not be started again, since the link was made */
uint64_t ckv_gate_link_deaths(const struct ckv_gate_link *link);

/* ckv_gate_link_kill() - the gate sent what no right gate sends: log @why once, SIGKILL; the usual restart follows */
void ckv_gate_link_kill(struct ckv_gate_link *link, const char *why);

/*
 * Implemented by daemon/dispatch.c: one record of a gate. Magic, version,
 * sequence, ring bounds and type range were checked; nothing else was.
 * @attachment is a private copy, borrowed for the call, 8-byte aligned.
 */
void ckv_dispatch_record(struct ckv_endpoint *endpoint, uint64_t incarnation, const struct ckv_record *record,
                         const uint8_t *attachment, uint32_t attachment_bytes);

#endif
