/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_H
#define MCFS_SNAPSHOT_H

/*
 * Snapshots of the master's directory in Mooncake's format: the image as plain structs, its codec,
 * and the repository that publishes, lists, retains and restores.  Nothing here knows how the
 * master keeps its directory.
 *
 * Names below the store's root: mooncake_master_snapshot/[<cluster>/]latest.txt and
 * .../<id>/{metadata, segments, task_manager, mooncakefs, manifest.txt, descriptor.txt}.
 * `mooncakefs` is ours (version, mode, uid, gid, mtime per object, nodes, checksums of the other
 * files); Mooncake ignores it, and a snapshot without it restores with defaults.
 *
 * Slices in structs are borrowed: by the caller when it encodes, until the callback returns when we
 * decode.
 */

#include "common/buf.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <mooncakefs/object_store.h>

#define SNAP_ID_SIZE 20 /* "YYYYMMDD_HHMMSS_mmm" and NUL */

/* ---- the image ---- */

struct snap_replica {
    uint64_t id;
    int16_t status;             /* enum mcfs_replica_status */
    uint8_t type;               /* enum mcfs_replica_type */
    struct mcfs_id client;      /* LOCAL_DISK */
    struct mcfs_slice endpoint; /* LOCAL_DISK */
    uint64_t size;
    struct mcfs_slice payload; /* every other kind: its payload as MessagePack, carried through */
};

struct snap_object {
    struct mcfs_slice tenant, key;
    struct mcfs_id put_client;
    int64_t put_start_ms;
    uint64_t size;
    int64_t lease_ms; /* deadline, ms since the epoch */
    uint8_t data_type;
    bool hard_pin, has_checksum;
    struct mcfs_slice group;
    uint64_t checksum;
    uint32_t replica_count;
    const struct snap_replica *replicas;
    /* From the file `mooncakefs`; defaults without it. */
    bool has_extra;
    uint64_t version;
    struct mcfs_attr attr;
};

struct snap_node {
    struct mcfs_id id;
    struct mcfs_slice name, endpoint;
    uint64_t capacity_bytes;
};

/* What a snapshot says of itself. */
struct snap_info {
    uint64_t last_included_seq, producer_view_version;
    int64_t created_ms;
    uint64_t replica_next_id;
};

/* ---- object stores ---- */

/* A directory; made when absent. */
struct mcfs_object_store *snap_store_local_open(const char *root, struct mcfs_error *err);

/* ---- encoding one shard; any thread, one encoder each ---- */

struct snap_encoder;
struct snap_encoder *snap_encoder_new(void);
void snap_encoder_free(struct snap_encoder *e);

void snap_encode_begin(struct snap_encoder *e);
/* Objects in (tenant, key) order. */
int snap_encode_object(struct snap_encoder *e, const struct snap_object *o, struct mcfs_error *err);
/* The shard's frames for `metadata` and for `mooncakefs`; valid until the next begin. */
int snap_encode_end(struct snap_encoder *e, struct mcfs_slice *metadata, struct mcfs_slice *extra,
                    struct mcfs_error *err);

/* ---- writing a snapshot ---- */

struct snap_writer;

struct snap_writer_config {
    struct mcfs_object_store *store;
    const char *cluster; /* may be "" */
    const char *id;
    struct snap_info info;
    uint32_t shard_count; /* shards with objects: exactly so many snap_writer_shard calls follow */
    const struct snap_node *nodes;
    uint32_t node_count;
    /* Files of an earlier snapshot that are carried through unchanged (decoded payloads); len 0:
     * made from nodes. */
    struct mcfs_slice segments, tasks, discarded;
};

struct snap_writer *snap_writer_begin(const struct snap_writer_config *config,
                                      struct mcfs_error *err);
int snap_writer_shard(struct snap_writer *w, uint32_t shard, struct mcfs_slice metadata,
                      struct mcfs_slice extra, struct mcfs_error *err);
/* Publishes: metadata, segments, task_manager, mooncakefs, manifest, descriptor, latest.  Frees the
 * writer. */
int snap_writer_commit(struct snap_writer *w, struct mcfs_error *err);
void snap_writer_abort(struct snap_writer *w);

/* ---- reading a snapshot; a reader may be used by several threads ---- */

struct snap_reader;
struct snap_reader *snap_reader_open(struct mcfs_object_store *store, const char *cluster,
                                     const char *id, struct mcfs_error *err);
void snap_reader_close(struct snap_reader *r);
const struct snap_info *snap_reader_info(const struct snap_reader *r);
/* Shards that are there, as places 0..n-1. */
uint32_t snap_reader_shards(const struct snap_reader *r);
/* Decodes one; fn returns 0 or -1 (which ends the walk with its err). */
int snap_reader_shard(struct snap_reader *r, uint32_t place,
                      int (*fn)(const struct snap_object *o, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err);
/* Decoded payloads, to be carried through; malloc'ed, *data NULL when the file is absent. */
int snap_reader_segments(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err);
int snap_reader_tasks(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err);
struct mcfs_slice snap_reader_discarded(const struct snap_reader *r);

/* ---- the repository ---- */

/* A new id from the local time, later than every id there is. */
int snap_repo_new_id(struct mcfs_object_store *store, const char *cluster, char id[SNAP_ID_SIZE],
                     struct mcfs_error *err);

struct snap_entry {
    char id[SNAP_ID_SIZE];
    struct snap_info info;
    uint64_t bytes; /* of all files */
};
/* Published snapshots (those with a readable descriptor), newest first; malloc'ed. */
int snap_repo_list(struct mcfs_object_store *store, const char *cluster, struct snap_entry **list,
                   size_t *count, struct mcfs_error *err);

/* Ids to try in turn at a restore: what latest.txt names, then every other that is not newer;
 * malloc'ed. */
int snap_repo_candidates(struct mcfs_object_store *store, const char *cluster,
                         char (**ids)[SNAP_ID_SIZE], size_t *count, struct mcfs_error *err);

/* Deletes one; when it is the latest, latest.txt moves to the next newest first. */
int snap_repo_delete(struct mcfs_object_store *store, const char *cluster, const char *id,
                     struct mcfs_error *err);

/* Keeps the newest `keep` and `current`, which is never deleted. */
int snap_repo_retain(struct mcfs_object_store *store, const char *cluster, const char *current,
                     uint32_t keep, struct mcfs_error *err);

/* Files of a snapshot. */
int snap_repo_files(struct mcfs_object_store *store, const char *cluster, const char *id,
                    mcfs_object_list_fn fn, void *arg, struct mcfs_error *err);
ssize_t snap_repo_read(struct mcfs_object_store *store, const char *cluster, const char *id,
                       const char *file, uint64_t off, void *buf, size_t len,
                       struct mcfs_error *err);

bool snap_id_is_valid(const char *id);

/* Path of a file of a snapshot in the store (id NULL: of the cluster's folder). */
void snap_path(char *out, size_t cap, const char *cluster, const char *id, const char *file);

/* Decodes one decompressed shard; for tests and fuzzers.  extra may be empty. */
int snap_decode_shard(struct mcfs_slice metadata, struct mcfs_slice extra,
                      int (*fn)(const struct snap_object *o, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err);

#endif
