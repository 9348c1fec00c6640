/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_LOOP_H
#define MCFS_FS_LOOP_H

/*
 * The threads that serve the kernel's requests.
 *
 * One thread at a time receives.  It answers what needs no waiting by itself (most look-ups, opens
 * and their like), polling a moment before it sleeps, because waking a thread costs more than such
 * an answer.  Before anything that may wait, or when more requests are there already, it leaves
 * receiving to another.
 */

#define FUSE_USE_VERSION 314
#include "common/cleanup.h"
#include "common/rpc/rpc.h"
#include <fuse_lowlevel.h>
#include <mooncakefs/error.h>

/* Serves until the mount is gone or the session is told to exit (by a signal: call from the main
 * thread, with the handlers set).  idle_max: threads that wait for work, at most; 0: a default.  0
 * or -1. */
int loop_run(struct fuse_session *session, unsigned idle_max, struct mcfs_error *err);

/* For waits that may be short: watches for more requests and leaves receiving when there are.  NULL
 * in threads that do not receive; valid for the time of the request. */
const struct mcfs_watch *loop_watch(void);

/* pthread_mutex_lock, after loop_may_wait when it is held. */
void loop_lock(pthread_mutex_t *m);

static inline pthread_mutex_t *loop_lock_scope(pthread_mutex_t *m)
{
    loop_lock(m);
    return m;
}

/* MCFS_LOCK_SCOPE for requests that are answered at once: the lock may be held by one that is not.
 */
#define LOOP_LOCK_SCOPE(m)                                                                         \
    _cleanup_(mcfs_cleanup_unlock) __attribute__((unused)) pthread_mutex_t *MCFS_CONCAT(           \
        lock_scope_, __LINE__) = loop_lock_scope(m)

/* The calling thread may wait now, for a lock that is held long, for the disk, for another process:
 * somebody else shall receive.  Cheap when that is so already; does nothing in other threads. */
void loop_may_wait(void);

#endif
