/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOONCAKEFS_BACKEND_H
#define MOONCAKEFS_BACKEND_H

/*
 * A node-local store: the second index of the two-level look-up, (tenant, key, version) -> file and
 * offset.  Backends differ in layout only; everything else in the project goes through this table.
 *
 * Invariants every backend keeps:
 *  - An object is named by tenant, key and version together.  Two versions of a key may be stored
 * at the same time (the old one stays readable until the master has published the new one).  A read
 *    that names a version gets these bytes or REPLICA_IS_GONE, never another version's.
 *  - put of a version that is stored already is success.
 *  - When put returns, the object survives the death of the process.  After sync it survives power
 *    loss as well.  An object is either recovered whole or not at all.
 *  - remove returns when no new reader can start; readers that are open keep reading; space comes
 * back when the last one closes.
 *  - Files that the backend does not understand are set aside in lost+found/, never deleted.
 *
 * Thread safety: every function may be called from any thread at any time between open and close.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

struct mcfs_backend_ops;

/* Every store embeds this as its first member, and every reader the other. */
struct mcfs_backend {
    const struct mcfs_backend_ops *ops;
};
struct mcfs_backend_reader {
    const struct mcfs_backend_ops *ops;
};

/* What a backend needs to open a directory.  Zero means "the default" for sizes and limits. */
struct mcfs_backend_config {
    const char *dir;   /* directory of the store; created when absent */
    bool read_only;    /* take no lock, write nothing; for looking at foreign directories */
    const char *fsdir; /* file per key: the folder that holds the files; "file_per_key_dir" */
    /* Objects of buckets that Mooncake wrote get the bucket's id as their version, not 1: so that a
     * key that it stores again, elsewhere, is another version to who reads the store again. */
    bool versions_by_bucket;
    /* The same directory as the same layout read it before, open still; or NULL.  What has been
     * checked then, and is what it was, need not be checked once more. */
    struct mcfs_backend *previous;
    uint64_t bucket_size_limit;       /* bytes; 256 MiB */
    uint64_t bucket_keys_limit;       /* objects; 500 */
    uint64_t capacity_bytes;          /* most bytes of values stored; 0: what the disk holds */
    uint64_t single_object_min_bytes; /* from this size an object is a file of its own; 1 MiB */
    uint32_t flush_interval_ms;       /* background sync of what was put without sync; 5000 */
    uint64_t compact_bytes_per_sec;   /* buckets: most that is moved out of thin ones; 0: nothing */
    const char *eviction_policy;      /* "none" (default), "fifo", "lru" */
    /* How batches reach the disk: "auto" (default; io_uring where the kernel allows it), "uring"
     * (the same, with a warning where it does not), "plain" (plain system calls). */
    const char *io_engine;
    /* Offset allocator: */
    const char *offset_persist;     /* "relaxed" (default), "strict", "disabled" */
    uint32_t offset_checkpoint_ms;  /* between checkpoints; 60,000 */
    uint32_t offset_nodes_max;      /* ranges of kv_cache.data, free ones included; 2^24 */
    bool offset_without_record_crc; /* records that are written carry no checksum */
};

/* What open found; for status and log lines. */
struct mcfs_backend_recovery {
    uint64_t objects, bytes;
    uint64_t dropped_objects; /* torn or corrupt, proven bad */
    uint64_t set_aside_files; /* renamed into lost+found/ */
    uint64_t buckets;
};

/* One object of a put batch. */
struct mcfs_backend_put {
    struct mcfs_object object; /* crc32c is computed by the backend when has_crc is false */
    const void *data;          /* the value; or NULL and: */
    const char *staging_path;  /* a file of exactly `size` bytes on the store's file system; on
                                  success  it has been consumed (renamed or copied and removed) */
    struct mcfs_error err;     /* result of this item: err.code == MCFS_OK on success */
};

/* One value, or a part of one, of a get batch. */
struct mcfs_backend_get {
    struct mcfs_slice tenant, key;
    uint64_t version;
    uint64_t offset; /* within the value */
    void *buf;
    size_t len;            /* bytes wanted; what lies beyond the value's end is left out */
    bool direct;           /* past the page cache where that can be: what is read once only */
    size_t got;            /* result: bytes read; 0 with an error */
    struct mcfs_error err; /* result of this item: REPLICA_IS_GONE when it is not stored */
};

/* Where a stored version lies. */
struct mcfs_backend_place {
    char file[600];          /* name relative to the store's directory */
    uint64_t offset, length; /* of the value in the file, bytes */
    uint32_t crc32c;
    bool has_crc;
    bool whole_file; /* offset is 0 and the file holds nothing else */
};

struct mcfs_backend_stats {
    uint64_t objects, object_bytes; /* live values */
    uint64_t capacity_bytes,
        used_bytes; /* of the tier; used counts dead bytes not yet given back */
    uint64_t dead_bytes;
    uint64_t buckets, open_buckets;
    uint64_t index_bytes; /* memory of the index */
    uint64_t puts, removes, reads, syncs, evictions, evicted_bytes, checksum_errors;
    uint64_t compactions, compacted_bytes; /* buckets emptied, bytes of values moved for that */
    const char *io_engine;                 /* in use for batches: "uring" or "plain"; static */
};

/* What is stored takes so much; removed objects give the rest back at the latest when a put needs
 * it. */
static inline uint64_t mcfs_backend_live_bytes(const struct mcfs_backend_stats *s)
{
    return s->used_bytes > s->dead_bytes ? s->used_bytes - s->dead_bytes : 0;
}

/* One object name for remove. */
struct mcfs_backend_name {
    struct mcfs_slice tenant, key;
    uint64_t version;
    struct mcfs_error err; /* result of this item; a version that is not stored is success */
};

/* How far a round of eviction has come; all zero: at its beginning. */
struct mcfs_backend_cursor {
    uint64_t order, version, tie; /* of the last victim chosen; the store knows what they mean */
};

/* A version that may be evicted. */
struct mcfs_backend_victim {
    struct mcfs_slice tenant, key; /* live until evict_end */
    uint64_t version, size;        /* bytes of the value */
    bool held;                     /* set by evict_hold: no reader can be opened */
    bool gone;                     /* set by the caller: nobody is told any more that it is here */
    struct mcfs_error err;         /* result of evict_end for this one */
    void *memory;                  /* the store's */
};

/* Called for each stored object; return false to stop.  Slices live until it returns. */
typedef bool (*mcfs_backend_scan_fn)(const struct mcfs_object *object, void *arg);

struct mcfs_backend_ops {
    const char *name; /* as in MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR */

    /* Opens and recovers the directory.  Refuses (FILE_LOCK_FAIL, naming the pid) one that another
     * process has open for writing. */
    struct mcfs_backend *(*open)(const struct mcfs_backend_config *config,
                                 struct mcfs_backend_recovery *recovery, struct mcfs_error *err);

    /* Stores n objects; per-item results in items[i].err.  Returns the number that failed. */
    size_t (*put)(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n);

    /* Opens one version for reading; REPLICA_IS_GONE when it is not stored.  The reader keeps the
     * bytes alive until reader_close. */
    struct mcfs_backend_reader *(*reader_open)(struct mcfs_backend *b, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err);
    void (*reader_close)(struct mcfs_backend_reader *r);

    /* File descriptor (owned by the reader) and place of the value, for splice, sendfile, mmap and
     * kernel passthrough.  Returns -1 when the backend cannot offer one. */
    int (*reader_fd)(struct mcfs_backend_reader *r, uint64_t *offset, uint64_t *length);

    /* Reads up to len bytes at off within the value; returns the count (0 at the end) or -1.  A
     * value whose file turns out shorter than the index says is CHECKSUM_MISMATCH. */
    int64_t (*reader_read)(struct mcfs_backend_reader *r, void *buf, size_t len, uint64_t off,
                           struct mcfs_error *err);

    /* Reads n values or parts of values as one batch; per-item results in items[i].got and .err,
     * with what reader_open and reader_read would say.  Returns the number that failed. */
    size_t (*get)(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n);

    /* Checks the whole value against its CRC-32C; 0 when it matches or none is known.  A value that
     * was found wrong cannot be opened any more. */
    int (*reader_verify)(struct mcfs_backend_reader *r, struct mcfs_error *err);

    /* Whether the value has been put, or reader_verify has found it right, since the store was
     * opened. NULL: the layout has no checksums. */
    bool (*reader_is_verified)(const struct mcfs_backend_reader *r);

    /* Eviction, which the node drives (fs/node/evict.c): choose, hold, ask the master, end.
     *
     * evict_choose names up to max versions that should go next, oldest first in the order of the
     * store's policy, until they cover `bytes` of it or no more stand behind *at, which is moved:
     * what the caller refuses is not offered again in this round.  Nothing changes yet.  Returns
     * how many, 0 when nothing is left, or -1 (INVALID_PARAMS: the policy is none).  evict_end must
     * follow.  NULL: the layout does not evict. */
    int64_t (*evict_choose)(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                            struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err);

    /* Holds victims back: from now on no reader can be opened for them (REPLICA_IS_GONE), nor are
     * they given other names; a scan still visits them.  One that is not there any more, or held
     * back already, is not marked `held`.  Returns how many are. */
    size_t (*evict_hold)(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);

    /* Removes, as `remove` does, those victims that are held and gone, and takes the other held
     * ones back as they were, which cannot fail.  Frees what the victims hold; returns the number
     * that could not be removed: these cannot be opened any more, but after a restart they are
     * there. */
    size_t (*evict_end)(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);

    /* Forgets n versions; returns the number that failed. */
    size_t (*remove)(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n);

    /* Atomically gives the stored bytes of (tenant, from, from_version) the name
     * (tenant, to, to_version) without copying them; REPLICA_IS_GONE when `from` is not stored.
     * After a crash exactly one of the two names is found. */
    int (*rekey)(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                 uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                 struct mcfs_error *err);

    /* Replaces the attributes kept with a version. */
    int (*set_attr)(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                    uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err);

    int (*locate)(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                  uint64_t version, struct mcfs_backend_place *place, struct mcfs_error *err);

    /* Visits every stored object, older ones first where that is known.  fn may call the
     * store; an object that goes meanwhile may be visited all the same. */
    int (*scan)(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg, struct mcfs_error *err);

    /* Makes everything put, removed, renamed and set so far survive power loss. */
    int (*sync)(struct mcfs_backend *b, struct mcfs_error *err);

    void (*stats)(struct mcfs_backend *b, struct mcfs_backend_stats *out);

    /* Seals, syncs and releases.  All readers must be closed before. */
    int (*close)(struct mcfs_backend *b, struct mcfs_error *err);
};

#endif
