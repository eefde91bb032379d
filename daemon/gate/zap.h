/* The gate's answer to libzmq's question who may talk to it (ZeroMQ RFC 27, ZAP). */
#ifndef CKV_GATE_ZAP_H
#define CKV_GATE_ZAP_H

#include <stdbool.h>

#define CKV_ZAP_DOMAIN "chunkkv"

struct ckv_zap {
        void *socket;
        int fd;                         /* as ckv_router.fd */
};

/* ckv_zap_open() - before the first peer can come. Return: 0 or -errno; ckv_zap_close() is fine after both. */
int ckv_zap_open(struct ckv_zap *zap, void *context);
void ckv_zap_close(struct ckv_zap *zap);

/* ckv_zap_ready() - as ckv_router_ready() */
bool ckv_zap_ready(const struct ckv_zap *zap);

/* ckv_zap_serve() - answer what is asked, never block. Return: 0 or -errno. */
int ckv_zap_serve(struct ckv_zap *zap);

#endif
