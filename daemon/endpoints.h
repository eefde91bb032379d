/*
 * The sockets of all endpoints: made in the runtime directory, or passed by
 * systemd.
 */
#ifndef CKV_DAEMON_ENDPOINTS_H
#define CKV_DAEMON_ENDPOINTS_H

struct ckv_daemon;

enum {
        _CKV_ENDPOINTS_E_SUCCESS,
        CKV_ENDPOINTS_E_FAILED, /* one line that says why was logged */
};

/**
 * ckv_endpoints_open() - fill in daemon->endpoints with listening sockets
 * @daemon: options and boot id set; the runtime directory locked
 *
 * If the process was passed sockets (LISTEN_FDS), they are the endpoints: for each name NAME.zmq, a stream socket, and
 * NAME.fd, a seqpacket socket. Of --endpoint only the lists of users and groups count then, and each must find its endpoint.
 *
 * Return: 0, CKV_ENDPOINTS_E_FAILED, or -errno; on failure nothing is left behind.
 */
int ckv_endpoints_open(struct ckv_daemon *daemon);

/* ckv_endpoints_close() - close the sockets, and remove those that were made here */
void ckv_endpoints_close(struct ckv_daemon *daemon);

#endif
