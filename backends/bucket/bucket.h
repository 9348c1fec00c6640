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
 * A removal is a DELETE record.  The bytes are given back by a later flush, once that record is
 * durable and the .meta no longer names them: otherwise a power cut could bring an object back
 * whose bytes are gone.
 *
 * Locks, in order: a stripe of the index, a bucket, the store's lists.  An entry changes under its
 * stripe's lock, a bucket's files and counts under the bucket's.
 */

#include "backends/bucket/bucket_entry.h"
#include "backends/bucket/bucket_log.h"
#include "backends/finding.h"
#include "backends/flush_thread.h"
#include "backends/io/io.h"
#include "backends/shared_sync.h"
#include "backends/storage_key.h"
#include "common/buf.h"
#include "common/id_table.h"
#include <mooncakefs/backend.h>

#include <pthread.h>
#include <stdatomic.h>

extern const struct mcfs_backend_ops mcfs_bucket_ops; /* as in backends.h */

#define INDEX_STRIPES 64
#define META_MAX (256u << 20)      /* bytes of a .meta or log that are read at once */
#define BUCKET_ID_MAX (1ull << 62) /* Mooncake's ids are below 2^44 for the next centuries */

struct bucket {
    uint64_t id;
    pthread_mutex_t lock;
    bool is_open;        /* new objects go here */
    bool sealing;        /* full; sealed by its last writer */
    bool single;         /* one object and nothing else in the file */
    bool has_log;        /* there is a .journal or .sum */
    bool log_is_journal; /* its log is `<id>.journal` */
    bool foreign;        /* Mooncake's: it gets a log with the first change */
    bool has_meta;       /* there is a .meta */
    bool meta_stale;     /* and it is not what the index says; or there is none and should be */
    bool has_gaps;       /* dead bytes that are not given back yet */
    bool keep_gaps;      /* not all of it is understood: its dead bytes stay */
    bool data_dirty, log_dirty;
    bool never_sure;  /* flushing its data failed once: no SYNC record is to be trusted any more */
    bool removed;     /* its files are gone */
    bool data_recent; /* data_fd was used since the cache looked last */
    uint64_t thin_live; /* live bytes when it was considered for compaction last */
    uint32_t moving;  /* moves into it or out of it that are not durable: its log stays as it is */
    uint32_t writers; /* between reserving and having logged */
    uint32_t objects; /* entries that lie here, dead ones with readers included */
    uint32_t keys;    /* puts so far */
    uint64_t data_end, log_end;
    uint64_t log_base;               /* length of the log when it was last as short as possible */
    uint64_t live_bytes, used_bytes; /* used: its share of the store's */
    int data_fd, log_fd;             /* -1: closed */
    uint32_t data_users;             /* holders of data_fd */
    struct entry *entries; /* that lie here; dead ones leave when their last reader does */

    /* Under the store's lock: */
    struct bucket *prev, *next; /* all buckets of the store */
    bool listed_dirty;          /* in the store's list of dirty buckets */
    uint32_t arrivals;          /* writers and scans on the way to its lock */
    bool listed_thin;           /* in the store's list of thin buckets, or being compacted */
    struct bucket *thin_next;
};

/* A put of (key, version) that is under way. */
struct pending_put {
    struct pending_put *next;
    struct mcfs_slice key;
    uint64_t version;
};

struct index_stripe {
    pthread_mutex_t lock;
    pthread_cond_t put_done;
    struct pending_put *pending;
    struct mcfs_id_table table; /* of entries' numbers */
    struct evict_line line;
} __attribute__((aligned(64)));

struct store {
    struct mcfs_backend base;
    struct mcfs_backend_config config;
    char *dir;
    const struct finding_sink *sink; /* the store is being checked: findings go here, not the log */
    int dir_fd, lock_fd;
    enum io_engine io;
    struct evict_order order;
    uint32_t fds_max; /* data files kept open without a user */
    struct index_stripe stripes[INDEX_STRIPES];

    pthread_mutex_t open_lock; /* one thread opens a new bucket; before all other locks */

    pthread_mutex_t lock; /* guards what follows */
    struct bucket *buckets;
    struct bucket *current; /* open for new objects */
    uint64_t next_id;
    struct bucket **dirty;
    size_t dirty_count, dirty_cap;
    bool names_dirty; /* directory entries changed since the last sync */
    uint32_t open_fds;
    struct bucket *thin; /* candidates for compaction */

    struct shared_sync sync;

    struct flush_thread *flusher;
    struct compactor *compactor; /* NULL: nothing is compacted */
    pthread_rwlock_t
        scan_lock; /* scans read; nothing is moved meanwhile.  Only ever tried to write */

    _Atomic uint64_t objects, object_bytes, live_bytes, used_bytes, index_bytes;
    _Atomic uint64_t compactions, compacted_bytes;
    _Atomic uint64_t puts, removes, reads, syncs, checksum_errors, bucket_count;
};

struct reader {
    struct mcfs_backend_reader base;
    struct store *store;
    struct entry *entry;
};

struct range {
    uint64_t from, to;
};

/* ---- bucket_index.c ---- */

uint64_t index_hash(struct mcfs_slice key);
uint64_t index_entry_hash(const void *e);
struct index_stripe *index_stripe(struct store *s, struct mcfs_slice key);

/* Number of the stripe of a key with this hash. */
static inline unsigned index_stripe_of(uint64_t hash)
{
    return (unsigned)(hash >> 58);
}

/* The caller holds the stripe's lock. */
struct entry *index_find(struct index_stripe *stripe, struct mcfs_slice key, uint64_t version);
struct entry *index_find_hashed(struct index_stripe *stripe, uint64_t hash, struct mcfs_slice key,
                                uint64_t version);
int index_add(struct store *s, struct index_stripe *stripe, struct entry *e);

/* Makes room for so many entries; takes the stripe's lock. */
void index_reserve(struct store *s, struct index_stripe *stripe, size_t entries);

/* What entries add to the store's figures. */
struct index_counts {
    uint64_t objects, object_bytes, index_bytes;
};

/* index_add in two: figures that threads share are changed once for many entries. */
int index_enter(struct store *s, struct index_stripe *stripe, struct entry *e, uint64_t hash,
                struct index_counts *counts);
void index_count(struct store *s, const struct index_counts *counts);

void index_del(struct store *s, struct index_stripe *stripe, struct entry *e);

/* Puts n in the place of e, of the same name: there is no moment at which neither can be found, and
 * the order of eviction stays. */
void index_replace(struct store *s, struct index_stripe *stripe, struct entry *e, struct entry *n);

enum begin_state { INDEX_BEGUN, INDEX_STORED, INDEX_BUSY };

/* Announces a put; after INDEX_BEGUN index_end_put must follow.  When another one of the same
 * version is under way it waits for its end, or returns INDEX_BUSY. */
enum begin_state index_begin_put(struct index_stripe *stripe, struct pending_put *p, bool wait);

/* Ends a put: enters e, which may be NULL.  Returns 0, or -1 without memory. */
int index_end_put(struct store *s, struct index_stripe *stripe, struct pending_put *p,
                  struct entry *e);

/* Enters an entry in its bucket's list and counts, or takes it out.  The caller holds the bucket's
 * lock. */
void bucket_link(struct store *s, struct bucket *b, struct entry *e);
void bucket_unlink(struct bucket *b, struct entry *e);

/* It is no longer among the live ones.  The caller holds the bucket's lock. */
void entry_kill(struct store *s, struct entry *e);

/* ---- bucket_files.c ---- */

void bucket_path(const struct store *s, uint64_t id, const char *suffix, char *out, size_t cap);
struct bucket *bucket_add(struct store *s, uint64_t id); /* takes the store's lock */
void bucket_free(struct store *s, struct bucket *b);     /* takes the store's lock */
uint64_t bucket_next_id(struct store *s);
void store_names_changed(struct store *s);

/* The data file, opened when it is not; one user more of it.  The caller holds the bucket's lock.
 */
int bucket_hold_data(struct store *s, struct bucket *b, struct mcfs_error *err);
void bucket_release_data(struct bucket *b);

/* Makes the log of a new bucket.  The caller holds the bucket's lock or is alone with it. */
int bucket_create_log(struct store *s, struct bucket *b, bool journal, struct mcfs_error *err);

/* Appends bytes to the log, making one first for a bucket that Mooncake wrote.  The caller holds
 * the bucket's lock. */
int bucket_append_log(struct store *s, struct bucket *b, const void *data, size_t len,
                      struct mcfs_error *err);

/* Marks what has to be synced.  The caller holds the bucket's lock. */
void bucket_mark_dirty(struct store *s, struct bucket *b, bool data, bool log);

/* Removes the files of a bucket without objects: .meta first, so that none is ever without its
 * data; then the bucket waits for the next sync to free it.  The caller holds the bucket's lock. */
void bucket_remove_files(struct store *s, struct bucket *b);

/* Renames a file of the store into lost+found/ and says so in the log. */
void set_aside(struct store *s, const char *name, const char *why);

/* Closes idle data files while more than the cache's share is open. */
void fd_cache_trim(struct store *s);

/* ---- bucket_space.c ---- */

/* Claims room for bytes (NO_AVAILABLE_HANDLE when the tier is full), and gives it back. */
int space_claim(struct store *s, uint64_t bytes, struct mcfs_error *err);
void space_return(struct store *s, uint64_t bytes);

/* Parts of a bucket that no entry needs, of whole blocks; NULL and *n = 0 when there are none or it
 * is too early.  The caller holds the bucket's lock and frees the result. */
struct range *bucket_gaps(const struct bucket *b, size_t *n);

/* Gives them back to the file system and corrects the bucket's share of used bytes. */
void bucket_punch(struct store *s, struct bucket *b, const struct range *gaps, size_t n);

/* ---- bucket_write.c, bucket_change.c, bucket_read.c ---- */

/* bucket_scan.c */
int store_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg, struct mcfs_error *err);

size_t store_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n);
size_t store_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n);
int store_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                struct mcfs_error *err);
int store_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err);

/* Records that an entry is gone, without touching the index.  The caller holds the bucket's lock.
 */
int bucket_log_delete(struct store *s, struct entry *e, struct mcfs_error *err);

/* Frees an entry that is in no index and has no reader; its bytes are given back with the next
 * flush, or at once when it was the bucket's last.  Takes the bucket's lock. */
void entry_reclaim(struct store *s, struct entry *e);

/* Reserves room in the open bucket; the caller is one of its writers until bucket_end_writing, and
 * until then it is not sealed.  NULL on failure. */
struct bucket *bucket_reserve(struct store *s, uint64_t bytes, uint64_t *offset,
                              struct mcfs_error *err);

/* The caller holds the bucket's lock. */
void bucket_end_writing(struct store *s, struct bucket *b);

/* Gives up a reserved place that was not filled: it is used again when it is the last, else given
 * back by a flush; what was claimed for it is returned.  The caller holds the bucket's lock. */
void bucket_give_up_place(struct store *s, struct bucket *b, uint64_t offset, uint64_t bytes);

/* The PUT record of an entry. */
void entry_record(const struct entry *e, struct mcfs_buf *out);

struct mcfs_backend_reader *store_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                              struct mcfs_slice key, uint64_t version,
                                              struct mcfs_error *err);
void store_reader_close(struct mcfs_backend_reader *r);
int store_reader_fd(struct mcfs_backend_reader *r, uint64_t *offset, uint64_t *length);
int64_t store_reader_read(struct mcfs_backend_reader *r, void *buf, size_t len, uint64_t off,
                          struct mcfs_error *err);
int store_reader_verify(struct mcfs_backend_reader *r, struct mcfs_error *err);
bool store_reader_is_verified(const struct mcfs_backend_reader *r);
size_t store_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n);

/* ---- bucket_evict.c ---- */

/* As in the table. */
int64_t store_evict_choose(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                           struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err);
size_t store_evict_hold(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);
size_t store_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);

/* Before anything is entered in the index. */
int store_init_order(struct store *s, const char *policy, struct mcfs_error *err);

/* ---- bucket_seal.c ---- */

/* No new object goes into the bucket; it is sealed now, or by its last writer.  The caller holds
 * its lock. */
void bucket_stop_writing(struct store *s, struct bucket *b);

/* Ends a bucket's life as the open one.  The caller holds its lock; no writer is left. */
void bucket_seal(struct store *s, struct bucket *b);

/* The .meta as the index has it.  The caller holds the bucket's lock. */
void bucket_make_meta(const struct bucket *b, struct mcfs_buf *out);

/* Replaces the log by the shortest one of the same meaning, durably.  The caller holds the bucket's
 * lock. */
int bucket_rewrite_log(struct store *s, struct bucket *b, struct mcfs_error *err);

/* Whether so much was appended that this is worth it. */
bool bucket_log_is_long(const struct bucket *b);

/* ---- bucket_sync.c ---- */

int store_sync(struct mcfs_backend *b, struct mcfs_error *err);

/* The same, and all that need not be done before a sync returns: .meta files, space given back,
 * logs shortened. */
int store_flush(void *arg, struct mcfs_error *err);

/* Makes the log of a bucket durable; 0, or -1 with errno set. */
int bucket_sync_log(struct store *s, const struct bucket *b);

/* Whether a flush would do anything. */
bool store_has_work(void *store);

/* ---- bucket_thin.c, bucket_compact.c ---- */

/* Puts a bucket that may be worth compacting on the store's list.  The caller holds its lock. */
void compact_consider(struct store *s, struct bucket *b);

/* Starts the thread that compacts, where the store is to. */
int compact_start(struct store *s, struct mcfs_error *err);

/* Ends it, when what it is at is done. */
void compact_stop(struct store *s);

/* One round of what that thread does: looks through the thin buckets, and moves out of those that
 * have lost nothing since the last look.  0, or -1 when something failed, which is tried again by
 * the next round. */
int store_compact(struct store *s, struct mcfs_error *err);

/* Somebody finds no room: waits until nothing is held twice on account of a move, and keeps moves
 * from taking room for a moment. */
void compact_yield(struct store *s);

/* ---- bucket.c: as the table's open; sink: the store is only checked ---- */

struct mcfs_backend *store_open_checked(const struct mcfs_backend_config *config,
                                        const struct finding_sink *sink,
                                        struct mcfs_backend_recovery *recovery,
                                        struct mcfs_error *err);

/* ---- bucket_check.c ---- */

/* Tells the sink, one thread at a time.  False when nobody listens: then the log is to be told. */
bool store_report(const struct store *s, const struct finding *f);

/* ---- bucket_recover.c ---- */

int store_recover(struct store *s, struct mcfs_backend_recovery *out, struct mcfs_error *err);

#endif
