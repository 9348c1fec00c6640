/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/flush_thread.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/log.h"

#define FLUSH_DEFAULT_MS 5000u

struct flush_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping;
    uint32_t ms;
    bool (*has_work)(void *arg);
    int (*flush)(void *arg, struct mcfs_error *err);
    void *arg;
};

/* Returns whether to go on. */
static bool wait_a_while(struct flush_thread *t)
{
    int64_t until = mcfs_mono_ns() + (int64_t)t->ms * 1000000;
    MCFS_LOCK_SCOPE(&t->lock);
    while (!t->stopping && mcfs_mono_ns() < until)
        mcfs_cond_wait_until(&t->wake, &t->lock, until);
    return !t->stopping;
}

static void *flush_main(void *arg)
{
    struct flush_thread *t = arg;
    bool complained = false;
    while (wait_a_while(t)) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        bool failed = t->has_work(t->arg) && t->flush(t->arg, &err);
        if (failed && !complained)
            mcfs_error("background sync: %s", err.msg);
        complained = failed;
    }
    return NULL;
}

static void free_thread(struct flush_thread *t)
{
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->wake);
    free(t);
}

struct flush_thread *flush_thread_start(uint32_t ms, bool (*has_work)(void *arg),
                                        int (*flush)(void *arg, struct mcfs_error *err), void *arg,
                                        struct mcfs_error *err)
{
    struct flush_thread *t = calloc(1, sizeof(*t));
    if (!t) {
        mcfs_fail_errno(err, ENOMEM, "flusher thread");
        return NULL;
    }
    t->ms = ms ? ms : FLUSH_DEFAULT_MS;
    t->has_work = has_work;
    t->flush = flush;
    t->arg = arg;
    pthread_mutex_init(&t->lock, NULL);
    mcfs_cond_init(&t->wake);
    int rc = pthread_create(&t->thread, NULL, flush_main, t);
    if (rc == 0)
        return t;
    mcfs_fail_errno(err, rc, "flusher thread");
    free_thread(t);
    return NULL;
}

void flush_thread_stop(struct flush_thread *t)
{
    if (!t)
        return;
    {
        MCFS_LOCK_SCOPE(&t->lock);
        t->stopping = true;
        pthread_cond_broadcast(&t->wake);
    }
    pthread_join(t->thread, NULL);
    free_thread(t);
}
