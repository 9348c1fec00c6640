/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that compacts.  It looks once in a flush interval, moves a few megabytes at a time and
 * sleeps in between as its rate demands.  It flushes its own files and takes no part in syncs, so
 * that those wait for nothing but the disk.
 *
 * A batch holds its bytes twice until it is settled.  A put that finds no room waits for that
 * (compact_yield): then the old places are free, and it is no worse off than without us.  What is
 * moved as a part of its bucket only gives nothing back yet, and leaves a share of the tier alone.
 */
#include "backends/bucket/bucket_compact.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/log.h"

#include <sys/statvfs.h>

#define PERIOD_DEFAULT_MS 5000u
#define BATCH_BYTES ((uint64_t)4 << 20)
#define BATCH_BUCKETS 32u              /* each of them takes a descriptor */
#define DISK_KEPT ((uint64_t)64 << 20) /* free bytes of the disk that a move does not touch */
#define TIER_KEPT 32        /* nor the last 32nd of the tier, unless a bucket goes whole */
#define YIELD_NS 1000000000 /* so long after somebody found no room */

struct compactor {
    struct store *s;
    pthread_t thread;
    bool started;

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    bool stopping;
    int64_t yield_until;

    pthread_mutex_t round_lock; /* one round at a time; guards what follows */
    struct moves waiting;       /* not begun */
    struct moves batch;         /* under way; left over when giving up the old places has failed */
    bool halted;                /* a log could not be flushed: not before the next start */

    pthread_mutex_t batch_lock; /* inside the round's: bytes are held twice */
};

/* ---- waiting ---- */

/* Returns whether to go on. */
static bool wait_ns(struct compactor *c, int64_t ns)
{
    int64_t until = mcfs_mono_ns() + ns;
    MCFS_LOCK_SCOPE(&c->lock);
    while (!c->stopping && mcfs_mono_ns() < until)
        mcfs_cond_wait_until(&c->wake, &c->lock, until);
    return !c->stopping;
}

void compact_yield(struct store *s)
{
    struct compactor *c = s->compactor;
    if (!c)
        return;
    {
        MCFS_LOCK_SCOPE(&c->lock);
        c->yield_until = mcfs_mono_ns() + YIELD_NS;
    }
    MCFS_LOCK_SCOPE(&c->batch_lock);
}

/* ---- a batch ---- */

/* Claims what the batch needs for as long as it is not settled. */
static bool claim(struct compactor *c, uint64_t bytes, bool whole)
{
    struct store *s = c->s;
    struct statvfs v;
    uint64_t limit = s->config.capacity_bytes, used = atomic_load(&s->used_bytes);
    uint64_t kept = whole ? 0 : limit / TIER_KEPT;
    {
        MCFS_LOCK_SCOPE(&c->lock);
        if (mcfs_mono_ns() < c->yield_until)
            return false;
    }
    if (fstatvfs(s->dir_fd, &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize < bytes + DISK_KEPT)
        return false;
    do {
        if (limit && (bytes + kept > limit || used > limit - bytes - kept))
            return false;
    } while (!atomic_compare_exchange_weak(&s->used_bytes, &used, used + bytes));
    return true;
}

/* 0, or -1: no more in this round. */
static int settle(struct compactor *c)
{
    enum settled how = moves_settle(c->s, &c->batch);
    c->halted |= how == NEVER;
    return how == SETTLED ? 0 : -1;
}

/* Then copying would be in vain: moves_enter does not wait for its end either. */
static bool is_scanned(struct store *s)
{
    if (pthread_rwlock_trywrlock(&s->scan_lock))
        return true;
    pthread_rwlock_unlock(&s->scan_lock);
    return false;
}

static int run_batch(struct compactor *c, bool whole)
{
    MCFS_LOCK_SCOPE(&c->batch_lock);
    if (is_scanned(c->s) || !claim(c, c->batch.bytes, whole)) {
        moves_drop(c->s, &c->batch);
        return -1;
    }
    moves_copy(c->s, &c->batch);
    if (!moves_enter(c->s, &c->batch)) {
        c->halted = true;
        return -1;
    }
    return settle(c);
}

/* The first of those that wait become the batch, which is empty. */
static int begin_batch(struct moves *waiting, struct moves *batch)
{
    size_t n = 0;
    uint64_t bytes = 0;
    while (n < waiting->count && (n == 0 || bytes + waiting->v[n].bytes <= BATCH_BYTES))
        bytes += waiting->v[n++].bytes;
    if (n > batch->cap) {
        struct move *v = realloc(batch->v, n * sizeof(*v));
        if (!v)
            return -1;
        batch->v = v;
        batch->cap = n;
    }
    memcpy(batch->v, waiting->v, n * sizeof(*batch->v));
    memmove(waiting->v, waiting->v + n, (waiting->count - n) * sizeof(*batch->v));
    waiting->count -= n;
    waiting->bytes -= bytes;
    batch->count = n;
    batch->bytes = bytes;
    return 0;
}

/* Moves all that waits, at the rate that is allowed; 0, or -1: no more in this round. */
static int run_waiting(struct compactor *c)
{
    bool whole = c->waiting.bytes <= BATCH_BYTES;
    int rc = 0;
    while (rc == 0 && c->waiting.count) {
        if (begin_batch(&c->waiting, &c->batch))
            break;
        double seconds = (double)c->batch.bytes / (double)c->s->config.compact_bytes_per_sec;
        rc = run_batch(c, whole);
        if (rc == 0 && !wait_ns(c, (int64_t)(MCFS_MIN(seconds, 3600.0) * 1e9)))
            rc = -1;
    }
    moves_drop(c->s, &c->waiting);
    return rc;
}

/* ---- a round ---- */

static uint64_t live_bytes(struct bucket *b)
{
    MCFS_LOCK_SCOPE(&b->lock);
    return b->live_bytes;
}

static bool is_empty(struct bucket *b)
{
    MCFS_LOCK_SCOPE(&b->lock);
    bool alive = false;
    for (const struct entry *e = b->entries; e && !alive; e = entry_after(e))
        alive = !e->dead;
    return !alive;
}

/* Small buckets share batches; a large one comes in batches of its own. */
static int compact_all(struct compactor *c, struct bucket **list, size_t n, struct mcfs_error *err)
{
    unsigned buckets = 0;
    for (size_t i = 0; i < n; i++) {
        bool full =
            buckets == BATCH_BUCKETS || c->waiting.bytes + live_bytes(list[i]) > BATCH_BYTES;
        if (c->waiting.count && full) {
            if (run_waiting(c))
                return 0;
            buckets = 0;
        }
        buckets++;
        if (moves_add(c->s, &c->waiting, list[i], err)) {
            moves_drop(c->s, &c->waiting);
            return -1;
        }
    }
    run_waiting(c);
    return 0;
}

int store_compact(struct store *s, struct mcfs_error *err)
{
    struct compactor *c = s->compactor;
    size_t n;
    if (!c)
        return 0;
    MCFS_LOCK_SCOPE(&c->round_lock);
    if (c->halted)
        return 0;
    if (c->batch.count) {
        MCFS_LOCK_SCOPE(&c->batch_lock);
        if (settle(c))
            return mcfs_fail_errno(err, EIO, "%s: old places cannot be given up", s->dir);
    }
    _cleanup_free_ struct bucket **list = thin_take(s, &n);
    int rc = compact_all(c, list, n, err);
    for (size_t i = 0; i < n; i++) {
        if (is_empty(list[i]))
            atomic_fetch_add(&s->compactions, 1);
        thin_done(s, list[i]);
    }
    fd_cache_trim(s);
    return rc;
}

/* ---- the thread ---- */

static void *compact_main(void *arg)
{
    struct compactor *c = arg;
    uint32_t ms =
        c->s->config.flush_interval_ms ? c->s->config.flush_interval_ms : PERIOD_DEFAULT_MS;
    bool complained = false;
    while (wait_ns(c, (int64_t)ms * 1000000)) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        bool failed = store_compact(c->s, &err) != 0;
        if (failed && !complained)
            mcfs_error("compaction: %s", err.msg);
        complained = failed;
    }
    return NULL;
}

int compact_start(struct store *s, struct mcfs_error *err)
{
    if (!s->config.compact_bytes_per_sec || s->config.read_only)
        return 0;
    struct compactor *c = s->compactor = calloc(1, sizeof(*c));
    if (!c)
        return mcfs_fail_errno(err, ENOMEM, "compaction");
    c->s = s;
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->round_lock, NULL);
    pthread_mutex_init(&c->batch_lock, NULL);
    mcfs_cond_init(&c->wake);
    int rc = pthread_create(&c->thread, NULL, compact_main, c);
    c->started = rc == 0;
    return rc ? mcfs_fail_errno(err, rc, "compaction's thread") : 0;
}

void compact_stop(struct store *s)
{
    struct compactor *c = s->compactor;
    if (!c)
        return;
    {
        MCFS_LOCK_SCOPE(&c->lock);
        c->stopping = true;
        pthread_cond_broadcast(&c->wake);
    }
    if (c->started)
        pthread_join(c->thread, NULL);
    free(c->waiting.v);
    free(c->batch.v); /* what it still names is its bucket's */
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->round_lock);
    pthread_mutex_destroy(&c->batch_lock);
    pthread_cond_destroy(&c->wake);
    free(c);
    s->compactor = NULL;
}
