/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_SHARED_SYNC_H
#define MCFS_BACKENDS_SHARED_SYNC_H

/* Syncs that are asked for while one is under way share the next: it covers whatever was done
 * before it began.  All functions may be called from any thread. */

#include <mooncakefs/error.h>

#include <pthread.h>
#include <stdatomic.h>

struct shared_sync {
    pthread_mutex_t lock; /* one sync at a time */
    _Atomic uint64_t asked;
    uint64_t done; /* under the lock */
};

void shared_sync_init(struct shared_sync *y);
void shared_sync_destroy(struct shared_sync *y);

/* Returns when a sync that began after this call has ended, which sync(arg) of some caller did; 0,
 * or -1 when this caller's own has failed. */
int shared_sync_join(struct shared_sync *y, int (*sync)(void *arg, struct mcfs_error *err),
                     void *arg, struct mcfs_error *err);

/* Runs sync(arg) in any case, one that does at least as much; those who wait are served by it. */
int shared_sync_run(struct shared_sync *y, int (*sync)(void *arg, struct mcfs_error *err),
                    void *arg, struct mcfs_error *err);

#endif
