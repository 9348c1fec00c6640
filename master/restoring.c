/* SPDX-License-Identifier: Apache-2.0 */
#include "master/restoring.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cond.h"
#include "common/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WAIT_MS 3000 /* from the start; less than clients wait for an answer */
#define LOG_EVERY_MS 5000
#define DRAW_EVERY_MS 100
#define BAR 40

struct restoring {
    struct restore_watch watch;
    int64_t began_ms;
    atomic_bool over, stopped;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    char id[SNAP_ID_SIZE];
    uint64_t done, all; /* shards */
    int64_t logged_ms, drawn_ms;
    bool bar_stands;
};

static void draw(struct restoring *r, int64_t now)
{
    char bar[BAR + 1];
    if (!isatty(STDERR_FILENO) || (r->done < r->all && now - r->drawn_ms < DRAW_EVERY_MS))
        return;
    r->drawn_ms = now;
    size_t full = (size_t)(r->done * BAR / r->all);
    memset(bar, '#', full);
    memset(bar + full, '.', BAR - full);
    bar[BAR] = 0;
    r->bar_stands = r->done < r->all;
    fprintf(stderr, r->bar_stands ? "\rrestoring %s [%s]" : "\r\033[K", r->id, bar);
}

static void on_candidate(const char *id, void *arg)
{
    struct restoring *r = arg;
    MCFS_LOCK_SCOPE(&r->lock);
    snprintf(r->id, sizeof(r->id), "%s", id);
    r->done = r->all = 0;
    if (r->bar_stands)
        fprintf(stderr, "\r\033[K"); /* the last candidate failed */
    r->bar_stands = false;
}

static void on_progress(uint64_t done, uint64_t all, void *arg)
{
    struct restoring *r = arg;
    int64_t now = mcfs_mono_ms();
    MCFS_LOCK_SCOPE(&r->lock);
    r->done = done;
    r->all = all;
    if (all)
        draw(r, now);
    if (now - r->logged_ms >= LOG_EVERY_MS && done < all) {
        r->logged_ms = now;
        mcfs_info("restoring snapshot %s: %" PRIu64 " of %" PRIu64 " shards", r->id, done, all);
    }
}

/* They are blocked in every thread, and serve() would only see them after the restore. */
static bool is_to_end(void *arg)
{
    struct restoring *r = arg;
    sigset_t pending;
    if (sigpending(&pending) == 0 &&
        (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1))
        atomic_store(&r->stopped, true);
    return atomic_load(&r->stopped);
}

bool restoring_was_stopped(struct restoring *r)
{
    return atomic_load(&r->stopped);
}

struct restoring *restoring_new(struct mcfs_error *err)
{
    struct restoring *r = calloc(1, sizeof(*r));
    if (!r) {
        mcfs_fail_errno(err, ENOMEM, "restore");
        return NULL;
    }
    r->watch = (struct restore_watch){on_progress, r, on_candidate, is_to_end};
    r->began_ms = r->logged_ms = mcfs_mono_ms();
    pthread_mutex_init(&r->lock, NULL);
    mcfs_cond_init(&r->changed);
    return r;
}

void restoring_free(struct restoring *r)
{
    if (!r)
        return;
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    free(r);
}

const struct restore_watch *restoring_watch(struct restoring *r)
{
    return &r->watch;
}

void restoring_end(struct restoring *r)
{
    MCFS_LOCK_SCOPE(&r->lock);
    atomic_store(&r->over, true);
    pthread_cond_broadcast(&r->changed);
}

bool restoring_is_over(struct restoring *r)
{
    return atomic_load(&r->over);
}

int restoring_check(struct restoring *r, struct mcfs_error *err)
{
    if (atomic_load(&r->over))
        return 0;
    MCFS_LOCK_SCOPE(&r->lock);
    return mcfs_fail(err, MCFS_UNAVAILABLE_IN_CURRENT_STATUS,
                     "the master is restoring snapshot %s: %" PRIu64 " of %" PRIu64 " shards",
                     r->id[0] ? r->id : "(none yet)", r->done, r->all);
}

int restoring_wait(struct restoring *r, struct mcfs_error *err)
{
    if (atomic_load(&r->over))
        return 0;
    {
        int64_t end_ms = r->began_ms + WAIT_MS;
        MCFS_LOCK_SCOPE(&r->lock);
        while (!atomic_load(&r->over) && mcfs_mono_ms() < end_ms)
            mcfs_cond_wait_until(&r->changed, &r->lock, end_ms * 1000000);
    }
    return restoring_check(r, err);
}

void restoring_figures(struct restoring *r, uint64_t *done, uint64_t *all)
{
    MCFS_LOCK_SCOPE(&r->lock);
    *done = r->done;
    *all = r->all;
}
