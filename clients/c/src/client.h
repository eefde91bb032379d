/*
 * What the files of the client library share: the connection, a request on its
 * way, and a bump allocator for messages that live until they are packed.
 * Nothing in here is public.
 */
#ifndef CKV_CLIENTS_CLIENT_H
#define CKV_CLIENTS_CLIENT_H

#include "base/clock.h"
#include "base/macros.h"
#include "clients/c/include/chunkkv.h"
#include "proto/chunkkv.pb-c.h"
#include "proto/side.h"

#include <pthread.h>

#define CKV__TIMEOUT_DEFAULT_MS 5000u
#define CKV__TIMEOUT_MAX_MS 600000u     /* the daemon takes no deadline farther ahead */

/* One request: the bytes that are sent, and sent again, until its answer is here. */
struct ckv__request {
        struct ckv__request *next;
        uint64_t id;
        uint64_t handle;                /* what the caller knows it by: its first id */
        uint64_t deadline_nsec;         /* also in the bytes */
        uint64_t repeat_nsec;           /* nothing heard until then: send again */
        uint8_t *bytes;
        size_t size;
        uint32_t mode;                  /* chunkkv_mode of a compress request, else 0 */
        uint32_t reply_form;            /* chunkkv_reply_form that the caller wants */
        struct ckv__scratch *tables, *sets;     /* memory of ours that the request names, or NULL */
        struct ckv__writing *writing;   /* the job that it is about, if its end must be known; the client's */
        uint64_t target;                /* what a Cancel of it names, if not its own id */
        bool waited_for;                /* a thread waits for it already */
        bool due;                       /* to be sent as soon as the socket takes it */
        bool sent;                      /* at least one copy has left */
        bool sent_again;                /* and one more */
        bool orphan;                    /* the daemon that it was sent to is dead, and there is a new one */
        Chunkkv__V1__Response *reply;   /* NULL = not here yet */
};

struct chunkkv_client {
        pthread_mutex_t mutex;          /* guards all of it, see wait.c */
        pthread_cond_t news;
        bool polling;                   /* a thread sleeps in poll() without the mutex */
        int wake_fd;                    /* eventfd: ends that sleep */
        void *zmq_context;
        void *zmq_socket;
        int zmq_fd;                     /* ZeroMQ's own */
        int side_fd;                    /* -1 = none, or closed by the daemon: it has ended the session */
        int core_pidfd;                 /* readable = the core is dead */
        bool dead;
        bool reviving;                  /* a thread goes over to a new daemon, and may sleep in it: others wait */
        bool in_session;
        uint8_t boot_id[16], session_token[16];
        int64_t clock_offset_nsec;      /* added to our CLOCK_MONOTONIC it is the daemon's; 0 but in a time namespace */
        uint64_t last_id;
        uint64_t last_cookie;
        struct ckv__request *requests;
        struct ckv__scratch *scratch;
        struct ckv__page *page;         /* control page; without memory if there is none */
        struct ckv__writing *writings;
        struct ckv__region *regions;    /* what is registered, and what was with a daemon that died */
        struct ckv__cache *caches;
        uint32_t last_handle;
        char *prefix, *name;            /* for the next daemon */
        bool no_roll_forward;
        struct chunkkv_info info;
};

/* Public functions hold the mutex: _locked_ struct chunkkv_client *held = ckv__lock(client) */
static inline struct chunkkv_client *ckv__lock(struct chunkkv_client *client) {
        (void)pthread_mutex_lock(&client->mutex);
        while (client->reviving)
                (void)pthread_cond_wait(&client->news, &client->mutex);
        return client;
}
static inline void ckv__unlockp(struct chunkkv_client **client) {
        (void)pthread_mutex_unlock(&(*client)->mutex);
}
#define _locked_ _cleanup_(ckv__unlockp)

/* ---- error.c */

/**
 * ckv__fault() - report what the library itself found
 * @ret_error: may be NULL
 * @error:     -errno
 * @field:     what is at fault, or ""
 *
 * Return: @error.
 */
int ckv__fault(struct chunkkv_error *ret_error, int error, const char *field, const char *format, ...) _printf_(4, 5);

/* ckv__refusal() - hand on the daemon's refusal. Return: -EREMOTEIO. */
int ckv__refusal(struct chunkkv_error *ret_error, const Chunkkv__V1__Response *reply);

/**
 * ckv__list_check() - is there a list where its length says so?
 * @format: path of the list, for chunkkv_error.field
 *
 * Return: 0 or -EINVAL.
 */
int ckv__list_check(const void *list, size_t count, struct chunkkv_error *ret_error, const char *format, ...)
        _printf_(4, 5);

/* ckv__core_died() - the one wording of it; @tail is appended. Return: -EOWNERDEAD. */
int ckv__core_died(struct chunkkv_error *ret_error, const char *tail);

/* ---- arena.c */

struct ckv__arena_block;

/* Zeroed pieces that are freed together.  Start with {0}; once memory ran out every further piece is NULL. */
struct ckv__arena {
        struct ckv__arena_block *blocks;
        bool failed;
};

/* ckv__arena_take() - @count zeroed pieces of @size bytes; NULL without memory, and then arena->failed is set */
void *ckv__arena_take(struct ckv__arena *arena, size_t count, size_t size);
/* ckv__arena_words() - a copy of [count] words */
uint32_t *ckv__arena_words(struct ckv__arena *arena, const uint32_t *words, size_t count);
/* ckv__arena_deinit() - free all pieces */
void ckv__arena_deinit(struct ckv__arena *arena);

/* ---- side.c */

/**
 * ckv__side_connect() - connect the side socket and attach
 * @ret_token: of ATTACHED, for Hello
 *
 * Fills in side_fd, core_pidfd and boot_id of the client, and whether the
 * daemon has taken its control page.
 *
 * Return: 0 or -errno with @ret_error filled in.
 */
int ckv__side_connect(struct chunkkv_client *client, const char *prefix, uint64_t deadline_nsec,
                      uint8_t ret_token[static 16], struct chunkkv_error *ret_error);

enum { CKV__TOKEN = 16 };               /* bytes of what stands for an offered descriptor */

/**
 * ckv__side_offer() - send a memfd or a VMM allocation to the daemon
 * @fd:        *NOT* consumed
 * @size:      of the whole file or allocation
 * @ret_token: for RegisterRegion, good once, for 60 s
 *
 * Return: 0 or -errno with @ret_error filled in.
 */
int ckv__side_offer(struct chunkkv_client *client, enum ckv_side_kind kind, int fd, uint64_t size, uint64_t deadline_nsec,
                    uint8_t ret_token[static 16], struct chunkkv_error *ret_error);

/* ckv__side_drain() - read and drop notices, whose facts come with the answers too; closes after the daemon did */
void ckv__side_drain(struct chunkkv_client *client);

/* ---- exchange.c */

/* ckv__zmq_connect() - make the request socket, which connects by itself. Return: 0 or -errno with @ret_error. */
int ckv__zmq_connect(struct chunkkv_client *client, const char *prefix, struct chunkkv_error *ret_error);
/* ckv__zmq_close() - close the request socket; what was not sent is dropped */
void ckv__zmq_close(struct chunkkv_client *client);

/* ckv__deadline() - absolute time of a timeout, 0 = the default, that began when the caller asked, before it waited for the
 * mutex: who leads the others to a new daemon holds it long. Return: 0 or -EINVAL with @ret_error filled in. */
int ckv__deadline(uint64_t asked_nsec, uint32_t timeout_ms, uint64_t *ret_deadline_nsec, struct chunkkv_error *ret_error);

/**
 * ckv__request_new() - number, stamp, pack and queue a request
 * @message:     its body is set; the envelope is filled in here
 * @mode:        chunkkv_mode of a compress request, else 0
 * @ret_request: the client's list owns it too, until ckv__request_free()
 *
 * Return: 0 or -errno with @ret_error filled in.
 */
int ckv__request_new(struct chunkkv_client *client, Chunkkv__V1__Request *message, uint32_t mode,
                     uint64_t deadline_nsec, struct ckv__request **ret_request, struct chunkkv_error *ret_error);
/* ckv__request_find() - request of this number, or NULL */
struct ckv__request *ckv__request_find(const struct chunkkv_client *client, uint64_t id);
/* ckv__request_find_handle() - request that the caller knows by this number, or NULL */
struct ckv__request *ckv__request_find_handle(const struct chunkkv_client *client, uint64_t handle);
/**
 * ckv__request_again() - pack a refused request anew, under a new number but for the caller
 * @message: unpacked from its bytes and changed; not taken over
 *
 * Return: 0 or -ENOMEM, and then the request is as it was.
 */
int ckv__request_again(struct chunkkv_client *client, struct ckv__request *request, Chunkkv__V1__Request *message);
/* ckv__request_free() - unlink and free; NULL is fine. Return: NULL. */
struct ckv__request *ckv__request_free(struct chunkkv_client *client, struct ckv__request *request);

/* ---- wait.c */

/* ckv__send() - hand what is due to ZeroMQ; what it does not take stays due for ckv__wait() */
void ckv__send(struct chunkkv_client *client);

/**
 * ckv__wait() - send what is due, receive, repeat, until one of two requests has its answer
 * @second:     may be NULL
 * @until_nsec: give up then
 *
 * Return: 0; -ETIMEDOUT; -EOWNERDEAD; -EIO if ZeroMQ fails.
 */
int ckv__wait(struct chunkkv_client *client, const struct ckv__request *first, const struct ckv__request *second,
              uint64_t until_nsec);

/* ---- exchange.c, on top of wait.c */

/**
 * ckv__call() - a whole round trip
 * @body:      Response body that a success must bring; 0 = none
 * @ret_reply: the caller's, freed with ckv__reply_freep(); may be NULL
 *
 * Return: 0 or -errno with @ret_error filled in.
 */
int ckv__call(struct chunkkv_client *client, Chunkkv__V1__Request *message, uint64_t deadline_nsec,
              Chunkkv__V1__Response__BodyCase body, Chunkkv__V1__Response **ret_reply, struct chunkkv_error *ret_error);

/**
 * ckv__request_finish() - wait for the answer to a job, its commit or its repair, whoever dies (compress.c)
 * @request: freed
 *
 * Return: as chunkkv_compress().
 */
int ckv__request_finish(struct chunkkv_client *client, struct ckv__request *request, struct chunkkv_result **ret_result,
                        struct chunkkv_error *ret_error);

/* ckv__reply_check() - is it a success with this body? Return: 0, -EREMOTEIO or -EPROTO with @ret_error filled in. */
int ckv__reply_check(const Chunkkv__V1__Response *reply, Chunkkv__V1__Response__BodyCase body,
                     struct chunkkv_error *ret_error);

static inline void ckv__reply_freep(Chunkkv__V1__Response **reply) {
        if (*reply)
                chunkkv__v1__response__free_unpacked(*reply, NULL);
}
#define _cleanup_reply_ _cleanup_(ckv__reply_freep)

/* ---- device.c */

/* ckv__device_copy() - with descriptors of its own; ends with chunkkv_device_release() and free(). Return: NULL without memory or
 * descriptors. */
struct chunkkv_device_memory *ckv__device_copy(const struct chunkkv_device_memory *memory);

/* ---- region.c */

struct ckv__region;

/* ckv__region_send() - offer and register; @ret_id is the daemon's number */
int ckv__region_send(struct chunkkv_client *client, const struct ckv__region *region, uint64_t deadline_nsec,
                     uint32_t *ret_id, struct chunkkv_error *ret_error);
/* ckv__region_register() - chunkkv_region_register() with the mutex held, until an absolute time */
int ckv__region_register(struct chunkkv_client *client, const struct chunkkv_region *region, uint64_t deadline_nsec,
                         uint32_t *ret_region_id, struct chunkkv_error *ret_error);
/* ckv__region_unregister() - chunkkv_region_unregister() with the mutex held, until an absolute time */
int ckv__region_unregister(struct chunkkv_client *client, uint32_t region_id, uint64_t deadline_nsec,
                           struct chunkkv_error *ret_error);

/* ---- cache.c */

/* ckv__cache_send() - register; the planes of @body name handles, and then the daemon's numbers; @ret_fast_path may be NULL */
int ckv__cache_send(struct chunkkv_client *client, Chunkkv__V1__RegisterCache *body, uint64_t deadline_nsec,
                    uint32_t *ret_id, bool *ret_fast_path, struct chunkkv_error *ret_error);

/* ---- layout.c */

/* ckv__dtype_bytes() - of one element; 0 for a type that there is not */
uint32_t ckv__dtype_bytes(uint32_t dtype);

/* ---- scratch.c */

/* Shared memory of the library's own, for what does not fit a message.  Kept for the next one. */
struct ckv__scratch {
        struct ckv__scratch *next;
        struct chunkkv_memory memory;
        uint32_t region_id;
        bool busy;                      /* a request names it */
};

/**
 * ckv__scratch_take() - registered memory of at least @size bytes, for one request
 * @ret_scratch: the client's, goes back with ckv__scratch_release()
 *
 * Return: 0 or -errno with @ret_error filled in.
 */
int ckv__scratch_take(struct chunkkv_client *client, uint64_t size, uint64_t deadline_nsec,
                      struct ckv__scratch **ret_scratch, struct chunkkv_error *ret_error);
/* ckv__scratch_release() - nothing reads or writes it any more; NULL is fine. Return: NULL. */
struct ckv__scratch *ckv__scratch_release(struct ckv__scratch *scratch);
/* ckv__scratch_free_all() - unmap all of it, at the end of the session */
void ckv__scratch_free_all(struct chunkkv_client *client);

/* ---- fit.c */

/**
 * ckv__fit_tables() - make tables smaller until the message is no longer than @most
 * @ret_tables: scratch that the message names now, or NULL
 *
 * First as runs, where those are shorter; then in shared memory.
 *
 * Return: 0, also if it still does not fit; or -errno with @ret_error filled in.
 */
int ckv__fit_tables(struct chunkkv_client *client, struct ckv__arena *arena, Chunkkv__V1__Request *message, size_t most,
                    uint64_t deadline_nsec, struct ckv__scratch **ret_tables, struct chunkkv_error *ret_error);

/* ckv__fit_answer() - was it refused because its answer would be too long, and is it asked again with more room? */
bool ckv__fit_answer(struct chunkkv_client *client, struct ckv__request *request);

/* ---- policy.c */

/* ckv__policy_encode() - as a message in the arena; NULL without memory */
Chunkkv__V1__Policy *ckv__policy_encode(struct ckv__arena *arena, const struct chunkkv_policy *policy);
/* ckv__policy_decode() - the other way */
void ckv__policy_decode(const Chunkkv__V1__Policy *message, struct chunkkv_policy *ret_policy);

/* ---- job.c */

/* ckv__job_encode() - as a message in the arena. Return: 0, -EINVAL or -ENOMEM with @ret_error filled in. */
int ckv__job_encode(struct ckv__arena *arena, const struct chunkkv_job *job, const struct chunkkv_timeline *wait,
                    const struct chunkkv_timeline *signal, Chunkkv__V1__Compress **ret_message, struct chunkkv_error *ret_error);

/* ---- result.c */

/**
 * ckv__result_new() - the answer to a request as a result
 *
 * Takes over request->reply on success and sets it to NULL.  Sets that came
 * in memory of ours are copied.  Checks all runs, so that whoever walks them
 * need not.
 *
 * Return: 0, -EPROTO or -ENOMEM with @ret_error filled in.
 */
int ckv__result_new(struct ckv__request *request, struct chunkkv_result **ret_result, struct chunkkv_error *ret_error);

/* ---- region_sets.c */

/* ckv__set_fill() - a set in the form that the caller wants, copied to the arena. Return: 0, -ENOMEM or -EPROTO. */
int ckv__set_fill(struct ckv__arena *arena, uint32_t reply_form, const Chunkkv__V1__GroupJob *job,
                  const struct chunkkv_region_set *from, struct chunkkv_set *set);

/**
 * ckv__region_sets() - sets out of memory of ours, in the form that the caller wants
 * @at:      bytes read so far; moves on
 * @group:   set_count is the number of sets expected; sets are filled in
 * @job:     of the request, for its position_runs
 *
 * Return: 0, -EPROTO or -ENOMEM with @ret_error filled in.
 */
int ckv__region_sets(struct ckv__arena *arena, const struct ckv__request *request, const Chunkkv__V1__GroupJob *job,
                     uint64_t *at, struct chunkkv_group_result *group, struct chunkkv_error *ret_error);

#endif
