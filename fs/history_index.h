/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_HISTORY_INDEX_H
#define MCFS_FS_HISTORY_INDEX_H

/*
 * The objects of one snapshot in order of tenant and key, in a mapped file: made once by decoding
 * the snapshot shard by shard, found at once by later mounts.  Read-only, so any thread may use it.
 */

#include "snapshot/snapshot.h"

struct history_entry {
    uint64_t key_at; /* in the text */
    uint64_t size, version;
    int64_t mtime_ns;
    uint32_t key_len, mode, uid, gid;
    uint32_t place; /* of its shard in the snapshot */
    uint16_t tenant;
    uint8_t data_type, hard_pin;
};

struct history_index;

/* Opens the index of a snapshot below `dir`, or makes it there.  stop is asked now and then: true
 * ends the work with EINTR.  The caller frees it. */
struct history_index *history_index_open(const char *dir, struct mcfs_object_store *store,
                                         const char *cluster, const char *id,
                                         bool (*stop)(void *arg), void *arg,
                                         struct mcfs_error *err);
void history_index_close(struct history_index *x);
/* The same from the bytes of such a file, which stay the caller's and must outlive the index; NULL
 * when they are not an index of this snapshot.  For tests and fuzzers. */
struct history_index *history_index_from(const void *bytes, size_t len, const char *id,
                                         const struct snap_info *info);

const char *history_index_id(const struct history_index *x);
/* Tenants, in order; NULL behind the last.  Valid as long as the index. */
const char *history_index_tenant(const struct history_index *x, uint32_t i);

/* The first entry of a tenant whose key is not less than `key` (and behind all that begin with it,
 * when after), as a number; history_index_end is one behind the tenant's last. */
uint64_t history_index_find(const struct history_index *x, uint32_t tenant, struct mcfs_slice key,
                            bool after);
uint64_t history_index_end(const struct history_index *x, uint32_t tenant);
const struct history_entry *history_index_entry(const struct history_index *x, uint64_t i);
struct mcfs_slice history_index_key(const struct history_index *x, const struct history_entry *e);

#endif
