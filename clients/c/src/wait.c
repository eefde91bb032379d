/*
 * Sending, receiving and waiting, by several threads at once.
 *
 * All state of a client is guarded by its mutex, which every public function
 * holds except while it sleeps here.  One of the threads that wait is in the
 * lead: it sleeps in poll() on ZeroMQ's descriptor, the core's pidfd and the
 * side socket, without the mutex.  The others sleep on a condition variable
 * until the leader, or whoever else received something, has news; when the
 * leader's own answer is there another one takes over.
 *
 * ZeroMQ's descriptor tells of changes only ("look again"), and any call on
 * the socket may be the one that consumes such a change.  Hence the rule: who
 * has called the socket looks at ZMQ_EVENTS before it sleeps, and who receives
 * answers of others wakes them, the leader through an eventfd.
 *
 * Nothing heard for a quarter of the time left, at least 100 ms: the same
 * bytes go out again; the daemon knows the number of the request and never
 * does the work twice.  An answer finds its request by number; one that nobody
 * waits for is dropped.  The core's pidfd is watched, so its death ends every
 * wait at once.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <zmq.h>

#define REPEAT_MIN_NSEC (100 * CKV_NSEC_PER_MSEC)
/* The core is dead: an answer that it sent before may still be on its way. */
#define LAST_WORDS_NSEC (100 * CKV_NSEC_PER_MSEC)

/* Sends what is due. Return: true if something is still due because no connection takes it. */
static bool send_due(struct chunkkv_client *client, uint64_t now) {
        bool blocked = false;

        for (struct ckv__request *request = client->requests; request; request = request->next) {
                if (request->reply || request->orphan || now >= request->deadline_nsec)
                        continue;
                if (request->sent && now >= request->repeat_nsec)
                        request->due = true;
                if (!request->due)
                        continue;
                if (zmq_send(client->zmq_socket, request->bytes, request->size, ZMQ_DONTWAIT) < 0) {
                        blocked = true;
                        continue;
                }
                request->due = false;
                request->sent_again = request->sent;
                request->sent = true;
                request->repeat_nsec = now + CKV_MAX(REPEAT_MIN_NSEC, (request->deadline_nsec - now) / 4);
        }
        return blocked;
}

/* Return: true if somebody has his answer now. */
static bool receive_one(struct chunkkv_client *client, zmq_msg_t *frame) {
        Chunkkv__V1__Response *reply;
        struct ckv__request *request;
        bool wanted;

        reply = chunkkv__v1__response__unpack(NULL, zmq_msg_size(frame), zmq_msg_data(frame));
        if (!reply)
                return false;
        request = ckv__request_find(client, reply->request_id);
        wanted = request && !request->reply;
        if (wanted)
                request->reply = ckv_steal(&reply);
        ckv__reply_freep(&reply);
        return wanted;
}

/* There is something for other threads to see. */
static void tell(struct chunkkv_client *client) {
        (void)pthread_cond_broadcast(&client->news);
        if (client->polling)
                (void)eventfd_write(client->wake_fd, 1);
}

static void receive_all(struct chunkkv_client *client) {
        zmq_msg_t frame;
        bool tail = false, heard = false;

        (void)zmq_msg_init(&frame);
        while (zmq_msg_recv(&frame, client->zmq_socket, ZMQ_DONTWAIT) >= 0) {
                /* an answer is one frame: of more, none is believed */
                bool more = zmq_msg_more(&frame) != 0;

                if (!tail && !more)
                        heard = receive_one(client, &frame) || heard;
                tail = more;
        }
        (void)zmq_msg_close(&frame);
        if (heard)
                tell(client);
}

void ckv__send(struct chunkkv_client *client) {
        (void)send_due(client, ckv_now_nsec());
        /* what this call took in must not be missed by a thread that sleeps */
        receive_all(client);
}

/* Is there something to do on the socket at once? */
static bool socket_is_ready(struct chunkkv_client *client, bool blocked) {
        size_t size = sizeof(int);
        int events = 0;

        if (zmq_getsockopt(client->zmq_socket, ZMQ_EVENTS, &events, &size) < 0)
                return false;
        return (events & (ZMQ_POLLIN | (blocked ? ZMQ_POLLOUT : 0))) != 0;
}

static struct timespec to_timespec(uint64_t nsec) {
        return (struct timespec){
                .tv_sec = (time_t)(nsec / CKV_NSEC_PER_SEC), .tv_nsec = (long)(nsec % CKV_NSEC_PER_SEC),
        };
}

/* Sleeps in the lead until anything comes. Return: 0 or -EIO. */
static int sleep_leading(struct chunkkv_client *client, uint64_t until_nsec) {
        uint64_t now = ckv_now_nsec();
        struct timespec left = to_timespec(until_nsec > now ? until_nsec - now : 0);
        /* a side socket that is closed is -1, which poll() passes over */
        struct pollfd items[] = {
                { .fd = client->zmq_fd, .events = POLLIN }, { .fd = client->wake_fd, .events = POLLIN },
                { .fd = client->core_pidfd, .events = POLLIN }, { .fd = client->side_fd, .events = POLLIN },
        };
        eventfd_t ignored;
        int n, error;

        client->polling = true;
        (void)pthread_mutex_unlock(&client->mutex);
        n = ppoll(items, CKV_ARRAY_SIZE(items), &left, NULL);
        error = errno;
        (void)pthread_mutex_lock(&client->mutex);
        client->polling = false;
        (void)pthread_cond_broadcast(&client->news);
        if (n < 0)
                return error == EINTR ? 0 : -EIO;
        if (items[1].revents)
                (void)eventfd_read(client->wake_fd, &ignored);
        if (items[3].revents && client->side_fd >= 0)
                ckv__side_drain(client);
        return 0;
}

static int sleep_once(struct chunkkv_client *client, uint64_t until_nsec) {
        struct timespec until = to_timespec(until_nsec);

        if (!client->polling)
                return sleep_leading(client, until_nsec);
        (void)pthread_cond_timedwait(&client->news, &client->mutex, &until);
        return 0;
}

/* The core is dead: drain what it had already said. */
static void receive_last_words(struct chunkkv_client *client, const struct ckv__request *first) {
        uint64_t until = ckv_now_nsec() + LAST_WORDS_NSEC;
        zmq_pollitem_t item = { .socket = client->zmq_socket, .events = ZMQ_POLLIN };

        do
                receive_all(client);
        while (!first->reply && ckv_now_nsec() < until && zmq_poll(&item, 1, LAST_WORDS_NSEC / CKV_NSEC_PER_MSEC) > 0);
}

int ckv__wait(struct chunkkv_client *client, const struct ckv__request *first, const struct ckv__request *second,
              uint64_t until_nsec) {
        for (;;) {
                uint64_t now = ckv_now_nsec(), wake = until_nsec;
                bool blocked;
                int r;

                receive_all(client);
                if (first->reply || (second && second->reply))
                        return 0;
                if (first->orphan)
                        return -EOWNERDEAD;
                if (ckv__core_is_dead(client)) {
                        receive_last_words(client, first);
                        return first->reply ? 0 : -EOWNERDEAD;
                }
                if (now >= until_nsec)
                        return -ETIMEDOUT;
                blocked = send_due(client, now);
                for (const struct ckv__request *request = client->requests; request; request = request->next) {
                        if (!request->reply && request->sent && request->repeat_nsec < request->deadline_nsec)
                                wake = CKV_MIN(wake, request->repeat_nsec);
                }
                r = socket_is_ready(client, blocked) ? 0 : sleep_once(client, wake);
                if (r)
                        return r;
        }
}
