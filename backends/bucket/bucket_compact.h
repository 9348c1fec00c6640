/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_BUCKET_COMPACT_H
#define MCFS_BACKENDS_BUCKET_COMPACT_H

/*
 * Compaction: the objects of a bucket of which little is left are moved into the open one, so that
 * its files, its log and the blocks that it has only in part come back.
 *
 *   bucket_thin.c     which buckets
 *   bucket_move.c     moving a batch of objects, so that a crash leaves each of them once
 *   bucket_compact.c  the thread, its pace, and the room that it may take
 */

#include "backends/bucket/bucket.h"

/* ---- bucket_thin.c ---- */

/* The buckets that are to be compacted now, NULL when there are none; the caller frees the list and
 * gives each of them to thin_done, until when none is freed. */
struct bucket **thin_take(struct store *s, size_t *n);

/* It is looked at again when something is left in it that can be moved. */
void thin_done(struct store *s, struct bucket *b);

/* Not what is damaged, nor what nobody can ask for.  The caller holds the bucket's lock. */
bool entry_is_movable(const struct entry *e);

/* ---- bucket_move.c ---- */

/* One object on its way; its entries are pinned as by a reader. */
struct move {
    struct entry *from, *to; /* to: NULL when it stays */
    uint64_t bytes;          /* storage key and value */
    bool writing;            /* a writer of to->bucket */
    bool entered;            /* `to` is in the index, `from` is not any more */
    bool given_up;           /* and the log of the old bucket says so */
};

struct moves {
    struct move *v;
    size_t count, cap;
    uint64_t bytes;
};

/* Adds all that lives in the bucket.  0, or -1: nothing was added. */
int moves_add(struct store *s, struct moves *m, struct bucket *b, struct mcfs_error *err);

/* Copies the values, and makes the copies durable, and the names that they have; room for m->bytes
 * has been claimed.  What cannot be moved has no `to` afterwards. */
void moves_copy(struct store *s, struct moves *m);

/* Enters the copies in log and index; without any when a scan is under way.  False: a log could not
 * be made durable, and nothing may be given up. */
bool moves_enter(struct store *s, struct moves *m);

/* What moves_settle came to. */
enum settled { SETTLED, NOT_YET, NEVER };

/* Gives the old places up, durably, and lets go of everything; the list is empty then.  NOT_YET: to
 * be called once more.  NEVER: it is not known what the disk has; the next start decides. */
enum settled moves_settle(struct store *s, struct moves *m);

/* Lets go of what was only added. */
void moves_drop(struct store *s, struct moves *m);

#endif
