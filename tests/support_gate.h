/*
 * A fake core around a real chunkkv-gate, and a client that talks to it over
 * ZeroMQ.  Every wait has an end, so a test that fails does not hang.
 */
#ifndef CKV_TESTS_SUPPORT_GATE_H
#define CKV_TESTS_SUPPORT_GATE_H

#include "ipc/ring.h"
#include "proto/chunkkv.pb-c.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <zmq.h>

enum { WAIT_MSEC = 20000 };

struct core {
        char dir[64], path[96];
        int listen_fd;                  /* survives gates */
        int stderr_fd;                  /* a file: what gates wrote */
        pid_t gate;
        int pair;
        struct ckv_ring to_core, to_gate;
        uint64_t sent, received;
        struct ckv_record_limits limits;
        void *context;                  /* of the clients */
};

/* core_init() - listening socket, one gate, LIMITS sent; core_deinit() ends the gate if it is still there */
void core_init(struct core *core);
void core_deinit(struct core *core);

/* core_start_gate() - another gate on the same listening socket; the one before must be gone */
void core_start_gate(struct core *core);

/* core_kill_gate() - SIGKILL and wait; core_end_pair() - close our end. Return: exit status as of waitpid(). */
int core_kill_gate(struct core *core);
int core_end_pair(struct core *core);

/* core_await_exit() - the gate ends by itself */
int core_await_exit(struct core *core);

/* core_send() - head.magic, version, sequence and ring fields are filled in. Return: false if the pair is full. */
bool core_send(struct core *core, struct ckv_record *record, const void *attachment, uint32_t bytes);

/* core_send_raw() - exactly this */
void core_send_raw(struct core *core, const struct ckv_record *record, size_t bytes);

/* core_recv() - the next record but STATS; the attachment is copied to @attachment if that is not NULL (room for 2 MiB) */
void core_recv(struct core *core, struct ckv_record *ret_record, void *attachment);

/* core_recv_type() - the same, skipping PONGs, and of the type expected */
void core_recv_type(struct core *core, enum ckv_record_type type, struct ckv_record *ret_record, void *attachment);

/* core_ask_stats() - ping the gate; *ret_stats changes if there is something new. All else that comes is skipped. */
void core_ask_stats(struct core *core, struct ckv_record_stats *ret_stats);

/* core_quiet() - no record but PONGs and STATS comes within @msec */
bool core_quiet(struct core *core, int msec);

/* core_answer() - head of an answer to @request */
struct ckv_record core_answer(const struct core *core, const struct ckv_record *request, enum ckv_record_type type);

/* client_new() - a socket of @type (ZMQ_DEALER, ZMQ_REQ) with the usual options; client_open(): connected as well */
void *client_new(struct core *core, int type);
void client_connect(struct core *core, void *client);
void *client_open(struct core *core, int type);

/* client_send_bytes(), client_send() - one frame; client_offer(): false if the queue is full for ZMQ_SNDTIMEO */
void client_send_bytes(void *client, const void *bytes, size_t count);
bool client_offer(void *client, const Chunkkv__V1__Request *request);
void client_send(void *client, const Chunkkv__V1__Request *request);

/* client_recv() - unpacked, free with chunkkv__v1__response__free_unpacked(); NULL after @msec without one */
Chunkkv__V1__Response *client_recv(void *client, int msec);

/* client_expect() - a reply with this status arrives; it is freed */
void client_expect(void *client, uint64_t request_id, Chunkkv__V1__Code code, const char *field);

/* ping() - the smallest legal request */
Chunkkv__V1__Request *ping(uint64_t request_id);

/* The boot id and session token that requests of the tests carry: 16 bytes of 0xb0 and 0x70. */
extern uint8_t boot_id[16], session_token[16];

#endif
