/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that flushes every few seconds what was put without a sync. */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/log.h"

#define FLUSH_DEFAULT_MS 5000

static bool has_work(struct store *s)
{
    MCFS_LOCK_SCOPE(&s->lock);
    return s->dirty_count > 0 || s->names_dirty;
}

static void *flusher_main(void *arg)
{
    struct store *s = arg;
    uint32_t ms = s->config.flush_interval_ms ? s->config.flush_interval_ms : FLUSH_DEFAULT_MS;
    bool complained = false;
    pthread_mutex_lock(&s->flusher_lock);
    while (!s->stopping) {
        mcfs_cond_wait_until(&s->flusher_wake, &s->flusher_lock,
                             mcfs_mono_ns() + (int64_t)ms * 1000000);
        if (s->stopping)
            break;
        pthread_mutex_unlock(&s->flusher_lock);
        struct mcfs_error err = MCFS_ERROR_INIT;
        bool failed = has_work(s) && store_flush(s, &err);
        if (failed && !complained)
            mcfs_error("background sync: %s", err.msg);
        complained = failed;
        pthread_mutex_lock(&s->flusher_lock);
    }
    pthread_mutex_unlock(&s->flusher_lock);
    return NULL;
}

int flusher_start(struct store *s, struct mcfs_error *err)
{
    int rc = pthread_create(&s->flusher, NULL, flusher_main, s);
    if (rc)
        return mcfs_fail_errno(err, rc, "flusher thread");
    s->flusher_started = true;
    return 0;
}

void flusher_stop(struct store *s)
{
    if (!s->flusher_started)
        return;
    pthread_mutex_lock(&s->flusher_lock);
    s->stopping = true;
    pthread_cond_broadcast(&s->flusher_wake);
    pthread_mutex_unlock(&s->flusher_lock);
    pthread_join(s->flusher, NULL);
    s->flusher_started = false;
}
