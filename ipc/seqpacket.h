/*
 * SOCK_SEQPACKET messages with descriptors.  Used for the pair between core
 * and gate (no descriptors) and for the side socket (at most one, both ways).
 */
#ifndef CKV_IPC_SEQPACKET_H
#define CKV_IPC_SEQPACKET_H

#include <stddef.h>
#include <sys/types.h>

enum ckv_seqpacket_outcome {
        _CKV_SEQPACKET_E_SUCCESS,
        CKV_SEQPACKET_E_AGAIN,          /* nothing to read, or no room to write, now */
        CKV_SEQPACKET_E_CLOSED,         /* the other end is gone */
        CKV_SEQPACKET_E_MALFORMED,      /* wrong length or number of descriptors; all that came were closed */
};

/**
 * ckv_seqpacket_send() - send one message, never block, never raise SIGPIPE
 * @send_fd: descriptor to pass along, *NOT* consumed; -1 = none
 *
 * Return: 0, CKV_SEQPACKET_E_AGAIN, CKV_SEQPACKET_E_CLOSED, or -errno.
 */
int ckv_seqpacket_send(int fd, const void *message, size_t bytes, int send_fd);

/**
 * ckv_seqpacket_recv() - receive one message of exactly @bytes bytes, never block
 * @ret_fd: received descriptor (close-on-exec), owned by the caller, or -1; NULL: a descriptor is a breach
 *
 * Return: 0, a CKV_SEQPACKET_E_* outcome, or -errno.
 */
int ckv_seqpacket_recv(int fd, void *message, size_t bytes, int *ret_fd);

/* What to do with a descriptor that came and is not wanted; it is consumed. */
typedef void (*ckv_seqpacket_discard)(void *userdata, int fd);

/**
 * ckv_seqpacket_recv_discard() - the same, for descriptors whose close() may block
 * @discard: gets each descriptor that is not returned, instead of close()
 * @ret_fd:  NULL: the kernel drops what comes, unseen; a message that had a descriptor is malformed
 *
 * Return: as ckv_seqpacket_recv().
 */
int ckv_seqpacket_recv_discard(int fd, void *message, size_t bytes, ckv_seqpacket_discard discard, void *userdata, int *ret_fd);

#endif
