/* SPDX-License-Identifier: Apache-2.0 */
/* What the store's thread does: syncs, and a checkpoint instead when its time has come. */
#include "backends/offset/offset_store.h"

#include "common/cleanup.h"
#include "common/clock.h"

#define FLUSH_DEFAULT_MS 5000u
#define CHECKPOINT_DEFAULT_MS 60000u
#define JOURNAL_MAX (64ull << 20) /* bytes after which a checkpoint comes before its time */

static uint32_t checkpoint_ms(const struct offset_store *s)
{
    return s->config.offset_checkpoint_ms ? s->config.offset_checkpoint_ms : CHECKPOINT_DEFAULT_MS;
}

static bool is_due(struct offset_store *s)
{
    MCFS_LOCK_SCOPE(&s->lock);
    uint64_t since = s->journal_end - s->checkpointed;
    return s->mode != OFFSET_DISABLED && (s->journal_broken || since > JOURNAL_MAX ||
                                          (since && mcfs_mono_ms() >= s->checkpoint_at_ms));
}

static bool has_work(void *arg)
{
    (void)arg; /* readers that closed leave something to be released without saying so */
    return true;
}

static int work(void *arg, struct mcfs_error *err)
{
    struct offset_store *s = arg;
    if (is_due(s)) {
        s->checkpoint_at_ms = mcfs_mono_ms() + checkpoint_ms(s);
        return offset_checkpoint(s, err);
    }
    if (offset_store_sync(&s->base, err))
        return -1;
    offset_release(s);
    return 0;
}

int offset_flusher_start(struct offset_store *s, struct mcfs_error *err)
{
    uint32_t every = s->config.flush_interval_ms ? s->config.flush_interval_ms : FLUSH_DEFAULT_MS;
    s->checkpoint_at_ms = mcfs_mono_ms() + checkpoint_ms(s);
    s->flusher = flush_thread_start(MCFS_MIN(every, checkpoint_ms(s)), has_work, work, s, err);
    return s->flusher ? 0 : -1;
}
