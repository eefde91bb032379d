/*
 * Registered caches: the layout of an engine's KV cache, checked once so that
 * no address formed later needs a check.  A cache holds uses of the regions
 * its planes lie in.
 */
#ifndef CKV_DAEMON_CACHE_H
#define CKV_DAEMON_CACHE_H

#include "base/hash.h"
#include "daemon/overlap.h"
#include "daemon/tenant.h"
#include "kernels/layout.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_region;
struct ckv_session;

/* Numbers of PlaneKind in chunkkv.proto. */
enum ckv_plane_kind { CKV_PLANE_NONE, CKV_PLANE_K, CKV_PLANE_V, CKV_PLANE_LATENT, CKV_PLANE_OPAQUE };

struct ckv_cache_layer {
        uint32_t number;
        struct ckv_plane k, v;                  /* addresses in the daemon's mapping; latent: k alone */
        struct ckv_place k_place, v_place;      /* from first to last byte of this layer's plane; latent: v_place has no bytes */
        struct ckv_region *k_region, *v_region; /* each counts one cache use; latent: v_region NULL */
};

struct ckv_cache_group {
        uint32_t kv_heads, q_heads, head_dim_k, head_dim_v, tokens_per_block, num_blocks;
        bool aliased;                           /* two of its planes may share bytes: rows can be scored, not moved */
        struct ckv_cache_layer *layers;         /* [layer_count] ascending by number */
        uint32_t layer_count;
};

struct ckv_cache {
        struct ckv_session *session;
        uint32_t id;
        uint32_t request_uses;                  /* requests in flight */
        struct ckv_cache_group *groups;         /* [group_count] */
        uint32_t group_count;
        struct ckv_charge charge;               /* QUEUED_BYTES: the description itself */
        bool fast_path;                         /* every plane has adjacent dimensions */
        UT_hash_handle hh;                      /* session->caches, by id */
};

/* ckv_cache_register() - REGISTER_CACHE; @attachment as proto/records.h says. Return: true; or false with @ret_status. */
bool ckv_cache_register(struct ckv_session *session, const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes,
                        struct ckv_record_status *ret_status, struct ckv_cache **ret_cache);

/* ckv_cache_unregister() - UNREGISTER_CACHE. Return: true; or false with @ret_status, while requests use it too. */
bool ckv_cache_unregister(struct ckv_session *session, uint32_t id, struct ckv_record_status *ret_status);

/* ckv_cache_free() - give the region uses back; no request may use it. Return: NULL. */
struct ckv_cache *ckv_cache_free(struct ckv_cache *cache);

/* ckv_cache_find_layer() - the layer of this number in any group, or NULL; its group is written only if found */
struct ckv_cache_layer *ckv_cache_find_layer(const struct ckv_cache *cache, uint32_t number,
                                             const struct ckv_cache_group **ret_group);

/* ckv_cache_find() - by id, or NULL; borrowed */
struct ckv_cache *ckv_cache_find(struct ckv_session *session, uint32_t id);

#endif
