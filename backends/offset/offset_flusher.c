/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that syncs every few seconds what was put without a sync, and takes checkpoints. */
#include "backends/offset/offset_store.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/log.h"

#define FLUSH_DEFAULT_MS 5000u
#define CHECKPOINT_DEFAULT_MS 60000u
#define JOURNAL_MAX (64ull << 20) /* bytes after which a checkpoint comes before its time */

static bool is_due(struct offset_store *s, int64_t next_ms)
{
    MCFS_LOCK_SCOPE(&s->lock);
    uint64_t since = s->journal_end - s->checkpointed;
    return s->mode != OFFSET_DISABLED &&
           (s->journal_broken || since > JOURNAL_MAX || (since && mcfs_mono_ms() >= next_ms));
}

static int work(struct offset_store *s, int64_t *next_ms, struct mcfs_error *err)
{
    uint32_t every =
        s->config.offset_checkpoint_ms ? s->config.offset_checkpoint_ms : CHECKPOINT_DEFAULT_MS;
    if (!is_due(s, *next_ms)) {
        int rc = offset_store_sync(&s->base, err);
        if (rc == 0)
            offset_release(s); /* what readers have closed since */
        return rc;
    }
    *next_ms = mcfs_mono_ms() + every;
    return offset_checkpoint(s, err);
}

static void *flusher_main(void *arg)
{
    struct offset_store *s = arg;
    uint32_t ms = s->config.flush_interval_ms ? s->config.flush_interval_ms : FLUSH_DEFAULT_MS;
    uint32_t every =
        s->config.offset_checkpoint_ms ? s->config.offset_checkpoint_ms : CHECKPOINT_DEFAULT_MS;
    int64_t next_ms = mcfs_mono_ms() + every;
    bool complained = false;
    ms = MCFS_MIN(ms, every);
    pthread_mutex_lock(&s->flusher_lock);
    while (!s->stopping) {
        mcfs_cond_wait_until(&s->flusher_wake, &s->flusher_lock,
                             mcfs_mono_ns() + (int64_t)ms * 1000000);
        if (s->stopping)
            break;
        pthread_mutex_unlock(&s->flusher_lock);
        struct mcfs_error err = MCFS_ERROR_INIT;
        bool failed = work(s, &next_ms, &err) != 0;
        if (failed && !complained)
            mcfs_error("background sync: %s", err.msg);
        complained = failed;
        pthread_mutex_lock(&s->flusher_lock);
    }
    pthread_mutex_unlock(&s->flusher_lock);
    return NULL;
}

int offset_flusher_start(struct offset_store *s, struct mcfs_error *err)
{
    int rc = pthread_create(&s->flusher, NULL, flusher_main, s);
    if (rc)
        return mcfs_fail_errno(err, rc, "flusher thread");
    s->flusher_started = true;
    return 0;
}

void offset_flusher_stop(struct offset_store *s)
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
