/*
 * A handler on inproc://zeromq.zap.01.  With the option ENFORCE_DOMAIN libzmq
 * lets nobody in whom it did not approve; without a handler, nobody at all.
 *
 * It is the second of three: accept4() has asked the same list before, and the
 * core asks again.  What it adds is that peers of ZMTP 1.0 and 2.0, which come
 * without the metadata that says who they are, never get in.
 *
 * It believes the address, which libzmq has from the kernel, and nothing else.
 * What a client says of itself (mechanism, credentials, User-Id) is not read.
 */
#include "daemon/gate/zap.h"

#include "base/error.h"
#include "base/macros.h"
#include "daemon/gate/accept.h"
#include "daemon/gate/address.h"

#include <errno.h>
#include <string.h>
#include <zmq.h>

enum {
        REQUEST_ID_MAX = 64,            /* libzmq's is "1" */
        TURN_MAX = 64,
};

struct question {
        char id[REQUEST_ID_MAX];
        size_t id_bytes;
        struct ckv_address address;
        bool named;                     /* address is filled in */
};

int ckv_zap_open(struct ckv_zap *zap, void *context) {
        const int zero = 0;
        size_t size = sizeof(zap->fd);

        *zap = (struct ckv_zap){ .fd = -1, .socket = zmq_socket(context, ZMQ_REP) };
        if (!zap->socket || zmq_setsockopt(zap->socket, ZMQ_LINGER, &zero, sizeof(zero)) < 0 ||
            zmq_bind(zap->socket, "inproc://zeromq.zap.01") < 0 || zmq_getsockopt(zap->socket, ZMQ_FD, &zap->fd, &size) < 0)
                return ckv_error_origin(-errno);
        return 0;
}

void ckv_zap_close(struct ckv_zap *zap) {
        if (zap->socket)
                (void)zmq_close(zap->socket);
        *zap = (struct ckv_zap){ .fd = -1 };
}

bool ckv_zap_ready(const struct ckv_zap *zap) {
        int events = 0;
        size_t size = sizeof(events);

        return zmq_getsockopt(zap->socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

static void frame_read(unsigned index, zmq_msg_t *frame, struct question *question) {
        const char *data = zmq_msg_data(frame);
        size_t bytes = zmq_msg_size(frame);
        char text[64] = { 0 };

        if (index == 1 && bytes <= sizeof(question->id)) {
                memcpy(question->id, data, bytes);
                question->id_bytes = bytes;
        }
        if (index == 3 && bytes < sizeof(text)) {
                memcpy(text, data, bytes);
                question->named = ckv_address_parse(text, &question->address);
        }
}

/* question_recv() - Return: true with one question */
static bool question_recv(void *socket, struct question *ret_question) {
        struct question question = { 0 };
        unsigned frames = 0;
        int more = 1;

        while (more) {
                zmq_msg_t frame;

                (void)zmq_msg_init(&frame);
                if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0) {
                        (void)zmq_msg_close(&frame);
                        return false;
                }
                frame_read(frames++, &frame, &question);
                more = zmq_msg_more(&frame);
                (void)zmq_msg_close(&frame);
        }
        *ret_question = question;
        return true;
}

static int answer_send(void *socket, const struct question *question, bool allowed) {
        const struct {
                const char *data;
                size_t bytes;
        } frames[] = {
                { "1.0", 3 }, { question->id, question->id_bytes }, { allowed ? "200" : "400", 3 }, { "", 0 }, { "", 0 }, { "", 0 },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(frames); i++)
                if (zmq_send(socket, frames[i].data, frames[i].bytes,
                             ZMQ_DONTWAIT | (i + 1 < CKV_ARRAY_SIZE(frames) ? ZMQ_SNDMORE : 0)) < 0)
                        /* the connection that asked is gone */
                        return errno == EAGAIN ? 0 : ckv_error_origin(-errno);
        return 0;
}

int ckv_zap_serve(struct ckv_zap *zap) {
        struct question question;

        for (int i = 0; i < TURN_MAX && question_recv(zap->socket, &question); i++) {
                int r = answer_send(zap->socket, &question, question.named && ckv_accept_allows(&question.address));

                if (r)
                        return ckv_error_trace(r);
        }
        return 0;
}
