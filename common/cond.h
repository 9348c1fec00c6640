/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_COND_H
#define MCFS_COMMON_COND_H

/* Condition variables that wait by the monotonic clock. */

#include "common/clock.h"

#include <pthread.h>

static inline void mcfs_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

/* Waits until mcfs_mono_ns() is mono_ns or the condition is signalled; spurious returns are to be
 * expected. */
static inline void mcfs_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *m, int64_t mono_ns)
{
    struct timespec until = mcfs_timespec(mono_ns);
    pthread_cond_timedwait(c, m, &until);
}

#endif
