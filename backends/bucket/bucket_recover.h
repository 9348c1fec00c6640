/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_BUCKET_RECOVER_H
#define MCFS_BACKENDS_BUCKET_RECOVER_H

/*
 * Recovery in two steps.  First everything is read, by several threads, and nothing is touched; a
 * reason to refuse the directory (a newer format, an I/O error) ends it here.  Then what was noted
 * is done, by one thread: files set aside, logs cut, open buckets sealed.
 */

#include "backends/bucket/bucket.h"

enum { HAS_DATA = 1, HAS_META = 2, HAS_JOURNAL = 4, HAS_SUM = 8 };

/* Bytes of a log that are no record. */
struct rest {
    size_t at, len;
};

/* An object that was moved here and has another name now, or none: what an older bucket has under
 * this name is its old place, which is not given up yet. */
struct left_behind {
    char *key;
    uint32_t key_len, crc32c;
    uint64_t version, size;
};

/* What is known of one id. */
struct found {
    uint64_t id;
    unsigned parts;
    struct bucket *bucket; /* NULL: nothing to be served from it */

    /* To be done: */
    unsigned set_aside; /* parts */
    const char *why;
    bool unlink_log;   /* the rest of an unfinished put, or of a removed bucket */
    uint64_t cut_log;  /* to this length; 0: not */
    struct rest *rest; /* to be kept in lost+found/ */
    size_t rest_count;
    char *log; /* what `rest` points into */
    struct left_behind *left;
    size_t left_count;
    struct mcfs_buf torn; /* DELETE records of what was dropped as incomplete */
};

struct recovery {
    struct store *s;
    struct found *list;
    size_t count, cap;
    char **strangers; /* names that are no files of a store */
    size_t stranger_count, stranger_cap;
    atomic_size_t next;
    _Atomic uint64_t dropped;
    uint64_t set_aside;
    atomic_bool failed;

    pthread_mutex_t lock; /* guards what follows */
    struct mcfs_error err;
    struct entry **losers; /* copies of objects that are found elsewhere too */
    size_t loser_count, loser_cap;
};

/* Ends the recovery with an error; the first one counts. */
void recovery_fail(struct recovery *r, const struct mcfs_error *err);

/* One of two copies of an object, to be forgotten once everything is read; 0, or -1 without memory.
 */
int recovery_add_loser(struct recovery *r, struct entry *e);

/* Frees what a bucket's log told of old places. */
void recovery_forget_left(struct found *f);

/* ---- bucket_list.c ---- */

int recovery_list(struct recovery *r, struct mcfs_error *err);

/* ---- bucket_publish.c ---- */

/* Into the bucket, and into the store's index, `count` entries that are chained by `after`, in the
 * order of their records; of a name that is there already, the younger bucket's copy stays.  Takes
 * the entries.  0, or -1 without memory. */
int recovery_publish(struct recovery *r, struct bucket *b, struct entry *first, size_t count);

/* ---- bucket_replay.c, bucket_foreign.c ----
 * Fill f->bucket, or note what is to be done instead. */

/* Returns 0, 1 when the log is none and the .meta counts, or -1 after recovery_fail. */
int recover_logged(struct recovery *r, struct found *f);
int recover_foreign(struct recovery *r, struct found *f);

/* A parser for tests: replays a log over a data file of data_size bytes that is not read.  Returns
 * the number of objects, or -1. */
int64_t replay_check(const void *log, size_t len, uint64_t data_size);

#endif
