/*
 * The control page (protocol.md 6): a sealed memfd that a client makes, hands
 * over with ATTACH, and shares with the core.  It says how far a job has come,
 * by a state word that both sides change by compare-and-swap, and holds all
 * that a repair needs after the core died in a move: the kept sets and the
 * exact number of finished steps.
 *
 *   struct ckv_control_header
 *   struct ckv_control_slot [slots]       slot number n of the wire is entry n - 1
 *   kept areas                            kept_offset + (n - 1) * kept_bytes
 *
 * The page is output only: the core acts on a private copy of everything but
 * the state word, so that a client that scribbles on it harms itself.  Whoever
 * repairs (the client library, or a new core) reads a slot as if a stranger had
 * written it.
 *
 * A kept area holds for each set six words {group, layer_first, kv_head,
 * physical_before, physical_len, number of run words}, then its runs as words
 * (form of KeptSet.runs): the words that REPLY_IN_REGION and REPLY_IN_SLOT
 * write and that kept_digest is made of.
 */
#ifndef CKV_PROTO_CONTROL_H
#define CKV_PROTO_CONTROL_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define CKV_CONTROL_MAGIC UINT32_C(0x50564b43)   /* "CKVP" */
#define CKV_CONTROL_VERSION 1
#define CKV_CONTROL_BYTES_MAX (UINT64_C(16) << 20)
#define CKV_CONTROL_KEPT_UNIT UINT32_C(4096)     /* kept_bytes is a multiple of it */

struct ckv_control_header {             /* written by the client, before ATTACH; boot_id and heartbeat by the core */
        uint32_t magic;                 /*  0 */
        uint16_t version, slot_bytes;   /*  4 CKV_CONTROL_VERSION; sizeof(struct ckv_control_slot) */
        uint32_t slots;                 /*  8 1 .. limit CONTROL_SLOTS */
        uint32_t kept_offset;           /* 12 a multiple of CKV_CONTROL_KEPT_UNIT, behind the slots */
        uint32_t kept_bytes, zero;      /* 16 of one slot's kept area, a multiple of CKV_CONTROL_KEPT_UNIT, at least one */
        uint64_t size;                  /* 24 of the memfd: kept_offset + slots * kept_bytes */
        uint8_t boot_id[16];            /* 32 of the core that has it attached */
        uint64_t heartbeat_ns;          /* 48 CLOCK_MONOTONIC, at least once a second while the core's loop turns */
        uint64_t zero2;                 /* 56 */
};

/*
 * word = use << 32 | phase (enum ckv_phase, Phase of chunkkv.proto).  The client swaps an ended or free word to
 * {use + 1, SUBMITTED} before it sends Compress with control_use = use + 1, and may swap SUBMITTED, SCORING or SELECTED to
 * CANCELLED.  All other swaps are the core's.
 */
struct ckv_control_slot {
        uint64_t word;                  /*   0 both, by compare-and-swap */
        uint64_t request_id;            /*   8 this and the next three: core, before SCORING */
        uint64_t generation;            /*  16 */
        uint64_t table_hash;            /*  24 FNV-1a 64 over each group's number, physical_len, table form and table words */
        uint64_t deadline_ns;           /*  32 */
        uint8_t boot_id[16];            /*  40 core, before SCORING */
        uint32_t cache_id;              /*  56 core, before SCORING */
        uint32_t code;                  /*  60 Code of the answer, core, before an end state */
        uint32_t batch_rows;            /*  64 most rows of a step, 0: no cap; core, before COMMITTING */
        uint32_t steps;                 /*  68 of the move, 0: single pass, or nothing moves in place; core, before COMMITTING */
        uint32_t steps_done;            /*  72 exact; release store after the rows of step steps_done - 1 are all written */
        uint32_t set_count;             /*  76 sets in the kept area; core, before SELECTED */
        uint32_t kept_used;             /*  80 bytes of the kept area in use */
        uint32_t kept_crc;              /*  84 CRC-32C (Castagnoli) over them */
        uint32_t mode;                  /*  88 Mode of the job; core, before SCORING */
        uint32_t zero[9];               /*  92 */
};

/* ckv_control_word() - the word of a slot in its @use-th use and in @phase */
static inline uint64_t ckv_control_word(uint32_t use, uint32_t phase) {
        return (uint64_t)use << 32 | phase;
}

static_assert(sizeof(struct ckv_control_header) == 64, "control header");
static_assert(offsetof(struct ckv_control_header, boot_id) == 32 && offsetof(struct ckv_control_header, heartbeat_ns) == 48, "as documented");
static_assert(sizeof(struct ckv_control_slot) == 128, "control slot");
static_assert(offsetof(struct ckv_control_slot, boot_id) == 40 && offsetof(struct ckv_control_slot, batch_rows) == 64 &&
              offsetof(struct ckv_control_slot, set_count) == 76, "as documented");

#endif
