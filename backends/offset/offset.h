/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_OFFSET_H
#define MCFS_BACKENDS_OFFSET_H

/* Mooncake's offset_allocator_storage_backend, read only: `kv_cache.data` holds records,
 * `kv_cache.meta` is the checkpoint that says where. */

#include "backends/catalog.h"

extern const struct mcfs_backend_ops mcfs_offset_ops; /* as in backends.h */

#define OFFSET_DATA "kv_cache.data"
#define OFFSET_META "kv_cache.meta"

/* Reads the directory by Mooncake's rules of recovery; what is dropped, and why, goes to the sink
 * (may be NULL).  A checkpoint that is missing or of another version is an empty store, as for
 * Mooncake; one that is damaged is an error, with `tolerant` a finding and an empty store.  Records
 * that `previous` (may be NULL) has with the same head are not read again. */
struct catalog *offset_read(const char *dir, bool tolerant, const struct catalog *previous,
                            const struct finding_sink *sink, uint64_t *dropped,
                            struct mcfs_error *err);

#endif
