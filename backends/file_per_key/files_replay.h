/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_FILES_REPLAY_H
#define MCFS_BACKENDS_FILES_REPLAY_H

/*
 * What the log of a shard says, from its bytes alone.  Bytes that are no record are stepped over to
 * the next that are; when there are none, they are the end of a write that a crash cut off.
 */

#include "backends/file_per_key/files.h"

/* A file that the log has named. */
struct replay_file {
    uint64_t id;
    uint64_t record;          /* where its PUT record begins */
    struct file_entry *entry; /* NULL: its object was removed */
    bool there;               /* the caller's: there is such a file */
};

struct replay {
    struct replay_file *v; /* in order of id */
    size_t count, cap;
    struct mcfs_table table; /* of the entries, by key and version */
    uint64_t next_id;        /* greater than every id in the log, and any it ever named */
    uint64_t last_id;        /* of the last PUT record */
    uint64_t sure_to;        /* files recorded below are durable */
    uint64_t end;            /* of the last record */
    uint64_t stepped_over;   /* bytes that were no record, with records behind them */
    bool no_header;          /* it is no log at all, or its header is damaged */
};

/* Takes the log of `shard` apart; it may be empty.  INVALID_VERSION for one of a newer format, else
 * only for want of memory.  replay_free in any case. */
int files_replay(const void *data, size_t len, unsigned shard, struct replay *out,
                 struct mcfs_error *err);

/* The file with an id, or NULL. */
struct replay_file *replay_find(const struct replay *r, uint64_t id);

/* Frees the entries that are still there, too: set those to NULL that are taken. */
void replay_free(struct replay *r);

#endif
