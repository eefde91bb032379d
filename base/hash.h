/*
 * uthash, with one setting for all files: include it through this header only.
 *
 * The hash function is SipHash-2-4 under a key drawn at start, because a
 * tenant chooses some of the keys (request ids) and must not be able to make
 * them fall into one bucket.
 *
 * Out of memory is not fatal: an element that could not be added is simply
 * not in the table afterwards.  So each HASH_ADD is followed by
 *
 *         if (!CKV_HASH_ADDED(element))
 *                 return ckv_error_origin(-ENOMEM);
 *
 * with the usual handle name hh.  A table that was empty before stays NULL
 * then.  HASH_SORT and HASH_SELECT are not used and not covered by this.
 */
#ifndef CKV_BASE_HASH_H
#define CKV_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_FUNCTION(keyptr, keylen, hashv) ((hashv) = ckv_hash((keyptr), (keylen)))
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* CKV_HASH_ADDED() - did the HASH_ADD of this element just before succeed? False means out of memory. */
#define CKV_HASH_ADDED(element) ((element)->hh.tbl != NULL)

/* ckv_hash_seed() - draw the key of all tables; once, at start, while all are empty. Return: 0 or -errno. */
int ckv_hash_seed(void);

/* ckv_hash() - SipHash-2-4 of [n] bytes under the drawn key (all zero before), folded to 32 bits */
uint32_t ckv_hash(const void *bytes, size_t n);

/* ckv_siphash24() - SipHash-2-4 (Aumasson, Bernstein 2012) under a given key, both as little-endian words */
uint64_t ckv_siphash24(const uint64_t key[static 2], const void *bytes, size_t n);

#endif
