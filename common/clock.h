/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_CLOCK_H
#define MCFS_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t mcfs_timespec_ns(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline struct timespec mcfs_timespec(int64_t ns)
{
    int64_t sec = ns / 1000000000, rest = ns % 1000000000;
    if (rest < 0) {
        rest += 1000000000;
        sec--;
    }
    return (struct timespec){.tv_sec = sec, .tv_nsec = rest};
}

/* Wall clock, ns since the Unix epoch: for what is shown or stored. */
static inline int64_t mcfs_wall_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return mcfs_timespec_ns(t);
}

static inline int64_t mcfs_wall_ms(void)
{
    return mcfs_wall_ns() / 1000000;
}

/* Monotonic clock, ns since boot: for every wait, timeout and lease. */
static inline int64_t mcfs_mono_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return mcfs_timespec_ns(t);
}

static inline int64_t mcfs_mono_ms(void)
{
    return mcfs_mono_ns() / 1000000;
}

#endif
