/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which buckets are worth compacting.  Holes give whole blocks back as soon as objects go, so what
 * a thin bucket costs is blocks in part, and its files: names, descriptors, a log to be read at
 * each start.
 *
 * Less than half of its bytes alive: then moving costs less than what it leaves behind, and each
 * byte of a store is copied once, on average, for each byte that was removed.
 *
 * Or few objects, in few bytes: less than an eighth of what a bucket may hold of both.  Then the
 * files are the cost, whatever lived there before.  One alone stays: it would become another bucket
 * with the same few objects, at each start again.  With two there is one less afterwards, and an
 * object is in a bucket that is no longer small after a few moves.
 *
 * A bucket waits until it has lost nothing between two looks: while a prompt's blocks are being
 * removed, or eviction is at work on the oldest, what still lives there is about to go as well.
 */
#include "backends/bucket/bucket_compact.h"

#include "common/cleanup.h"

#define SMALL_SHARE 8 /* a small bucket holds less than this part of what it may */

enum thinness { NOT_THIN, SMALL, HALF_DEAD };

/* The caller holds the bucket's lock. */
static enum thinness thinness(const struct store *s, const struct bucket *b)
{
    /* Mooncake's own gets its log, without which nothing can be taken out, with its first change.
     * In one of which not all is understood the rest would have to stay anyway. */
    if (b->single || b->is_open || b->removed || !b->has_log || b->keep_gaps || b->never_sure ||
        !b->objects)
        return NOT_THIN;
    if (b->live_bytes < b->data_end / 2)
        return HALF_DEAD;
    return b->objects < s->config.bucket_keys_limit / SMALL_SHARE &&
                   b->live_bytes < s->config.bucket_size_limit / SMALL_SHARE
               ? SMALL
               : NOT_THIN;
}

bool entry_is_movable(const struct entry *e)
{
    return !e->dead && atomic_load_explicit(&e->checked, memory_order_relaxed) != BAD &&
           storage_key_is_valid(entry_key(e));
}

/* The store's lock is held. */
static void list(struct store *s, struct bucket *b)
{
    b->listed_thin = true;
    b->thin_next = s->thin;
    s->thin = b;
}

void compact_consider(struct store *s, struct bucket *b)
{
    if (!s->config.compact_bytes_per_sec || s->config.read_only || thinness(s, b) == NOT_THIN)
        return;
    MCFS_LOCK_SCOPE(&s->lock);
    if (b->listed_thin)
        return;
    b->thin_live = UINT64_MAX;
    list(s, b);
}

/* All on the list, which is empty then; they stay marked as listed. */
static struct bucket **take_list(struct store *s, size_t *n)
{
    MCFS_LOCK_SCOPE(&s->lock);
    *n = 0;
    for (const struct bucket *b = s->thin; b; b = b->thin_next)
        ++*n;
    struct bucket **all = *n ? malloc(*n * sizeof(struct bucket *)) : NULL;
    if (!all)
        return NULL;
    *n = 0;
    for (struct bucket *b = s->thin; b; b = b->thin_next)
        all[(*n)++] = b;
    s->thin = NULL;
    return all;
}

/* Whether it was as it is when it was looked at last; NOT_THIN: it is to be forgotten. */
static enum thinness look(const struct store *s, struct bucket *b, bool *quiet)
{
    MCFS_LOCK_SCOPE(&b->lock);
    *quiet = b->thin_live == b->live_bytes && !b->moving && !b->writers;
    b->thin_live = b->live_bytes;
    return thinness(s, b);
}

static void put_back(struct store *s, struct bucket *b)
{
    MCFS_LOCK_SCOPE(&s->lock);
    list(s, b);
}

static void forget(struct store *s, struct bucket *b)
{
    MCFS_LOCK_SCOPE(&s->lock);
    b->listed_thin = false;
}

struct bucket **thin_take(struct store *s, size_t *n)
{
    size_t count, kept = 0;
    struct bucket **all = take_list(s, &count), *alone = NULL;
    *n = 0;
    for (size_t i = 0; all && i < count; i++) {
        struct bucket *b = all[i];
        bool quiet;
        enum thinness t = look(s, b, &quiet);
        if (t == NOT_THIN)
            forget(s, b);
        else if (!quiet)
            put_back(s, b);
        else if (t == SMALL && !alone && !kept)
            alone = b;
        else
            all[kept++] = b;
    }
    if (alone && kept)
        all[kept++] = alone; /* there is room: it is one of those that were looked at */
    else if (alone)
        put_back(s, alone);
    *n = kept;
    if (kept)
        return all;
    free(all);
    return NULL;
}

void thin_done(struct store *s, struct bucket *b)
{
    MCFS_LOCK_SCOPE(&b->lock);
    forget(s, b);
    for (const struct entry *e = b->entries; e; e = entry_after(e))
        if (entry_is_movable(e)) {
            compact_consider(s, b);
            return;
        }
}
