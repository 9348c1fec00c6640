/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_NODE_EVICT_PRIVATE_H
#define MCFS_FS_NODE_EVICT_PRIVATE_H

/* What evict.c and evict_batch.c share. */

#include "fs/node/evict.h"
#include "fs/node/evict_log.h"

/* Victims asked about at once.  Their keys are locked meanwhile, and share COMMIT_LOCKS with all
 * others: more of them would hold up more of this node's own changes. */
#define EVICT_BATCH 48

struct evictor {
    struct node *n;
    struct evict_log *log;
    bool active; /* there is a policy */
    struct mcfs_cancel stop;
    pthread_t thread;
    bool started;

    pthread_mutex_t inventory_lock; /* while the store is walked for one, and while victims go */
    _Atomic uint64_t inventories;   /* begun */
    uint64_t
        kept_at; /* when the log kept something last; under inventory_lock, as the log's names */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool stopping, poked;
    uint64_t wanted;       /* bytes that waiting puts want, whatever the watermarks say */
    uint64_t freed;        /* bytes evicted so far */
    uint64_t begun, ended; /* passes */
    bool impatient;        /* the next pass does not wait for leases that the last one asked back */
    bool leases_met;       /* in the last pass: what others lease was asked back */
    bool unasked;          /* in the last pass: the master was away */
    int64_t fruitless_until_ms;
    const struct evict_name *held; /* held back now, or about to be */
    size_t held_count;

    _Atomic uint64_t coming; /* bytes of puts under way */
    _Atomic uint64_t refused;
};

/* What became of a batch. */
struct evict_outcome {
    uint64_t freed, leased_bytes;
    size_t gone, leased, busy;
};

/* Asks for n victims (EVICT_BATCH at most) and evicts those that may go.  They have been chosen and
 * not held; what they hold is freed in any case.  -1: nothing has changed. */
int evict_batch(struct evictor *e, struct mcfs_backend_victim *victims, size_t n, bool soft_too,
                struct evict_outcome *out, struct mcfs_error *err);

#endif
