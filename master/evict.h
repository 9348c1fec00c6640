/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_EVICT_H
#define MCFS_MASTER_EVICT_H

/*
 * Eviction of memory replicas.  Reads extend leases, so the objects whose lease ended first are the
 * ones that nobody has asked for the longest.  An object that has another complete replica keeps
 * that one; the others go.  Leased objects and hard pins stay, always; soft pins go only where the
 * rest is not enough.  Objects of a group go together or not at all (a lease on the group that
 * begins in this very moment saves those that are still there).
 */

#include "master/directory.h"

struct evict_counts {
    uint64_t objects, bytes; /* whose memory replicas went, and the bytes of these */
    uint64_t gone;           /* objects that had no other complete replica */
};

/* Evicts at least this share (0 to 1) of the objects that have memory replicas, as far as there are
 * so many that may go.  Enters the directory for a shard at a time; takes time in proportion to its
 * objects, and 8 bytes of memory for each that may go.  0, or -1 without that memory. */
int directory_evict(struct directory *d, double share, bool soft_pinned,
                    struct evict_counts *counts);

/* The most bytes that one segment can have free at some time in the next `ms`, if everything goes
 * that may: what takes more finds no room until then, whatever is evicted.  UINT64_MAX: there is
 * no segment to allocate from, which an allocation says better, or no memory to tell.  Takes time
 * in proportion to the directory, which it enters for a shard at a time. */
uint64_t directory_room_within(struct directory *d, uint64_t ms, bool soft_pinned);

/* Who waits for room.  All are called in the evictor's thread, outside of the directory. */
struct evict_waiters {
    bool (*any)(void *arg); /* with the evictor's lock held */
    /* Gives room to those for whom there is some, in the order in which they came, and sends those
     * away whose time is over; *some: there was anybody of either kind.  Until when the last of the
     * others waits (mono ms); 0: nobody. */
    int64_t (*serve)(void *arg, bool *some);
    /* Sends those away that wait until then at most and need more in one piece, the second time
     * that it is so.  Returns whether any of the others is left that waits until then at most. */
    bool (*refuse)(void *arg, int64_t until_mono_ms, uint64_t room);
    void *arg;
};

/* A thread that evicts when memory is used beyond a watermark, when it is woken, and for as long as
 * somebody waits for room who can get it. */
struct evictor;

struct evict_config {
    struct directory *directory;
    double ratio;                 /* eviction_ratio */
    double high_watermark;        /* eviction_high_watermark_ratio */
    bool soft_pinned;             /* allow_evict_soft_pinned_objects */
    struct evict_waiters waiters; /* any NULL: nobody waits */
};

struct evictor *evictor_start(const struct evict_config *config, struct mcfs_error *err);
void evictor_stop(struct evictor *e);

/* An allocation failed (`full`), or room was taken: then it is woken when that is beyond the
 * watermark.  Cheap, any thread; e may be NULL. */
void evictor_wake(struct evictor *e, bool full);

/* Somebody waits for room from now on.  Cheap, any thread. */
void evictor_serve(struct evictor *e);

/* What has been evicted since the start. */
void evictor_counts(struct evictor *e, struct evict_counts *out);

#endif
