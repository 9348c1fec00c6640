/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_SEGMENT_TABLE_H
#define MCFS_MASTER_SEGMENT_TABLE_H

/* What segments.c and segment_space.c share. */

#include "master/segments.h"

#include <pthread.h>
#include <stdatomic.h>

#define SEGMENTS_MAX 65535 /* a replica names its segment by 16 bits */
/* How long a number rests before it is another segment's, for those who have just read it. */
#define SEGMENT_NUMBER_REST_MS 1000

struct segment {
    pthread_mutex_t lock;     /* guards what follows; `info` changes under the table's lock, too */
    struct segment_info info; /* its figures are made when they are asked for */
    struct mcfs_offset_allocator *allocator; /* NULL: gone */
    _Atomic int state;
    _Atomic uint64_t used;
    bool counted;     /* in the sums */
    bool drains;      /* is draining, or will be once its node is back */
    uint64_t holders; /* ranges that puts, replicas and the held list have */
    uint32_t order;
    int64_t deadline_mono_ms; /* draining */
    int64_t awaited_mono_ms;  /* until when; 0: not yet known */
    int64_t usable_mono_ms;   /* nothing is allocated before */
    int64_t died_mono_ms;
    int64_t known_mono_ms; /* until when addresses in it may be known that are not held */
    uint64_t kill;         /* gone: which of all that have gone */
    uint64_t *claimed;     /* during a restore: a bit for each node of the allocator */
    uint32_t claimed_nodes;
};

struct held {
    int64_t until_mono_ms;
    struct segment_range range;
    bool carried; /* a snapshot named it */
};

struct segments {
    pthread_rwlock_t lock;
    struct segment *all[SEGMENTS_MAX + 1]; /* from 1 on; never freed before the end */
    uint32_t max;
    uint32_t serials, orders;
    uint64_t kills;         /* how many have gone, */
    _Atomic uint64_t swept; /* of which so many have been swept */
    _Atomic uint64_t used, capacity, failures;
    pthread_mutex_t held_lock;
    struct held *held; /* a heap, the earliest first */
    uint32_t held_count, held_cap;
    uint64_t held_bytes;
};

/* NULL when there never was such a number. */
struct segment *segment_at(struct segments *s, uint32_t number);

/* Brings its sums up to date; the segment is locked. */
void segment_count(struct segments *s, struct segment *g);

/* Adds to the held ranges; their lock is held.  0 or -1 without memory. */
int segment_hold(struct segments *s, const struct segment_range *r, int64_t until_mono_ms,
                 bool carried);

/* Holds what those who were given it before may be busy in, in a segment that has just been
 * mounted; the table is locked for writing (segment_again.c). */
void segment_hold_busy(struct segments *s, struct segment *g, const struct segment_busy *busy,
                       uint32_t n);

#endif
