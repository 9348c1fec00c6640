/* SPDX-License-Identifier: Apache-2.0 */
#include "master/waiting.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <inttypes.h>
#include <pthread.h>

struct waiting_put {
    struct waiting_put *next;
    struct mcfs_rpc_later *later;
    int64_t until_mono_ms;
    bool doubted;         /* the last look found that it cannot be helped */
    struct put_start put; /* its slices, and config's, point into text */
    struct memory_config config;
    char text[];
};

struct list {
    struct waiting_put *head, **end;
};

struct waiting_puts {
    struct master *m;
    atomic_uint count;    /* those that a look for room is under way for included */
    pthread_mutex_t lock; /* guards the list; innermost */
    struct list list;     /* the oldest first */
};

struct waiting_puts *waiting_puts_new(struct master *m, struct mcfs_error *err)
{
    struct waiting_puts *w = calloc(1, sizeof(*w));
    if (!w) {
        mcfs_fail_errno(err, ENOMEM, "waiting puts");
        return NULL;
    }
    w->m = m;
    w->list.end = &w->list.head;
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

static void forget(struct waiting_puts *w, struct waiting_put *p)
{
    mcfs_rpc_later_free(p->later);
    free(p);
    atomic_fetch_sub(&w->count, 1);
}

static struct waiting_put *first(struct list *l)
{
    struct waiting_put *p = l->head;
    if (p && !(l->head = p->next))
        l->end = &l->head;
    return p;
}

static void append(struct list *l, struct waiting_put *p)
{
    p->next = NULL;
    *l->end = p;
    l->end = &p->next;
}

void waiting_puts_free(struct waiting_puts *w)
{
    struct waiting_put *p;
    if (!w)
        return;
    while ((p = first(&w->list)))
        forget(w, p);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

uint32_t waiting_puts_count(const struct waiting_puts *w)
{
    return w ? atomic_load(&w->count) : 0;
}

/* ---- coming ---- */

static void copy(char **at, struct mcfs_slice *s)
{
    if (s->len)
        memcpy(*at, s->data, s->len);
    s->data = *at;
    *at += s->len;
}

int waiting_puts_add(struct waiting_puts *w, struct mcfs_rpc_request *r, const struct put_start *p,
                     const struct memory_config *c, struct mcfs_error *err)
{
    size_t len = p->tenant.len + p->key.len + p->group.len;
    if (!w)
        return -1;
    for (uint32_t i = 0; i < c->preferred_count; i++)
        len += c->preferred[i].len;
    if (atomic_fetch_add(&w->count, 1) >= PUTS_WAITING_MAX) {
        atomic_fetch_sub(&w->count, 1);
        return mcfs_error_prefix(err, "%u puts wait for room already", PUTS_WAITING_MAX);
    }
    struct waiting_put *e = malloc(sizeof(*e) + len);
    if (!e || !(e->later = mcfs_rpc_answer_later(r))) {
        free(e);
        atomic_fetch_sub(&w->count, 1);
        return -1;
    }
    e->put = *p;
    e->config = *c;
    e->doubted = false;
    e->until_mono_ms = mcfs_mono_ms() + (int64_t)c->wait_ms;
    char *at = e->text;
    copy(&at, &e->put.tenant);
    copy(&at, &e->put.key);
    copy(&at, &e->put.group);
    for (uint32_t i = 0; i < c->preferred_count; i++)
        copy(&at, &e->config.preferred[i]);
    {
        MCFS_LOCK_SCOPE(&w->lock);
        append(&w->list, e);
    }
    evictor_serve(w->m->evictor);
    return 0;
}

/* ---- waiting, in the evictor's thread ---- */

/* Gives the answer; a put that has begun, and whose caller does not hear of it, is revoked. */
static void answer(struct waiting_puts *w, struct waiting_put *p, uint64_t version,
                   const struct mcfs_buf *result, const struct mcfs_error *err)
{
    struct mcfs_rpc_later *later = p->later;
    uint32_t client = p->put.client;
    p->later = NULL;
    forget(w, p); /* who has the answer is not counted any more */
    if (mcfs_rpc_later_send(later, result, err) && result)
        directory_put_revoke(w->m->directory, version, client, NULL);
}

/* Whether the put is done with: answered, or its caller has left.  *least: a size that found no
 * room in this pass, so that larger ones need not ask. */
static bool ask_again(struct waiting_puts *w, struct waiting_put *p, uint64_t *least)
{
    bool over = mcfs_mono_ms() >= p->until_mono_ms;
    _cleanup_buf_ struct mcfs_buf result = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t version = 0;
    bool full;
    if (mcfs_rpc_later_is_gone(p->later)) {
        forget(w, p);
        return true;
    }
    if (p->put.size >= *least && !over)
        return false;
    if (put_begin_in_memory(w->m, &p->put, &p->config, true, &version, &full, &result, &err) == 0) {
        answer(w, p, version, &result, NULL);
        return true;
    }
    if (full)
        *least = MCFS_MIN(*least, p->put.size);
    if (full && !over)
        return false;
    if (full)
        mcfs_fail(&err, MCFS_NO_AVAILABLE_HANDLE,
                  "no memory segment has had %" PRIu64 " bytes free in one piece for %" PRIu64
                  " ms, for all that could be evicted",
                  p->put.size, p->config.wait_ms);
    answer(w, p, 0, NULL, &err);
    return true;
}

static bool any(void *arg)
{
    struct waiting_puts *w = arg;
    return atomic_load(&w->count) != 0;
}

/* Takes the list; what comes meanwhile is put behind what is left of it by put_back. */
static struct list take_all(struct waiting_puts *w)
{
    MCFS_LOCK_SCOPE(&w->lock);
    struct list all = w->list;
    w->list = (struct list){.end = &w->list.head};
    return all;
}

static void put_back(struct waiting_puts *w, struct list *left)
{
    MCFS_LOCK_SCOPE(&w->lock);
    if (!left->head)
        return;
    *left->end = w->list.head;
    if (!w->list.head)
        w->list.end = left->end;
    w->list.head = left->head;
}

static int64_t serve(void *arg, bool *some)
{
    struct waiting_puts *w = arg;
    struct list all = take_all(w), left = {.end = &left.head};
    struct waiting_put *p;
    int64_t until = 0;
    uint64_t least = UINT64_MAX;
    *some = false;
    while ((p = first(&all))) {
        unsigned slot = directory_enter(w->m->directory);
        bool done = ask_again(w, p, &least);
        directory_leave(w->m->directory, slot);
        *some |= done;
        if (done)
            continue;
        until = MCFS_MAX(until, p->until_mono_ms);
        append(&left, p);
    }
    put_back(w, &left);
    return until;
}

static bool refuse(void *arg, int64_t until_mono_ms, uint64_t room)
{
    struct waiting_puts *w = arg;
    struct list all = take_all(w), left = {.end = &left.head};
    struct waiting_put *p;
    bool some = false;
    while ((p = first(&all))) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        bool fits = p->put.size <= room, looked = p->until_mono_ms <= until_mono_ms;
        /* What changed names or was replaced during the look may have been counted twice. */
        if (fits || !looked || !p->doubted) {
            some |= fits && looked;
            p->doubted = !fits && looked;
            append(&left, p);
            continue;
        }
        mcfs_fail(&err, MCFS_NO_AVAILABLE_HANDLE,
                  "no memory segment has %" PRIu64
                  " bytes free in one piece, or will have within "
                  "%" PRIu64 " ms: too much is pinned or leased",
                  p->put.size, p->config.wait_ms);
        answer(w, p, 0, NULL, &err);
    }
    put_back(w, &left);
    return some;
}

struct evict_waiters waiting_puts_waiters(struct waiting_puts *w)
{
    return (struct evict_waiters){any, serve, refuse, w};
}
