/*
 * Requests, from their making to their end, and the ZeroMQ socket they go
 * through.  One frame is one message.  IMMEDIATE 1: a message is only handed
 * to a connection that exists, so a send fails with EAGAIN while the gate is
 * away, and the request stays due.  Sending, waiting and receiving are in
 * wait.c.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <stdio.h>
#include <zmq.h>

static int zmq_fault(struct chunkkv_error *ret_error, const char *what) {
        int error = zmq_errno();

        /* numbers of ZeroMQ's own start at 156384712 and are no errno */
        return ckv__fault(ret_error, error > 0 && error < 4096 ? -error : -EIO, "", "%s: %s", what,
                          zmq_strerror(error));
}

int ckv__zmq_connect(struct chunkkv_client *client, const char *prefix, struct chunkkv_error *ret_error) {
        static const struct { int option, value; } options[] = {
                { ZMQ_IMMEDIATE, 1 }, { ZMQ_LINGER, 0 },
                /* a gate that was restarted is found soon, and one that stays away costs little */
                { ZMQ_RECONNECT_IVL, 20 }, { ZMQ_RECONNECT_IVL_MAX, 500 },
        };
        size_t fd_size = sizeof(client->zmq_fd);
        char address[256];

        (void)snprintf(address, sizeof(address), "ipc://%s.zmq", prefix);
        client->zmq_context = zmq_ctx_new();
        if (!client->zmq_context)
                return zmq_fault(ret_error, "zmq_ctx_new");
        client->zmq_socket = zmq_socket(client->zmq_context, ZMQ_DEALER);
        if (!client->zmq_socket)
                return zmq_fault(ret_error, "zmq_socket");
        for (size_t i = 0; i < CKV_ARRAY_SIZE(options); i++) {
                if (zmq_setsockopt(client->zmq_socket, options[i].option, &options[i].value,
                                   sizeof(options[i].value)) < 0)
                        return zmq_fault(ret_error, "zmq_setsockopt");
        }
        if (zmq_connect(client->zmq_socket, address) < 0)
                return zmq_fault(ret_error, address);
        if (zmq_getsockopt(client->zmq_socket, ZMQ_FD, &client->zmq_fd, &fd_size) < 0)
                return zmq_fault(ret_error, "zmq_getsockopt");
        return 0;
}

void ckv__zmq_close(struct chunkkv_client *client) {
        if (client->zmq_socket)
                (void)zmq_close(client->zmq_socket);
        client->zmq_socket = NULL;
        if (client->zmq_context) {
                while (zmq_ctx_term(client->zmq_context) < 0 && zmq_errno() == EINTR)
                        ;
        }
        client->zmq_context = NULL;
}

int ckv__deadline(uint64_t asked_nsec, uint32_t timeout_ms, uint64_t *ret_deadline_nsec, struct chunkkv_error *ret_error) {
        if (timeout_ms > CKV__TIMEOUT_MAX_MS)
                return ckv__fault(ret_error, -EINVAL, "timeout_ms", "must be at most %u, is %" PRIu32,
                                  CKV__TIMEOUT_MAX_MS, timeout_ms);
        *ret_deadline_nsec = asked_nsec + (timeout_ms ? timeout_ms : CKV__TIMEOUT_DEFAULT_MS) * CKV_NSEC_PER_MSEC;
        return 0;
}

int ckv__request_new(struct chunkkv_client *client, Chunkkv__V1__Request *message, uint32_t mode,
                     uint64_t deadline_nsec, struct ckv__request **ret_request, struct chunkkv_error *ret_error) {
        struct ckv__request *request;

        if (ckv__core_is_dead(client))
                return ckv__core_died(ret_error, "");
        ckv__translate(client, message);
        message->request_id = ++client->last_id;
        /* before the Welcome the clocks are not compared: Hello has the daemon's default */
        message->deadline_ns = 0;
        if (client->in_session) {
                message->deadline_ns = deadline_nsec + (uint64_t)client->clock_offset_nsec;
                message->boot_id = (ProtobufCBinaryData){ .len = sizeof(client->boot_id), .data = client->boot_id };
                message->session_token = (ProtobufCBinaryData){ .len = sizeof(client->session_token),
                        .data = client->session_token };
        }
        request = calloc(1, sizeof(*request));
        if (!request)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for a request");
        request->size = chunkkv__v1__request__get_packed_size(message);
        request->bytes = malloc(request->size);
        if (!request->bytes || (client->info.request_bytes && request->size > client->info.request_bytes)) {
                bool too_long = request->bytes != NULL;
                size_t size = request->size;

                free(request->bytes);
                free(request);
                if (!too_long)
                        return ckv__fault(ret_error, -ENOMEM, "", "no memory for a request of %zu bytes", size);
                return ckv__fault(ret_error, -EMSGSIZE, "", "the request has %zu bytes, the daemon takes %" PRIu32
                                  ": a table can lie in a region, all else must fit, as lists of runs and of chunk "
                                  "lengths", size, client->info.request_bytes);
        }
        (void)chunkkv__v1__request__pack(message, request->bytes);
        request->id = request->handle = message->request_id;
        request->deadline_nsec = deadline_nsec;
        request->mode = mode;
        request->due = true;
        request->next = client->requests;
        client->requests = request;
        *ret_request = request;
        return 0;
}

struct ckv__request *ckv__request_find(const struct chunkkv_client *client, uint64_t id) {
        struct ckv__request *request = client->requests;

        while (request && request->id != id)
                request = request->next;
        return request;
}

struct ckv__request *ckv__request_find_handle(const struct chunkkv_client *client, uint64_t handle) {
        struct ckv__request *request = client->requests;

        while (request && request->handle != handle)
                request = request->next;
        return request;
}

int ckv__request_again(struct chunkkv_client *client, struct ckv__request *request, Chunkkv__V1__Request *message) {
        size_t size;
        uint8_t *bytes;

        message->request_id = ++client->last_id;
        size = chunkkv__v1__request__get_packed_size(message);
        bytes = malloc(size);
        if (!bytes)
                return -ENOMEM;
        (void)chunkkv__v1__request__pack(message, bytes);
        free(request->bytes);
        ckv__reply_freep(&request->reply);
        request->reply = NULL;
        request->bytes = bytes;
        request->size = size;
        request->id = message->request_id;
        request->due = true;
        request->sent = request->sent_again = false;
        return 0;
}

struct ckv__request *ckv__request_free(struct chunkkv_client *client, struct ckv__request *request) {
        struct ckv__request **link = &client->requests;

        if (!request)
                return NULL;
        while (*link != request)
                link = &(*link)->next;
        *link = request->next;
        ckv__reply_freep(&request->reply);
        free(request->bytes);
        free(request);
        return NULL;
}

int ckv__reply_check(const Chunkkv__V1__Response *reply, Chunkkv__V1__Response__BodyCase body,
                     struct chunkkv_error *ret_error) {
        if (!reply->status)
                return ckv__fault(ret_error, -EPROTO, "status", "the answer has no status");
        if (reply->status->code != CHUNKKV__V1__CODE__CODE_OK)
                return ckv__refusal(ret_error, reply);
        if (body && reply->body_case != body)
                return ckv__fault(ret_error, -EPROTO, "body", "the answer has body %d, expected %d",
                                  (int)reply->body_case, (int)body);
        return 0;
}

int ckv__call(struct chunkkv_client *client, Chunkkv__V1__Request *message, uint64_t deadline_nsec,
              Chunkkv__V1__Response__BodyCase body, Chunkkv__V1__Response **ret_reply,
              struct chunkkv_error *ret_error) {
        struct ckv__request *request = NULL;
        int r;

        r = ckv__request_new(client, message, 0, deadline_nsec, &request, ret_error);
        if (r)
                return r;
        r = ckv__wait(client, request, NULL, deadline_nsec);
        if (r == 0)
                r = ckv__reply_check(request->reply, body, ret_error);
        else if (r == -EOWNERDEAD)
                r = ckv__core_died(ret_error, "");
        else
                r = ckv__fault(ret_error, r, "", "%s", r == -ETIMEDOUT ? "no answer in time" : strerror(-r));
        if (ret_error && r)
                ret_error->request_id = request->handle;
        if (r == 0 && ret_reply)
                *ret_reply = ckv_steal(&request->reply);
        request = ckv__request_free(client, request);
        return r;
}
