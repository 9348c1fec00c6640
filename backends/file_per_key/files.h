/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_FILES_H
#define MCFS_BACKENDS_FILES_H

/*
 * The file-per-key backend.  What it writes lies in a folder of its own below the store's
 * directory, beside the folder that Mooncake's own layout has there:
 *
 *   mooncakefs_files/format               says what this is, and in which format (files_marker.h)
 *   mooncakefs_files/<s>.log              16 logs, s from 0 to f: what the files' names stand for
 *   mooncakefs_files/values/<s><t>/<id>   the values: id in 16 hexadecimal digits, t its last; a
 *                                         folder is made when it is needed
 *   mooncakefs_files/new/                 values that are being written
 *
 * A file is a value and nothing else, so that the kernel can read it by itself.  It is named by a
 * number that is never used again; storage key, version, attributes and checksum stand in the log
 * of its shard, in the records of a bucket's log (bucket_log.h) with `offset` being the file's
 * number.  A file stays in its shard whatever its object is renamed to, so everything that happens
 * to it is in one log, and a rename is one record.
 *
 * A put gives the file its name and then appends the record, both under the shard's lock: what is
 * in the log is there, and a file that is numbered after all that the log knows is an unfinished
 * put.  A removal is a record; the file goes with the next flush, once that record is durable: a
 * file that is missing is always damage.  Nothing on the way of a put waits for the disk; a sync
 * makes files, then names, then logs durable, with a SYNC record between values that are known to
 * be whole and those that recovery has to check.
 *
 * Mooncake's own files are served as they are.  Who renames such an object or sets its attributes
 * gets a copy of it that is ours under the same name first; the original goes.
 *
 * Locks, in order: a stripe of the index, a shard.
 */

#include "backends/bucket/bucket_log.h"
#include "backends/catalog.h"
#include "backends/evict_order.h"
#include "backends/flush_thread.h"
#include "backends/io/io.h"
#include "backends/shared_sync.h"
#include "backends/storage_key.h"

#include <pthread.h>

#define FILES_DIR "mooncakefs_files"
#define FILES_SHARDS 16u  /* logs */
#define FILES_FOLDERS 16u /* of each shard */
#define FILES_STRIPES 64u
#define FILES_NAME 40 /* room for a value's path below FILES_DIR */

/* What is known of a value's bytes; what was put is good. */
enum file_state { FILE_UNCHECKED, FILE_GOOD, FILE_BAD };

struct file_entry {
    struct file_entry *before, *after; /* in its shard, by id; under the shard's lock */
    char *key;                         /* storage key; changes under the stripes' and shard's */
    uint64_t version, id, size;
    struct evict_link evict; /* under its stripe's lock */
    struct mcfs_attr attr;
    uint32_t key_len, crc32c;
    _Atomic uint32_t users; /* being stored is one; readers and scans */
    _Atomic(enum file_state) checked;
    uint8_t data_type, shard;
    bool has_crc;
    bool dead; /* under the shard's lock */
};

struct file_id {
    uint64_t id, size;
};

struct file_ids {
    struct file_id *v;
    size_t count, cap;
};

struct file_shard {
    pthread_mutex_t lock;
    int log_fd; /* -1: read-only, or there is none */
    uint64_t log_end;
    uint64_t log_base; /* length when it was last as short as possible */
    struct file_entry *first, *last;
    struct file_ids unsynced; /* put since the last sync */
    struct file_ids dead;     /* removed; their files are there still */
    bool sync_all;            /* the list of unsynced ones is not complete */
    bool never_sure; /* flushing its files failed once: no SYNC record is to be trusted any more */
    bool log_dirty;
    bool renew;           /* the log names what recovery dropped */
    uint32_t names_dirty; /* a bit for each folder whose names changed since the last sync */
};

struct file_pending {
    struct file_pending *next;
    struct mcfs_slice key;
    uint64_t version;
};

struct file_stripe {
    pthread_mutex_t lock;
    pthread_cond_t put_done;
    struct file_pending *pending;
    struct mcfs_table table;
    struct evict_line line;
} __attribute__((aligned(64)));

enum files_marker { MARKER_GOOD, MARKER_MISSING, MARKER_DAMAGED };

struct files {
    struct mcfs_backend base;
    struct mcfs_backend_config config;
    char *dir;
    const struct finding_sink *sink; /* the store is being checked: findings go here, not the log */
    int dir_fd, own_fd, lock_fd;     /* own_fd: of FILES_DIR, -1 when there is none (read-only) */
    enum io_engine io;
    uint64_t device;
    enum files_marker marker; /* as it was found */
    struct file_stripe stripes[FILES_STRIPES];
    struct file_shard shards[FILES_SHARDS];
    _Atomic uint64_t next_id, next_new;

    struct catalog *mooncake; /* Mooncake's own files, or NULL */
    uint64_t mooncake_dropped;
    struct evict_order order;
    atomic_bool folders_made;   /* since the last sync */
    atomic_bool mooncake_dirty; /* some were removed since the last sync */

    struct shared_sync sync;
    struct flush_thread *flusher;

    _Atomic uint64_t objects, object_bytes, used_bytes, index_bytes;
    _Atomic uint64_t puts, removes, reads, syncs, checksum_errors;
};

/* ---- files_index.c ---- */

static inline struct mcfs_slice file_key(const struct file_entry *e)
{
    return mcfs_slice(e->key, e->key_len);
}

uint64_t file_entry_hash(const void *e);
struct file_stripe *file_stripe(struct files *s, struct mcfs_slice key);

/* In any table of entries. */
struct file_entry *file_find(const struct mcfs_table *t, struct mcfs_slice key, uint64_t version);

/* The caller holds the stripe's lock. */
int file_index_add(struct files *s, struct file_stripe *stripe, struct file_entry *e);
void file_index_del(struct files *s, struct file_stripe *stripe, struct file_entry *e);

/* Announces a put, waiting for another one of the same version.  Returns false when that version is
 * stored already; else file_end_put must follow. */
bool file_begin_put(struct file_stripe *stripe, struct file_pending *p);

/* Ends a put: enters e, which may be NULL.  Returns 0, or -1 without memory. */
int file_end_put(struct files *s, struct file_stripe *stripe, struct file_pending *p,
                 struct file_entry *e);

struct file_entry *file_entry_new(struct mcfs_slice key);
void file_entry_use(struct file_entry *e);
void file_entry_drop(struct file_entry *e); /* the last user frees it; NULL is fine */

/* Enters an entry at the end of its shard's list, or takes it out.  The caller holds the shard's
 * lock or is alone. */
void file_link(struct file_shard *h, struct file_entry *e);
void file_unlink(struct file_shard *h, struct file_entry *e);

/* Appends to a list; -1 without memory. */
int file_ids_add(struct file_ids *l, uint64_t id, uint64_t size);

/* ---- files_log.c ---- */

/* The path of a value below FILES_DIR. */
void file_path(unsigned shard, uint64_t id, char out[FILES_NAME]);

/* Appends a record.  The caller holds the shard's lock. */
int file_log(struct files *s, unsigned shard, const struct log_record *r, struct mcfs_error *err);

/* The PUT record of an entry. */
struct log_record file_record(const struct file_entry *e);

/* Replaces a shard's log by the shortest one of the same meaning, durably if that is asked; opens
 * it.  The names in
 * the shard's folders must be durable.  The caller holds the shard's lock or is alone. */
int file_log_renew(struct files *s, unsigned shard, bool durable, struct mcfs_error *err);

/* Whether so much was appended that this is worth it. */
bool file_log_is_long(const struct file_shard *h);

/* ---- files_recover.c ---- */

/* Reads logs and folders; for writing, also clears away what is unfinished.  s is new. */
int files_recover(struct files *s, struct mcfs_backend_recovery *out, struct mcfs_error *err);

/* ---- files_put.c ---- */

size_t files_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n);
size_t files_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n);
int files_put_one(struct files *s, struct mcfs_backend_put *item, struct mcfs_error *err);

/* ---- files_change.c ---- */

size_t files_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n);
int files_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                struct mcfs_error *err);
int files_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err);

/* Records that an entry is gone, and leaves its file to the next flush.  The caller holds its
 * stripe's lock when it is in the index. */
int file_kill(struct files *s, struct file_entry *e, struct mcfs_error *err);

/* ---- files_mooncake.c: Mooncake's own files ---- */

int mooncake_open(struct files *s, struct mcfs_error *err);
bool mooncake_has(const struct files *s, struct mcfs_slice tenant, struct mcfs_slice key,
                  uint64_t version);

/* Holds one back, or takes that back; false when it is not there, or was so before. */
bool mooncake_mark(struct files *s, const struct mcfs_backend_victim *v, bool leaving);

/* Removes a file of Mooncake's. It is fine when there is none. */
int mooncake_remove(struct files *s, struct mcfs_slice tenant, struct mcfs_slice key,
                    uint64_t version, struct mcfs_error *err);

/* Makes an object of ours of one of Mooncake's; nothing is done when it is none. */
int mooncake_adopt(struct files *s, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, struct mcfs_error *err);

/* ---- files_read.c ---- */

struct mcfs_backend_reader *files_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                              struct mcfs_slice key, uint64_t version,
                                              struct mcfs_error *err);
void files_reader_close(struct mcfs_backend_reader *r);
int files_reader_fd(struct mcfs_backend_reader *r, uint64_t *offset, uint64_t *length);
int64_t files_reader_read(struct mcfs_backend_reader *r, void *buf, size_t len, uint64_t off,
                          struct mcfs_error *err);
int files_reader_verify(struct mcfs_backend_reader *r, struct mcfs_error *err);
bool files_reader_is_verified(const struct mcfs_backend_reader *r);
int files_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg, struct mcfs_error *err);

/* ---- files_evict.c ---- */

/* Before anything is entered in the index. */
int files_init_order(struct files *s, const char *policy, struct mcfs_error *err);

/* As in the table.  Mooncake's files are older than all that is ours. */
int64_t files_evict_choose(struct mcfs_backend *b, struct mcfs_backend_cursor *at, uint64_t bytes,
                           struct mcfs_backend_victim *out, size_t max, struct mcfs_error *err);
size_t files_evict_hold(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);
size_t files_evict_end(struct mcfs_backend *b, struct mcfs_backend_victim *victims, size_t n);

/* ---- files_sync.c ---- */

int files_sync(struct mcfs_backend *b, struct mcfs_error *err);

/* The same, and what need not be done before a sync returns: files of removed objects go, logs are
 * shortened.  arg: the struct files. */
int files_flush(void *arg, struct mcfs_error *err);

/* Whether a flush would do anything. */
bool files_has_work(void *arg);

/* Gives back files of removed objects when bytes do not fit otherwise. */
int files_claim(struct files *s, uint64_t bytes, struct mcfs_error *err);

/* ---- files.c: as the table's open; sink: the store is only checked ---- */

struct files *files_open_checked(const struct mcfs_backend_config *config,
                                 const struct finding_sink *sink,
                                 struct mcfs_backend_recovery *recovery, struct mcfs_error *err);

#endif
