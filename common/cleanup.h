/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_CLEANUP_H
#define MCFS_COMMON_CLEANUP_H

/* Release by scope, so that early returns are safe. */

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void mcfs_cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void mcfs_cleanup_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

static inline void mcfs_cleanup_file(FILE **f)
{
    if (*f)
        fclose(*f);
}

static inline void mcfs_cleanup_dir(DIR **d)
{
    if (*d)
        closedir(*d);
}

static inline void mcfs_cleanup_unlock(pthread_mutex_t **m)
{
    if (*m)
        pthread_mutex_unlock(*m);
}

#define _cleanup_(fn) __attribute__((cleanup(fn)))
#define _cleanup_free_ _cleanup_(mcfs_cleanup_free)
#define _cleanup_fd_ _cleanup_(mcfs_cleanup_fd)
#define _cleanup_file_ _cleanup_(mcfs_cleanup_file)
#define _cleanup_dir_ _cleanup_(mcfs_cleanup_dir)

#define MCFS_CONCAT_(a, b) a##b
#define MCFS_CONCAT(a, b) MCFS_CONCAT_(a, b)

static inline pthread_mutex_t *mcfs_lock(pthread_mutex_t *m)
{
    pthread_mutex_lock(m);
    return m;
}

/* Holds mutex m until the enclosing scope ends. */
#define MCFS_LOCK_SCOPE(m)                                                                         \
    _cleanup_(mcfs_cleanup_unlock) __attribute__((unused)) pthread_mutex_t *MCFS_CONCAT(           \
        lock_scope_, __LINE__) = mcfs_lock(m)

/* Holds two mutexes, which may be one; always in the same order. */
static inline void mcfs_lock_two(pthread_mutex_t *a, pthread_mutex_t *b)
{
    pthread_mutex_lock(a < b ? a : b);
    if (a != b)
        pthread_mutex_lock(a < b ? b : a);
}

static inline void mcfs_unlock_two(pthread_mutex_t *a, pthread_mutex_t *b)
{
    pthread_mutex_unlock(a);
    if (a != b)
        pthread_mutex_unlock(b);
}

/* Takes the value of a pointer or descriptor out of scope's care. */
#define MCFS_STEAL(p)                                                                              \
    ({                                                                                             \
        __typeof__(p) stolen_ = (p);                                                               \
        (p) = NULL;                                                                                \
        stolen_;                                                                                   \
    })

static inline int mcfs_steal_fd(int *fd)
{
    int f = *fd;
    *fd = -1;
    return f;
}

#define MCFS_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
/* Their arguments are evaluated twice: names and numbers only. */
#define MCFS_MIN(a, b) ((a) < (b) ? (a) : (b))
#define MCFS_MAX(a, b) ((a) > (b) ? (a) : (b))
#define MCFS_CONTAINER_OF(p, type, member)                                                         \
    ((type *)((char *)(p) - __builtin_offsetof(type, member)))

#endif
