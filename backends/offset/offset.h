/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_OFFSET_H
#define MCFS_BACKENDS_OFFSET_H

/* Mooncake's offset_allocator_storage_backend: `kv_cache.data` holds records, `kv_cache.meta` is
 * the checkpoint that says where.  Here it is read; offset_store.h has how it is written. */

#include "backends/catalog.h"

extern const struct mcfs_backend_ops mcfs_offset_ops; /* as in backends.h */

#define OFFSET_DATA "kv_cache.data"
#define OFFSET_META "kv_cache.meta"

/* Reads the directory: by our index and journal when there are any that are not older than
 * Mooncake's checkpoint, else by that (offset_read_checkpoint). */
struct catalog *offset_read(const char *dir, bool tolerant, const struct catalog *previous,
                            const struct finding_sink *sink, uint64_t *dropped,
                            struct mcfs_error *err);

struct offset_checkpoint_found {
    bool is_there;       /* a checkpoint that can be read, and the data file */
    uint64_t insert_seq; /* its */
    uint64_t dropped;    /* records */
};

/* Reads the directory by Mooncake's rules of recovery; what is dropped, and why, goes to the sink
 * (may be NULL).  A checkpoint that is missing or of another version is an empty store, as for
 * Mooncake; one that is damaged is an error, with `tolerant` a finding and an empty store.  Records
 * that `previous` (may be NULL) has with the same head are not read again. */
struct catalog *offset_read_checkpoint(const char *dir, bool tolerant,
                                       const struct catalog *previous,
                                       const struct finding_sink *sink,
                                       struct offset_checkpoint_found *found,
                                       struct mcfs_error *err);

#endif
