/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_OFFSET_STORE_H
#define MCFS_BACKENDS_OFFSET_STORE_H

/*
 * The offset store, written: kv_cache.data and kv_cache.meta as Mooncake has them, and beside them
 * an index and a journal (offset_log.h), from which we recover.
 *
 * A put takes a range from the allocator, writes the record there, and then a PUT record into the
 * journal; both with plain writes, so that the object survives the death of the process.  What else
 * happens to objects is a record, too.  A sync makes the data durable, then the journal, with a
 * SYNC record between objects that are known to be whole and those that recovery has to check.  A
 * checkpoint writes index and kv_cache.meta anew and drops the journal's records before it.
 *
 * What a crash finds, and why it never finds wrong bytes:
 *  - A range is in one of three states: in use, waiting, free.  Only a free one is given out.  It
 *    waits from the removal of its object until (1) no reader is left, (2) the DELETE record is
 *    durable (a checkpoint has been written, when records have no checksums, because Mooncake goes
 *    by kv_cache.meta alone), and (3) the record's head has been overwritten with zeros, so that
 *    neither an old checkpoint nor a view of the directory takes what comes there for it.
 *  - A PUT record is written after its data, but either may reach the disk first: after a power
 *    cut, values behind the last SYNC are held against their checksums, and dropped when they
 *    differ.
 *  - The index names the kv_cache.meta that it was written with and the one before, so that either
 *    may lie there when the machine stops between the two renames, and that one of Mooncake's is
 *    known for what it is: then Mooncake's rules of recovery are followed, not our index.
 *  - The journal begins with a position, and the index says up to which one it knows the journal:
 *    index and journal need not be replaced together.
 *  - Index and journal carry an epoch, and the data file carries it in its heads: each is compared
 *    with what the index says unless the file is exactly as the checkpoint left it.
 *
 * Records are placed in units of 4096 bytes: values then begin at multiples of 4096 in the file,
 * which direct I/O and copying without reading (reflinks) need, and no block holds parts of two
 * records.  That costs 2 KiB for an average object, beside the 4 KiB of its head.
 *
 * Locks, in order: checkpoint_lock, sync_lock, lock, a stripe of the index.  An entry's name
 * changes under `lock` and its stripe's; who holds either may look at it.
 */

#include "backends/flush_thread.h"
#include "backends/io/io.h"
#include "backends/offset/offset_image.h"
#include "backends/storage_key.h"
#include "common/offset_allocator.h"
#include "common/table.h"

#include <pthread.h>

#define OFFSET_STRIPES 64
#define OFFSET_UNIT_BITS 12u
#define OFFSET_BLOCK 4096ull

enum offset_mode { OFFSET_RELAXED, OFFSET_STRICT, OFFSET_DISABLED };

struct offset_stripe {
    pthread_mutex_t lock;
    struct mcfs_table table;
    struct evict_line line;
} __attribute__((aligned(64)));

struct offset_store {
    struct mcfs_backend base;
    struct mcfs_backend_config config;
    enum offset_mode mode;
    char *dir;
    int dir_fd, lock_fd, data_fd;
    enum io_engine io;
    struct offset_stripe stripes[OFFSET_STRIPES];
    struct evict_order order;

    pthread_mutex_t lock; /* guards what follows */
    struct mcfs_offset_allocator *allocator;
    struct offset_list all;         /* in the order of their puts; dead ones until they are free */
    struct offset_list in_flight;   /* have a range, and no PUT record yet */
    struct offset_entry *waiting;   /* dead ones, by `waits` */
    struct offset_entry *releasing; /* those whose ranges are becoming free just now */
    uint64_t insert_seq;
    uint64_t used_bytes; /* of ranges that are not free */
    int journal_fd;
    uint64_t journal_base, journal_end; /* positions */
    bool data_unflushed; /* the data file may have been written since its last flush */
    bool journal_broken; /* a record could not be taken back: a checkpoint mends it */

    pthread_mutex_t sync_lock; /* one sync at a time; guards what follows */
    uint64_t synced;           /* everything before this position is durable */
    uint64_t quiet;            /* end of the journal when it was */
    bool never_sure;           /* a flush failed once: no SYNC record is written any more */

    pthread_mutex_t checkpoint_lock; /* one at a time; guards what follows */
    uint64_t epoch;
    struct offset_digest meta; /* of kv_cache.meta */
    uint64_t checkpointed;     /* the index knows the journal to here */

    struct flush_thread *flusher;
    int64_t checkpoint_at_ms; /* the flusher's: when the next one is due */

    _Atomic uint64_t objects, object_bytes, index_bytes;
    atomic_uint strict_puts; /* under way */
    _Atomic uint64_t puts, removes, reads, syncs, checksum_errors;
};

struct offset_reader {
    struct mcfs_backend_reader base;
    struct offset_store *store;
    struct offset_entry *entry;
    /* Of the entry, which may get another name meanwhile: */
    uint64_t offset;
    uint32_t size;
};

extern const struct mcfs_backend_ops mcfs_offset_store_ops;

struct mcfs_backend *offset_store_open(const struct mcfs_backend_config *config,
                                       struct mcfs_backend_recovery *recovery,
                                       struct mcfs_error *err);

/* ---- offset_index.c: (storage key, version) -> entry ---- */

struct offset_stripe *offset_stripe(struct offset_store *s, struct mcfs_slice key);
uint64_t offset_index_hash(const void *e);

/* The caller holds the stripe's lock, or the store's. */
struct offset_entry *offset_index_find(struct offset_stripe *stripe, struct mcfs_slice key,
                                       uint64_t version);

/* Enters an entry, or takes it out.  The caller holds the store's lock, and no stripe's.  add: 0 or
 * -1 without memory. */
int offset_index_add(struct offset_store *s, struct offset_entry *e);
void offset_index_del(struct offset_store *s, struct offset_entry *e);

/* The same for an entry that is dead from now on: its range waits to be free. */
void offset_index_kill(struct offset_store *s, struct offset_entry *e);

/* ---- offset_put.c, offset_change.c, offset_reader.c, offset_scan.c ---- */

size_t offset_store_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n);
size_t offset_store_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n);
int offset_store_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                       uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                       struct mcfs_error *err);
int offset_store_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                          uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err);
int offset_store_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg,
                      struct mcfs_error *err);
struct mcfs_backend_reader *offset_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err);
void offset_reader_close(struct mcfs_backend_reader *r);
int offset_reader_fd(struct mcfs_backend_reader *r, uint64_t *offset, uint64_t *length);
int64_t offset_reader_read(struct mcfs_backend_reader *r, void *buf, size_t len, uint64_t off,
                           struct mcfs_error *err);
int offset_reader_verify(struct mcfs_backend_reader *r, struct mcfs_error *err);
bool offset_reader_is_verified(const struct mcfs_backend_reader *r);
size_t offset_store_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n);

/* Room for a record, by releasing what waits when that is needed; the entry gets seq,
 * offset and node, and is listed as in flight.  0, or -1: NO_AVAILABLE_HANDLE. */
int offset_take_room(struct offset_store *s, struct offset_entry *e, struct mcfs_error *err);

/* Bytes of its range. */
uint64_t offset_room(const struct offset_store *s, const struct offset_entry *e);

/* Gives an entry up that is in flight: frees it and its room.  Takes the store's lock. */
void offset_give_up(struct offset_store *s, struct offset_entry *e);

/* Writes an entry's record, but for the value: head, key, zeros. */
int offset_write_head(struct offset_store *s, const struct offset_entry *e, struct mcfs_error *err);

/* ---- offset_journal.c ---- */

/* Appends records to the journal, all or nothing.  The caller holds the store's lock.  A store that
 * keeps nothing has no journal: then it only counts. */
int offset_journal_append(struct offset_store *s, const struct mcfs_buf *records,
                          struct mcfs_error *err);

/* A journal that begins at position `from` and has the present one's records from there on takes
 * its place, durably.  The caller holds the sync lock and the store's. */
int offset_journal_renew(struct offset_store *s, uint64_t from, struct mcfs_error *err);

/* Goes on with the journal that lies there, and is whole. */
int offset_journal_open(struct offset_store *s, struct mcfs_error *err);

int offset_store_sync(struct mcfs_backend *b, struct mcfs_error *err);

/* Makes the data file durable.  Once that has failed it fails for good.  The caller holds the sync
 * lock. */
int offset_flush_data(struct offset_store *s, struct mcfs_error *err);

/* Makes everything before a position of the journal durable; those who come meanwhile share the
 * next flush. */
int offset_sync_to(struct offset_store *s, uint64_t position, struct mcfs_error *err);

/* Makes free what waits and may be given out.  Takes the sync lock. */
void offset_release(struct offset_store *s);

/* ---- offset_checkpoint.c, offset_flusher.c ---- */

int offset_checkpoint(struct offset_store *s, struct mcfs_error *err);

/* An index that says that nothing is kept, durably. */
int offset_write_nothing_kept(struct offset_store *s, struct mcfs_error *err);

/* A thread syncs every few seconds what was put without a sync, and takes checkpoints. */
int offset_flusher_start(struct offset_store *s, struct mcfs_error *err);

/* ---- offset_evict.c ---- */

/* Before anything is entered in the index. */
int offset_init_order(struct offset_store *s, const char *policy, struct mcfs_error *err);

/* As in the table. */
int64_t offset_evict_choose(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                            struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err);
size_t offset_evict_hold(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);
size_t offset_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);

/* ---- offset_recover.c ---- */

int offset_recover(struct offset_store *s, struct mcfs_backend_recovery *out,
                   struct mcfs_error *err);

#endif
