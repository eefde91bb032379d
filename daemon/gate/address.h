/* Who a message came from, as libzmq read it from the kernel. */
#ifndef CKV_GATE_ADDRESS_H
#define CKV_GATE_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

struct ckv_address {
        uint32_t uid, gid, pid;
};

/**
 * ckv_address_parse() - "localhost:<uid>:<gid>:<pid>", the Peer-Address of a message over ipc://
 * @text:        NULL is malformed
 * @ret_address: written only on success
 *
 * Return: false unless the text is exactly that: decimal, no sign, no leading zero, below 2^32, nothing behind it.
 */
bool ckv_address_parse(const char *text, struct ckv_address *ret_address);

/* ckv_address_equal() - the same user, group and process? */
static inline bool ckv_address_equal(const struct ckv_address *a, const struct ckv_address *b) {
        return a->uid == b->uid && a->gid == b->gid && a->pid == b->pid;
}

#endif
