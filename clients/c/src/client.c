/*
 * A connection: side socket first, because it says at once whether a daemon is
 * there, then ZeroMQ, then Hello.  Connection and session begin and end
 * together here; the protocol would let a session survive without its side
 * socket, but nobody could hand over memory then.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#define GOODBYE_MS 1000u

static const char default_prefix[] = "/run/chunkkv/cpu/main";

const char *chunkkv_default_endpoint(void) {
        const char *prefix = getenv("CHUNKKV_ENDPOINT");

        return prefix && *prefix ? prefix : default_prefix;
}

const struct chunkkv_info *chunkkv_info(const struct chunkkv_client *client) {
        return &client->info;
}

struct chunkkv_client *chunkkv_close(struct chunkkv_client *client) {
        if (!client)
                return NULL;
        (void)ckv__lock(client);
        if (client->in_session && !ckv__core_is_dead(client)) {
                Chunkkv__V1__EndSession end = CHUNKKV__V1__END_SESSION__INIT;
                Chunkkv__V1__Request message;

                chunkkv__v1__request__init(&message);
                message.body_case = CHUNKKV__V1__REQUEST__BODY_END_SESSION;
                message.end_session = &end;
                /* without an answer the closing side socket ends the session just as well, only later */
                (void)ckv__call(client, &message, ckv_now_nsec() + GOODBYE_MS * CKV_NSEC_PER_MSEC, 0, NULL, NULL);
        }
        while (client->requests)
                (void)ckv__request_free(client, client->requests);
        while (client->writings)
                (void)ckv__writing_free(client, client->writings);
        ckv__session_drop(client);
        client->wake_fd = ckv_close(client->wake_fd);
        ckv__scratch_free_all(client);
        ckv__registry_free(client);
        ckv__page_release(client->page);
        free(client->page);
        free(client->prefix);
        free(client->name);
        (void)pthread_mutex_unlock(&client->mutex);
        (void)pthread_cond_destroy(&client->news);
        (void)pthread_mutex_destroy(&client->mutex);
        free(client);
        return NULL;
}

static void client_closep(struct chunkkv_client **client) {
        *client = chunkkv_close(*client);
}

static void info_fill(struct chunkkv_info *info, const Chunkkv__V1__Welcome *welcome) {
        *info = (struct chunkkv_info){ .minor = welcome->minor };
        (void)snprintf(info->daemon, sizeof(info->daemon), "%s", welcome->daemon);
        for (size_t i = 0; i < welcome->n_capabilities; i++) {
                if ((unsigned)welcome->capabilities[i] < 64)
                        info->capabilities |= UINT64_C(1) << (unsigned)welcome->capabilities[i];
        }
        if (welcome->device) {
                (void)snprintf(info->device, sizeof(info->device), "%s", welcome->device->name);
                info->backend = (uint32_t)welcome->device->backend;
        }
        if (welcome->limits) {
                const Chunkkv__V1__Limits *limits = welcome->limits;

                info->request_bytes = limits->request_bytes;
                info->reply_bytes = limits->reply_bytes;
                info->in_flight = limits->in_flight;
                info->regions = limits->regions;
                info->mapped_bytes = limits->mapped_bytes;
                info->rows = limits->rows;
                info->planes = limits->planes;
                info->groups = limits->groups;
                info->spans = limits->spans;
                info->control_slots = limits->control_slots;
        }
}

/* The clocks are one, unless this process lives in a time namespace. */
static int64_t clock_offset(uint64_t asked_nsec, uint64_t theirs_nsec, uint64_t answered_nsec) {
        if (asked_nsec <= theirs_nsec && theirs_nsec <= answered_nsec)
                return 0;
        return (int64_t)(theirs_nsec - (asked_nsec + (answered_nsec - asked_nsec) / 2));
}

static int hello(struct chunkkv_client *client, uint8_t token[static 16], uint64_t deadline_nsec,
                 struct chunkkv_error *ret_error) {
        Chunkkv__V1__Hello body;
        Chunkkv__V1__Request message;
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        int r;

        chunkkv__v1__hello__init(&body);
        body.client = client->name;
        body.now_ns = ckv_now_nsec();
        body.attach_token = (ProtobufCBinaryData){ .len = 16, .data = token };
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_HELLO;
        message.hello = &body;
        r = ckv__call(client, &message, deadline_nsec, CHUNKKV__V1__RESPONSE__BODY_WELCOME, &reply, ret_error);
        if (r)
                return r;
        if (reply->boot_id.len != sizeof(client->boot_id) ||
            reply->welcome->session_token.len != sizeof(client->session_token))
                return ckv__fault(ret_error, -EPROTO, "welcome", "boot id and session token must have 16 bytes");
        if (memcmp(client->boot_id, reply->boot_id.data, sizeof(client->boot_id)) != 0)
                return ckv__fault(ret_error, -EPROTO, "boot_id",
                                  "two daemons answer on this endpoint, or it was started anew just now");
        memcpy(client->session_token, reply->welcome->session_token.data, sizeof(client->session_token));
        client->clock_offset_nsec = clock_offset(body.now_ns, reply->welcome->now_ns, ckv_now_nsec());
        info_fill(&client->info, reply->welcome);
        if (!(client->info.capabilities >> CHUNKKV__V1__CAPABILITY__CAP_CONTROL_PAGE & 1))
                client->page->attached = false;
        client->in_session = true;
        return 0;
}

int ckv__session_begin(struct chunkkv_client *client, uint64_t deadline_nsec, struct chunkkv_error *ret_error) {
        uint8_t token[16];
        int r;

        client->in_session = false;
        r = ckv__side_connect(client, client->prefix, deadline_nsec, token, ret_error);
        if (r == 0)
                r = ckv__zmq_connect(client, client->prefix, ret_error);
        return r ? r : hello(client, token, deadline_nsec, ret_error);
}

void ckv__session_drop(struct chunkkv_client *client) {
        ckv__zmq_close(client);
        client->side_fd = ckv_close(client->side_fd);
        client->core_pidfd = ckv_close(client->core_pidfd);
}

static bool name_is_fine(const char *name) {
        size_t n = strlen(name);

        for (size_t i = 0; i < n; i++) {
                if (name[i] < ' ' || name[i] > '~')
                        return false;
        }
        return n <= 64;
}

/* Return: a client that is connected to nothing, or NULL without memory or descriptors. */
static struct chunkkv_client *client_new(const char *prefix, const char *name) {
        struct chunkkv_client *client = calloc(1, sizeof(*client));
        pthread_condattr_t monotonic;

        if (!client)
                return NULL;
        client->side_fd = client->core_pidfd = -1;
        client->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        client->page = calloc(1, sizeof(*client->page));
        client->prefix = strdup(prefix);
        client->name = strdup(name);
        if (client->wake_fd < 0 || !client->page || !client->prefix || !client->name) {
                (void)ckv_close(client->wake_fd);
                free(client->page);
                free(client->prefix);
                free(client->name);
                free(client);
                return NULL;
        }
        /* these three only fill in memory on Linux */
        (void)pthread_condattr_init(&monotonic);
        (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&client->news, &monotonic);
        (void)pthread_condattr_destroy(&monotonic);
        (void)pthread_mutex_init(&client->mutex, NULL);
        return client;
}

int chunkkv_connect(const struct chunkkv_options *options, struct chunkkv_client **ret_client,
                    struct chunkkv_error *ret_error) {
        static const struct chunkkv_options none = { 0 };
        _cleanup_(client_closep) struct chunkkv_client *client = NULL;
        const char *prefix, *name;
        uint64_t deadline_nsec;
        int r;

        if (!options)
                options = &none;
        prefix = options->endpoint ? options->endpoint : chunkkv_default_endpoint();
        name = options->name ? options->name : "libchunkkv/" CKV_VERSION;
        if (!name_is_fine(name))
                return ckv__fault(ret_error, -EINVAL, "name", "must be at most 64 printable ASCII characters");
        r = ckv__deadline(ckv_now_nsec(), options->timeout_ms, &deadline_nsec, ret_error);
        if (r)
                return r;
        client = client_new(prefix, name);
        if (!client)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory or descriptor for a client");
        client->no_roll_forward = options->no_roll_forward;
        r = ckv__page_create(options, client->page, ret_error);
        if (r)
                return r;
        (void)ckv__lock(client);
        r = ckv__session_begin(client, deadline_nsec, ret_error);
        (void)pthread_mutex_unlock(&client->mutex);
        if (r)
                return r;
        *ret_client = ckv_steal(&client);
        return 0;
}
