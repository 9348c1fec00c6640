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
 * `mooncakefs` is ours (version, mode, uid, gid, mtime per object, nodes, an index and checksums of
 * the other files); Mooncake ignores it, and a snapshot without it restores with defaults.
 *
 * Invariants: latest.txt never names a snapshot that is not complete and durable.  A published
 * snapshot is never written again.  Whatever a file claims, reading it takes memory in proportion
 * to the bytes that are really there, and what is damaged is an error that names the file.
 *
 * Slices in structs are borrowed: by the caller when it encodes, until the callback returns when we
 * decode.  Numbers of time are ms since the Unix epoch.
 */

#include "common/buf.h"
#include "common/offset_allocator.h"
#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <mooncakefs/object_store.h>

#define SNAP_ID_SIZE 20 /* "YYYYMMDD_HHMMSS_mmm" and NUL */

/* ---- the image: objects ---- */

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
    struct mcfs_id put_client; /* 0-0 when what was written is no id */
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

/* Payloads of the kinds that a replica carries as they are.  Decoding returns false for what has
 * another form; encoding appends. */
struct snap_memory {
    uint64_t size, address;
    struct mcfs_id segment;
    bool has_handle; /* the rest */
    uint64_t real_base, requested_size;
    uint32_t offset, node; /* in the segment's allocator */
};
struct snap_disk {
    struct mcfs_slice path;
    uint64_t size;
};
struct snap_dfs {
    struct mcfs_slice path;
    uint64_t offset, size, aligned_size;
    int32_t shard;
};
bool snap_memory_decode(struct mcfs_slice payload, struct snap_memory *out);
bool snap_disk_decode(struct mcfs_slice payload, struct snap_disk *out);
bool snap_dfs_decode(struct mcfs_slice payload, struct snap_dfs *out);
void snap_memory_encode(const struct snap_memory *m, struct mcfs_buf *out);
void snap_disk_encode(const struct snap_disk *d, struct mcfs_buf *out);
void snap_dfs_encode(const struct snap_dfs *d, struct mcfs_buf *out);

/* Space held for a put that timed out; free to reclaim once the deadline has passed. */
struct snap_discarded {
    int64_t release_ms;
    uint64_t bytes;
    uint32_t replica_count;
    const struct snap_replica *replicas;
};
/* The array `discarded_replicas`: fn returns 0, or -1 to end the walk with its err. */
int snap_discarded_decode(struct mcfs_slice content,
                          int (*fn)(const struct snap_discarded *d, void *arg,
                                    struct mcfs_error *err),
                          void *arg, struct mcfs_error *err);
void snap_discarded_encode(const struct snap_discarded *list, uint32_t count, struct mcfs_buf *out);

/* ---- the image: segments ---- */

/* State of an offset allocator.  Its two large arrays stay packed until they are asked for. */
struct snap_allocator {
    struct mcfs_slice segment_name;
    uint64_t segment_base, total_bytes, used_bytes;
    struct mcfs_slice endpoint;
    struct mcfs_alloc_state state;               /* without nodes and free_nodes */
    struct mcfs_slice packed_nodes, packed_free; /* as MessagePack values */
};

struct snap_segment {
    struct mcfs_id id;
    struct mcfs_slice name;
    uint64_t base, size;
    struct mcfs_slice endpoint;
    int16_t status; /* 0 undefined 1 ok 2 draining 3 drained 4 gracefully unmounting 5 unmounting */
    const struct snap_allocator *allocator; /* NULL: none */
    struct mcfs_slice host;
};

struct snap_client_segments {
    struct mcfs_id client;
    const struct mcfs_id *segments;
    uint32_t count;
};

struct snap_offload_task {
    struct mcfs_slice encoded_key, tenant, key; /* encoded: tenant, 0x00, key */
    int64_t size;
};

struct snap_local_disk {
    struct mcfs_id client;
    bool enable_offloading;
    const struct snap_offload_task *tasks;
    uint32_t task_count;
    int64_t capacity_bytes;
};

struct snap_segments {
    int32_t allocator_type;         /* 1: offset */
    const struct mcfs_slice *names; /* in allocation order */
    uint32_t name_count;
    const struct snap_segment *segments; /* this and the next two ascend by id */
    uint32_t segment_count;
    const struct snap_client_segments *clients;
    uint32_t client_count;
    const struct snap_local_disk *local_disks;
    uint32_t local_disk_count;
};

/* The decompressed file `segments`.  The result borrows from content. */
struct snap_segments *snap_segments_decode(struct mcfs_slice content, struct mcfs_error *err);
void snap_segments_free(struct snap_segments *s);
int snap_segments_encode(const struct snap_segments *s, struct mcfs_buf *out,
                         struct mcfs_error *err);

/* Unpacks an allocator's current_capacity nodes and as many free slots, with every index checked;
 * the caller frees both. */
int snap_allocator_unpack(const struct snap_allocator *a, struct mcfs_alloc_node **nodes,
                          uint32_t **free_nodes, struct mcfs_error *err);
/* Packs them into out, an empty buffer of this allocator's own, and makes packed_nodes and
 * packed_free point into it. */
int snap_allocator_pack(struct snap_allocator *a, const struct mcfs_alloc_node *nodes,
                        const uint32_t *free_nodes, struct mcfs_buf *out, struct mcfs_error *err);

/* ---- the image: tasks ---- */

struct snap_task {
    struct mcfs_slice id;
    int32_t type, status;
    struct mcfs_slice payload; /* JSON */
    int64_t created_ms, updated_ms;
    struct mcfs_slice message, client; /* that it is assigned to */
};
/* The decompressed file `task_manager`: fn returns 0, or -1 to end the walk with its err. */
int snap_tasks_decode(struct mcfs_slice content,
                      int (*fn)(const struct snap_task *t, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err);
void snap_tasks_encode(const struct snap_task *tasks, uint32_t count, struct mcfs_buf *out);

/* ---- the image: what Mooncake has no room for ---- */

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

/* An S3 bucket: "bucket[/prefix]", without a bucket's name MOONCAKE_AWS_BUCKET_NAME.  The rest
 * comes from the environment: MOONCAKE_AWS_{REGION, S3_ENDPOINT, ACCESS_KEY_ID, SECRET_ACCESS_KEY,
 * USE_VIRTUAL_ADDRESSING, USE_HTTPS, CONNECT_TIMEOUT_MS, REQUEST_TIMEOUT_MS}, with the usual AWS_*
 * behind them.  The server is not asked anything yet.  A child of fork may use the store; its first
 * call must come from one thread. */
struct mcfs_object_store *snap_store_s3_open(const char *place, struct mcfs_error *err);

/* "s3://bucket[/prefix]", or a directory. */
struct mcfs_object_store *snap_store_open(const char *where, struct mcfs_error *err);

/* Snapshots that are there already, wherever they lie: `where` is a store's root, one cluster's
 * folder, a folder of copies, or a single snapshot (its last part is the id, then), in a directory
 * or in S3.  cluster NULL: the only one there is, or mooncake_cluster.  Nothing is made or written
 * by opening; where snapshots do not lie as in a store's root, they can only be read. */
struct snap_place {
    struct mcfs_object_store *store;
    char cluster[256];
    char id[SNAP_ID_SIZE]; /* "" unless `where` is a snapshot */
};
int snap_place_open(const char *where, const char *cluster, struct snap_place *out,
                    struct mcfs_error *err);
void snap_place_close(struct snap_place *p);

/* ---- encoding one shard; any thread, one encoder each ---- */

struct snap_encoder;
struct snap_encoder *snap_encoder_new(void);
void snap_encoder_free(struct snap_encoder *e);

void snap_encode_begin(struct snap_encoder *e);
/* Objects in (tenant, key) order.  No allocation once the encoder's buffers have grown. */
int snap_encode_object(struct snap_encoder *e, const struct snap_object *o, struct mcfs_error *err);
/* The shard's frames for `metadata` and for `mooncakefs`; valid until the next begin. */
int snap_encode_end(struct snap_encoder *e, struct mcfs_slice *metadata, struct mcfs_slice *extra,
                    struct mcfs_error *err);

/* ---- writing a snapshot; one thread at a time ---- */

struct snap_writer;

struct snap_writer_config {
    struct mcfs_object_store *store;
    const char *cluster; /* may be "" */
    const char *id;
    struct snap_info info;
    uint32_t shard_count; /* shards with objects: exactly so many snap_writer_shard calls follow */
    const struct snap_node *nodes;
    uint32_t node_count;
    /* Decoded payloads of these files, made here or carried through from an earlier snapshot; len
     * 0: made from nodes. */
    struct mcfs_slice segments, tasks, discarded;
};

/* Refuses an id that is published already. */
struct snap_writer *snap_writer_begin(const struct snap_writer_config *config,
                                      struct mcfs_error *err);
/* Shards may come in any order, each once; they are stored in the order in which they come. */
int snap_writer_shard(struct snap_writer *w, uint32_t shard, struct mcfs_slice metadata,
                      struct mcfs_slice extra, struct mcfs_error *err);
/* Publishes: metadata, segments, task_manager, mooncakefs, manifest, descriptor, latest, each
 * durable before the next.  Frees the writer; after an error nothing of the snapshot is left,
 * unless only latest.txt could not be replaced. */
int snap_writer_commit(struct snap_writer *w, struct mcfs_error *err);
void snap_writer_abort(struct snap_writer *w);

/* ---- reading a snapshot; a reader may be used by several threads ---- */

struct snap_reader;
/* Checks the text files, the containers' outlines and, where `mooncakefs` is there, every file
 * against its checksum, which reads all of them once: for a restore. */
struct snap_reader *snap_reader_open(struct mcfs_object_store *store, const char *cluster,
                                     const char *id, struct mcfs_error *err);
/* The same without reading whole files (sizes are compared, and each shard is checked when it is
 * read): for browsing. */
struct snap_reader *snap_reader_open_lazily(struct mcfs_object_store *store, const char *cluster,
                                            const char *id, struct mcfs_error *err);
void snap_reader_close(struct snap_reader *r);
const struct snap_info *snap_reader_info(const struct snap_reader *r);
/* Whether the file `mooncakefs` is there. */
bool snap_reader_has_extra(const struct snap_reader *r);
/* Nodes as written down; borrowed from the reader. */
const struct snap_node *snap_reader_nodes(const struct snap_reader *r, uint32_t *count);
/* Shards that are there, as places 0..n-1. */
uint32_t snap_reader_shards(const struct snap_reader *r);
/* The place of a shard, or UINT32_MAX.  Only a snapshot with `mooncakefs` is sure to keep an object
 * in the shard that mcfs_shard_of names. */
uint32_t snap_reader_place(const struct snap_reader *r, uint32_t shard);
/* Decodes one; fn returns 0 or -1 (which ends the walk with its err). */
int snap_reader_shard(struct snap_reader *r, uint32_t place,
                      int (*fn)(const struct snap_object *o, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err);
/* Decoded payloads, for snap_segments_decode and snap_tasks_decode or to be carried through. */
int snap_reader_segments(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err);
int snap_reader_tasks(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err);
struct mcfs_slice snap_reader_discarded(const struct snap_reader *r);
/* Reads everything and decodes all of it; counts objects when `objects` is not NULL. */
int snap_reader_verify(struct snap_reader *r, uint64_t *objects, struct mcfs_error *err);

/* ---- comparing two snapshots ---- */

enum snap_change { SNAP_ADDED, SNAP_REMOVED, SNAP_CHANGED };
struct snap_difference {
    enum snap_change change;
    struct mcfs_slice tenant, key;
    uint64_t old_size, new_size;       /* bytes */
    uint64_t old_version, new_version; /* 0 where `mooncakefs` is not there */
};
struct snap_diff_counts {
    uint64_t added, removed, changed, same;
};
/* Calls fn for each difference from a to b, by shard, then tenant and key; fn returns 0 or -1.  The
 * memory it takes is that of a part of the keys, however many there are.  progress may be NULL; it
 * gets parts done and parts altogether. */
int snap_diff(struct snap_reader *a, struct snap_reader *b,
              int (*fn)(const struct snap_difference *d, void *arg, struct mcfs_error *err),
              void (*progress)(uint64_t done, uint64_t all, void *arg), void *arg,
              struct snap_diff_counts *counts, struct mcfs_error *err);

/* ---- the repository; any thread ---- */

/* A new id from the local time, later than every id there is. */
int snap_repo_new_id(struct mcfs_object_store *store, const char *cluster, char id[SNAP_ID_SIZE],
                     struct mcfs_error *err);

struct snap_entry {
    char id[SNAP_ID_SIZE];
    struct snap_info info; /* without replica_next_id, which only `metadata` knows */
    uint64_t bytes;        /* of all files */
};
/* Published snapshots (those with a readable descriptor), newest first; malloc'ed. */
int snap_repo_list(struct mcfs_object_store *store, const char *cluster, struct snap_entry **list,
                   size_t *count, struct mcfs_error *err);

/* What latest.txt names; false when it is absent or names nothing. */
bool snap_repo_latest(struct mcfs_object_store *store, const char *cluster, char id[SNAP_ID_SIZE]);

/* Ids to try in turn at a restore: what latest.txt names, then every other that is not newer;
 * without a readable latest.txt all, newest first; malloc'ed. */
int snap_repo_candidates(struct mcfs_object_store *store, const char *cluster,
                         char (**ids)[SNAP_ID_SIZE], size_t *count, struct mcfs_error *err);

/* Deletes one; when it is the latest, latest.txt moves to the next newest first. */
int snap_repo_delete(struct mcfs_object_store *store, const char *cluster, const char *id,
                     struct mcfs_error *err);

/* Keeps the newest `keep`, `current` and what latest.txt names. */
int snap_repo_retain(struct mcfs_object_store *store, const char *cluster, const char *current,
                     uint32_t keep, struct mcfs_error *err);

/* Deletes all but the newest `keep` snapshots and what latest.txt names (keep 0: none), then what
 * interrupted checkpoints left: files of snapshots without a descriptor, and temporary files, to
 * which nothing was written for min_age_ms.  *snapshots and *files count what went. */
int snap_repo_prune(struct mcfs_object_store *store, const char *cluster, uint32_t keep,
                    int64_t min_age_ms, uint32_t *snapshots, uint32_t *files,
                    struct mcfs_error *err);

/* The second part of that alone. */
int snap_repo_clear(struct mcfs_object_store *store, const char *cluster, int64_t min_age_ms,
                    uint32_t *files, struct mcfs_error *err);

/* The same for one that is about to write a snapshot, which lives at most life_ms: it becomes the
 * cluster's owner, *owner being -1 before and a descriptor to be kept until it has ended behind.
 * Then whatever is not published is a dead writer's, however young.  In a store that has no owners,
 * or while there is another, *owner stays -1 and what is younger than life_ms is left. */
int snap_repo_clear_dead(struct mcfs_object_store *store, const char *cluster, int64_t life_ms,
                         int *owner, uint32_t *files, struct mcfs_error *err);

/* Files of a published snapshot, all of them; FILE_NOT_FOUND for one that is not published, or that
 * is deleted while it is listed: then fn may have been called for some. */
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
