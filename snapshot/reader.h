/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_READER_H
#define MCFS_SNAPSHOT_READER_H

#include "snapshot/ahead.h"
#include "snapshot/extra.h"
#include "snapshot/names.h"

/* Read-only once it is open, but for what was read ahead, which has its own lock. */
struct snap_reader {
    struct mcfs_object_store *store;
    char *cluster, id[SNAP_ID_SIZE];
    struct snap_info info;
    struct extra_shard *shards; /* without `mooncakefs` only the places in metadata */
    uint32_t shard_count;
    uint32_t place_of[MCFS_SHARD_COUNT]; /* place + 1; 0: none */
    struct mcfs_buf discarded;
    bool has_extra, checked; /* checked: whole files, at open */
    struct extra extra;
    struct ahead *ahead; /* NULL: the store is near */
};

/* Path in the store, and name for errors, of one of its files. */
struct file_name {
    char path[SNAP_PATH_MAX], shown[64];
};
void reader_file_name(const struct snap_reader *r, const char *file, struct file_name *out);

/* Walks `metadata`: where its shards lie, and its other fields. */
struct metadata_outline {
    struct places places;
    struct mcfs_buf discarded;
    uint64_t replica_next_id;
};
int reader_walk_metadata(struct snap_reader *r, struct metadata_outline *out,
                         struct mcfs_error *err);
void metadata_outline_free(struct metadata_outline *o);

/* Holds whole files against the sizes and checksums in `mooncakefs`, if it is there. */
int reader_check_files(struct snap_reader *r, struct mcfs_error *err);

#endif
