/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_EXTRA_H
#define MCFS_SNAPSHOT_EXTRA_H

/*
 * The file `mooncakefs`: what Mooncake's format has no room for.  One MessagePack map:
 *
 *   format    2 (1 had no index, and was never released)
 *   info      [last_included_seq, producer_view_version, created_ms, replica_next_id]
 *   nodes     [[id, name, endpoint, capacity_bytes], ...]
 *   shards    {shard: bin}: a zstd frame over [[version, mode, uid, gid, mtime_ns], ...], one per
 *             object, in the order of the same shard in `metadata`
 *   files     {metadata: [size, crc], segments: [size, crc], task_manager: [size, crc]}
 *   index     [[shard, offset, length, crc in metadata, offset, length, crc here], ...]
 *   rest      [offset, crc]: what follows the last shard in `metadata`
 *   crc       of everything before `shards` and of everything from `files` to here
 *   index_at  offset of `files`, always written in 9 bytes
 *
 * All checksums are CRC-32C.  The last 18 bytes lead to the index, and the index to every shard, so
 * that a shard is found by a handful of ranged reads, whatever the snapshot's size.
 */

#include "snapshot/container.h"
#include "snapshot/snapshot.h"

#define EXTRA_FILE "mooncakefs"
#define EXTRA_FORMAT 2

enum { EXTRA_METADATA, EXTRA_SEGMENTS, EXTRA_TASKS, EXTRA_FILES };
extern const char *const extra_file_names[EXTRA_FILES];

struct extra_sum {
    uint64_t size;
    uint32_t crc;
};

struct extra_shard {
    struct place metadata, extra;
    uint32_t metadata_crc, extra_crc;
};

struct extra {
    struct snap_info info;
    struct snap_node *nodes; /* slices in head */
    uint32_t node_count;
    struct extra_sum files[EXTRA_FILES];
    struct extra_shard *shards;
    uint32_t shard_count;
    uint64_t rest_at;
    uint32_t rest_crc;
    struct mcfs_buf head; /* encoded nodes */
};

/* Everything before the first shard. */
void extra_put_head(const struct snap_info *info, const struct snap_node *nodes,
                    uint32_t node_count, uint32_t shard_count, struct mcfs_buf *out);
/* Everything after the last.  head_crc: of the bytes before the name `shards`, as extra_head_crc
 * finds them; at: where the tail begins in the file. */
void extra_put_tail(const struct extra *x, uint32_t head_crc, uint64_t at, struct mcfs_buf *out);
/* Checksum of what extra_put_head wrote without the name and head of `shards`. */
uint32_t extra_head_crc(const struct mcfs_buf *head, uint32_t shard_count);

/* Reads head and tail, and checks both. */
int extra_read(struct mcfs_object_store *store, const char *path, const char *name, uint64_t size,
               struct extra *out, struct mcfs_error *err);
void extra_free(struct extra *x);

/* Where the shards lie, found without the index. */
int extra_walk_shards(struct mcfs_object_store *store, const char *path, const char *name,
                      struct places *out, struct mcfs_error *err);

#endif
