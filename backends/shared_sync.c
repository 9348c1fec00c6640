/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/shared_sync.h"

#include "common/cleanup.h"

void shared_sync_init(struct shared_sync *y)
{
    *y = (struct shared_sync){.done = 0};
    pthread_mutex_init(&y->lock, NULL);
}

void shared_sync_destroy(struct shared_sync *y)
{
    pthread_mutex_destroy(&y->lock);
}

static int run_locked(struct shared_sync *y, int (*sync)(void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err)
{
    uint64_t covers = atomic_load(&y->asked);
    if (sync(arg, err))
        return -1;
    y->done = covers;
    return 0;
}

int shared_sync_join(struct shared_sync *y, int (*sync)(void *arg, struct mcfs_error *err),
                     void *arg, struct mcfs_error *err)
{
    uint64_t mine = atomic_fetch_add(&y->asked, 1) + 1;
    MCFS_LOCK_SCOPE(&y->lock);
    return y->done >= mine ? 0 : run_locked(y, sync, arg, err);
}

int shared_sync_run(struct shared_sync *y, int (*sync)(void *arg, struct mcfs_error *err),
                    void *arg, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&y->lock);
    return run_locked(y, sync, arg, err);
}
