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

/* A thread that evicts when memory is used beyond a watermark, or when it is woken. */
struct evictor;

struct evict_config {
    struct directory *directory;
    double ratio;          /* eviction_ratio */
    double high_watermark; /* eviction_high_watermark_ratio */
    bool soft_pinned;      /* allow_evict_soft_pinned_objects */
};

struct evictor *evictor_start(const struct evict_config *config, struct mcfs_error *err);
void evictor_stop(struct evictor *e);

/* An allocation failed (`full`), or room was taken: then it is woken when that is beyond the
 * watermark.  Cheap, any thread; e may be NULL. */
void evictor_wake(struct evictor *e, bool full);

/* What has been evicted since the start. */
void evictor_counts(struct evictor *e, struct evict_counts *out);

#endif
