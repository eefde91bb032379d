/*
 * Planes of a cache that share bytes.
 */
#ifndef CKV_DAEMON_ALIAS_H
#define CKV_DAEMON_ALIAS_H

#include "daemon/cache.h"
#include "proto/records.h"

#include <stdint.h>

/**
 * ckv_cache_mark_aliases() - set group->aliased where two planes of a group may share bytes
 * @planes: [count] as they were registered; each was found to lie in its region
 *
 * Different groups may lie on the same bytes: hybrid models do that, with block tables that keep them apart.
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_cache_mark_aliases(struct ckv_cache *cache, const struct ckv_record_plane *planes, uint32_t count);

#endif
