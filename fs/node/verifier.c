/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/node_private.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cond.h"
#include "common/log.h"

#include <sched.h>

#define WAITING_MAX 1024
#define DELAY_MS 2000 /* lets whoever opened the value read it first */

struct waiting {
    struct mcfs_buf names; /* tenant, key */
    size_t tenant_len;
    uint64_t version;
    int64_t due_ms;
};

struct verifier {
    struct node *node;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    struct waiting waiting[WAITING_MAX];
    unsigned first, count;
    bool stop;
};

static void verify(struct node *n, const struct waiting *w)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    const char *names = (const char *)w->names.data;
    struct mcfs_slice tenant = mcfs_slice(names, w->tenant_len),
                      key = mcfs_slice(names + w->tenant_len, w->names.len - w->tenant_len);
    struct mcfs_backend_reader *r = n->ops->reader_open(n->store, tenant, key, w->version, NULL);
    if (!r)
        return; /* removed meanwhile */
    if (!n->ops->reader_is_verified(r) && n->ops->reader_verify(r, &err))
        mcfs_error("%.*s: %s", MCFS_SLICE_ARG(key), err.msg);
    n->ops->reader_close(r);
}

/* Takes the next one that is due, waiting for it; false at the end. */
static bool next(struct verifier *v, struct waiting *w)
{
    MCFS_LOCK_SCOPE(&v->lock);
    while (!v->stop) {
        int64_t left = v->count ? v->waiting[v->first].due_ms - mcfs_mono_ms() : 3600000;
        if (left > 0) {
            mcfs_cond_wait_until(&v->changed, &v->lock, mcfs_mono_ns() + left * 1000000);
            continue;
        }
        *w = v->waiting[v->first];
        v->first = (v->first + 1) % WAITING_MAX;
        v->count--;
        return true;
    }
    return false;
}

static void *verifier_main(void *arg)
{
    struct verifier *v = arg;
    struct sched_param param = {0};
    struct waiting w;
    pthread_setschedparam(pthread_self(), SCHED_IDLE, &param);
    while (next(v, &w)) {
        verify(v->node, &w);
        mcfs_buf_free(&w.names);
    }
    return NULL;
}

struct verifier *verifier_new(struct node *n, struct mcfs_error *err)
{
    struct verifier *v = calloc(1, sizeof(*v));
    if (!v) {
        mcfs_fail_errno(err, ENOMEM, "verifier");
        return NULL;
    }
    v->node = n;
    pthread_mutex_init(&v->lock, NULL);
    mcfs_cond_init(&v->changed);
    int rc = pthread_create(&v->thread, NULL, verifier_main, v);
    if (rc == 0)
        return v;
    mcfs_fail_errno(err, rc, "verifier thread");
    free(v);
    return NULL;
}

void verifier_free(struct verifier *v)
{
    if (!v)
        return;
    pthread_mutex_lock(&v->lock);
    v->stop = true;
    pthread_cond_signal(&v->changed);
    pthread_mutex_unlock(&v->lock);
    pthread_join(v->thread, NULL);
    for (unsigned i = 0; i < v->count; i++)
        mcfs_buf_free(&v->waiting[(v->first + i) % WAITING_MAX].names);
    pthread_cond_destroy(&v->changed);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

void verifier_add(struct verifier *v, struct mcfs_slice tenant, struct mcfs_slice key,
                  uint64_t version)
{
    MCFS_LOCK_SCOPE(&v->lock);
    if (v->count == WAITING_MAX)
        return;
    for (unsigned i = 0; i < v->count; i++)
        if (v->waiting[(v->first + i) % WAITING_MAX].version == version)
            return; /* versions are unique */
    struct waiting *w = &v->waiting[(v->first + v->count) % WAITING_MAX];
    *w = (struct waiting){
        .tenant_len = tenant.len, .version = version, .due_ms = mcfs_mono_ms() + DELAY_MS};
    mcfs_buf_append(&w->names, tenant.data, tenant.len);
    mcfs_buf_append(&w->names, key.data, key.len);
    if (w->names.failed) {
        mcfs_buf_free(&w->names);
        return;
    }
    v->count++;
    pthread_cond_signal(&v->changed);
}
