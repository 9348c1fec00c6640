/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_BUCKET_H
#define MCFS_BACKENDS_BUCKET_H

/*
 * The bucket backend, on disk as Mooncake's (`<id>.bucket`, `<id>.meta`), with a log beside each
 * bucket that makes it safe (bucket_log.h).
 *
 * A put appends storage key and value to the open bucket and then a PUT record to its log; both
 * with plain writes, so that the object survives the death of the process.  A large value becomes a
 * bucket of its own, by renaming its staging file: offset 0, no key before it, so that the file is
 * the object.  Nothing on the way of a put waits for the disk; sync (and a thread, every few
 * seconds) makes data and then log durable, with a SYNC record between objects that are known to be
 * whole and those that recovery has to check.
 *
 * Locks, in order: a stripe of the index, a bucket, the store's lists.  An entry changes under its
 * stripe's lock, a bucket's files and counts under the bucket's.
 */

#include "backends/bucket/bucket_log.h"
#include "common/buf.h"
#include "common/table.h"
#include <mooncakefs/backend.h>

#include <pthread.h>
#include <stdatomic.h>

extern const struct mcfs_backend_ops mcfs_bucket_ops; /* as in backends.h */

#define INDEX_STRIPES 64
#define META_MAX (256u << 20) /* bytes of a .meta or log that are read at once */

struct bucket {
    uint64_t id;
    pthread_mutex_t lock;
    bool is_open;      /* new objects go here; its log is `<id>.journal` */
    bool sealing;      /* full; sealed by its last writer */
    bool single;       /* one object and no key before it */
    bool has_log;      /* there is a .journal or .sum */
    bool meta_missing; /* sealed and without a .meta: the next sync writes it */
    bool meta_stale;   /* objects were removed or renamed since: closing writes it again */
    bool data_dirty, log_dirty;
    bool listed_dirty; /* in the store's list of dirty buckets; under the store's lock */
    bool removed;      /* its files are gone */
    uint32_t writers;  /* between reserving and having logged */
    uint32_t objects;  /* entries that lie here, dead ones with readers included */
    uint32_t keys;     /* puts so far */
    uint64_t data_end, log_end, live_bytes;
    int data_fd, log_fd;        /* -1: closed */
    uint32_t data_users;        /* readers that hold data_fd */
    struct entry *entries;      /* that lie here; dead ones leave when their last reader does */
    struct bucket *prev, *next; /* all buckets of the store */
};

struct entry {
    struct bucket *bucket;
    struct entry *before, *after; /* in its bucket; under the bucket's lock */
    char *key; /* storage key; changes under the stripes' and the bucket's lock */
    uint64_t version, offset, size;
    struct mcfs_attr attr;
    uint32_t key_len, crc32c;
    uint32_t readers; /* this and `dead` under the bucket's lock */
    uint8_t data_type;
    bool has_crc, dead, key_inline; /* key_inline: the storage key lies before the value */
};

struct index_stripe {
    pthread_mutex_t lock;
    struct mcfs_table table;
} __attribute__((aligned(64)));

struct store {
    struct mcfs_backend base;
    struct mcfs_backend_config config;
    char *dir;
    int dir_fd, lock_fd;
    struct index_stripe stripes[INDEX_STRIPES];

    pthread_mutex_t lock; /* guards what follows */
    struct bucket *buckets;
    struct bucket *current; /* open for new objects */
    uint64_t next_id;
    struct bucket **dirty;
    size_t dirty_count, dirty_cap;
    bool names_dirty; /* directory entries changed since the last sync */
    uint32_t open_fds;

    pthread_mutex_t sync_lock; /* one sync at a time */
    _Atomic uint64_t sync_asked;
    uint64_t sync_done; /* under sync_lock */

    pthread_t flusher;
    bool flusher_started;
    pthread_mutex_t flusher_lock;
    pthread_cond_t flusher_wake;
    bool stopping;

    _Atomic uint64_t objects, object_bytes, used_bytes, dead_bytes, index_bytes;
    _Atomic uint64_t puts, removes, reads, syncs, checksum_errors, bucket_count;
};

struct reader {
    struct mcfs_backend_reader base;
    struct store *store;
    struct entry *entry;
};

/* ---- bucket_index.c ---- */

static inline struct mcfs_slice entry_key(const struct entry *e)
{
    return mcfs_slice(e->key, e->key_len);
}
uint64_t index_hash(struct mcfs_slice key);
uint64_t index_entry_hash(const void *e);
struct index_stripe *index_stripe(struct store *s, struct mcfs_slice key);

/* Joins tenant, 0x00 and key into buf; INVALID_KEY when they are too long. */
int storage_key(struct mcfs_slice tenant, struct mcfs_slice key, struct mcfs_buf *buf,
                struct mcfs_error *err);

/* The caller holds the stripe's lock. */
struct entry *index_find(struct index_stripe *stripe, struct mcfs_slice key, uint64_t version);
int index_add(struct store *s, struct index_stripe *stripe, struct entry *e);
void index_del(struct store *s, struct index_stripe *stripe, struct entry *e);

struct entry *entry_new(struct mcfs_slice key);
void entry_free(struct entry *e);

/* ---- bucket_files.c ---- */

void bucket_path(const struct store *s, uint64_t id, const char *suffix, char *out, size_t cap);
struct bucket *bucket_add(struct store *s, uint64_t id); /* takes the store's lock */
void bucket_free(struct store *s, struct bucket *b);     /* takes the store's lock */
uint64_t bucket_next_id(struct store *s);

/* The data file, opened when it is not; one user more of it.  The caller holds the bucket's lock.
 */
int bucket_hold_data(struct store *s, struct bucket *b, struct mcfs_error *err);
void bucket_release_data(struct store *s, struct bucket *b);

/* Appends bytes to the log (making a .sum for a bucket without one).  The caller holds the bucket's
 * lock. */
int bucket_append_log(struct store *s, struct bucket *b, const void *data, size_t len,
                      struct mcfs_error *err);

/* Marks what has to be synced.  The caller holds the bucket's lock. */
void bucket_mark_dirty(struct store *s, struct bucket *b, bool data, bool log);

/* Removes the files of a bucket without objects: .meta first, so that none is ever without its
 * data. */
void bucket_remove_files(struct store *s, struct bucket *b);

/* Renames a file of the store into lost+found/ and says so in the log. */
void set_aside(struct store *s, const char *name, const char *why);

/* Closes idle data files while more than the cache's share is open. */
void fd_cache_trim(struct store *s);

/* ---- bucket_write.c, bucket_change.c, bucket_read.c ---- */

size_t store_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n);
size_t store_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n);
int store_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                struct mcfs_error *err);
int store_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err);

/* Enters an entry in its bucket's list and counts.  The caller holds the bucket's lock. */
void bucket_link(struct bucket *b, struct entry *e);

/* Gives the bytes of an entry that is in no index and has no reader back, and frees it. */
void entry_reclaim(struct store *s, struct entry *e);

struct mcfs_backend_reader *store_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                              struct mcfs_slice key, uint64_t version,
                                              struct mcfs_error *err);
void store_reader_close(struct mcfs_backend_reader *r);
int store_reader_fd(struct mcfs_backend_reader *r, uint64_t *offset, uint64_t *length);
int64_t store_reader_read(struct mcfs_backend_reader *r, void *buf, size_t len, uint64_t off,
                          struct mcfs_error *err);
int store_reader_verify(struct mcfs_backend_reader *r, struct mcfs_error *err);

/* ---- bucket_seal.c ---- */

/* Ends a bucket's life as the open one.  The caller holds its lock; no writer is left. */
void bucket_seal(struct store *s, struct bucket *b);

/* Writes the .meta from the index. */
int bucket_write_meta(struct store *s, struct bucket *b, struct mcfs_error *err);

/* ---- bucket_sync.c ---- */

int store_sync(struct mcfs_backend *b, struct mcfs_error *err);
int flusher_start(struct store *s, struct mcfs_error *err);
void flusher_stop(struct store *s);

/* ---- bucket_recover.c ---- */

int store_recover(struct store *s, struct mcfs_backend_recovery *out, struct mcfs_error *err);

#endif
