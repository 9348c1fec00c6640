/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/locks.h"

#include "common/cleanup.h"
#include "common/hash.h"
#include "common/table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct lock {
    struct lock *next;
    struct lock_range r;
};

struct file_name {
    struct mcfs_slice tenant, key;
};

struct lock_file {
    struct locks *locks;
    unsigned refs;
    bool named; /* in the table */
    struct file_name name;
    char *bytes; /* of the name */
    struct lock *held;
};

/* One mutex for all: locks are rare, and looking for deadlocks needs every queue. */
struct locks {
    pthread_mutex_t lock;
    struct mcfs_table files;
    struct lock_wait *waits; /* first come, first served */
    uint64_t walk;
};

static uint64_t hash_file(const void *entry)
{
    const struct lock_file *f = entry;
    return mcfs_hash_tenant(f->name.tenant, f->name.key);
}

static bool file_is(const void *entry, const void *key)
{
    const struct lock_file *f = entry;
    const struct file_name *n = key;
    return mcfs_slice_eq(f->name.tenant, n->tenant) && mcfs_slice_eq(f->name.key, n->key);
}

static struct lock_file *find(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice key)
{
    struct file_name n = {tenant, key};
    return mcfs_table_find(&l->files, mcfs_hash_tenant(tenant, key), file_is, &n);
}

static int set_name(struct lock_file *f, struct mcfs_slice tenant, struct mcfs_slice key)
{
    char *bytes = malloc(tenant.len + key.len + 1);
    if (!bytes)
        return -1;
    if (tenant.len)
        memcpy(bytes, tenant.data, tenant.len);
    if (key.len)
        memcpy(bytes + tenant.len, key.data, key.len);
    free(f->bytes);
    f->bytes = bytes;
    f->name.tenant = mcfs_slice(bytes, tenant.len);
    f->name.key = mcfs_slice(bytes + tenant.len, key.len);
    return 0;
}

static void take_name(struct lock_file *f)
{
    if (f && f->named)
        mcfs_table_del(&f->locks->files, f);
    if (f)
        f->named = false;
}

struct locks *locks_new(void)
{
    struct locks *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    pthread_mutex_init(&l->lock, NULL);
    l->files.hash = hash_file;
    return l;
}

void locks_free(struct locks *l)
{
    if (!l)
        return;
    mcfs_table_free(&l->files);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

struct lock_file *lock_file_get(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice key,
                                bool named)
{
    MCFS_LOCK_SCOPE(&l->lock);
    struct lock_file *f = named ? find(l, tenant, key) : NULL;
    if (f) {
        f->refs++;
        return f;
    }
    f = calloc(1, sizeof(*f));
    if (!f)
        return NULL;
    f->locks = l;
    f->refs = 1;
    if (named && (set_name(f, tenant, key) || mcfs_table_add(&l->files, f))) {
        free(f->bytes);
        free(f);
        return NULL;
    }
    f->named = named;
    return f;
}

void lock_file_unref(struct lock_file *f)
{
    if (!f)
        return;
    {
        MCFS_LOCK_SCOPE(&f->locks->lock);
        if (--f->refs)
            return;
        take_name(f);
    }
    for (struct lock *k = f->held, *next; k; k = next) {
        next = k->next;
        free(k);
    }
    free(f->bytes);
    free(f);
}

/* ---- ranges ---- */

static bool conflict(const struct lock_range *a, const struct lock_range *b)
{
    return a->kind == b->kind && a->owner != b->owner &&
           (a->type == F_WRLCK || b->type == F_WRLCK) && a->start <= b->end && b->start <= a->end;
}

static const struct lock *in_the_way(const struct lock_file *f, const struct lock_range *want)
{
    for (const struct lock *k = f->held; k; k = k->next)
        if (conflict(&k->r, want))
            return k;
    return NULL;
}

static void push(struct lock_file *f, struct lock *k, struct lock_range r)
{
    k->r = r;
    k->next = f->held;
    f->held = k;
}

/* Takes the range away from its owner's locks.  At most one lock is cut in two: for that is *spare.
 */
static void cut(struct lock_file *f, const struct lock_range *w, struct lock **spare)
{
    struct lock **at = &f->held;
    while (*at) {
        struct lock *k = *at;
        struct lock_range r = k->r;
        if (r.kind != w->kind || r.owner != w->owner || r.start > w->end || r.end < w->start) {
            at = &k->next;
            continue;
        }
        bool before = r.start<w->start, after = r.end> w->end;
        if (before)
            k->r.end = w->start - 1;
        else if (after)
            k->r.start = w->end + 1;
        if (before && after) {
            struct lock_range rest = r;
            rest.start = w->end + 1;
            push(f, *spare, rest);
            *spare = NULL;
        }
        if (before || after) {
            at = &k->next;
            continue;
        }
        *at = k->next;
        free(k);
    }
}

/* Adds a range, and makes one of it and its owner's neighbours that are alike. */
static void add(struct lock_file *f, struct lock *k, struct lock_range r)
{
    struct lock **at = &f->held;
    while (*at) {
        struct lock *o = *at;
        bool touch = (o->r.end != UINT64_MAX && o->r.end + 1 == r.start) ||
                     (r.end != UINT64_MAX && r.end + 1 == o->r.start);
        if (!touch || o->r.kind != r.kind || o->r.owner != r.owner || o->r.type != r.type ||
            o->r.via != r.via) {
            at = &o->next;
            continue;
        }
        r.start = r.start < o->r.start ? r.start : o->r.start;
        r.end = r.end > o->r.end ? r.end : o->r.end;
        *at = o->next;
        free(o);
    }
    push(f, k, r);
}

/* 0, EAGAIN or ENOLCK.  Changing a flock lock is dropping it and asking anew, as in flock(2): two
 * that share one and both want it alone would wait for each other otherwise. */
static int try_set(struct lock_file *f, const struct lock_range *w)
{
    struct lock *fresh = malloc(sizeof(*fresh)), *spare = malloc(sizeof(*spare));
    int rc = fresh && spare ? 0 : ENOLCK;
    bool held = false;
    for (struct lock *k = f->held; k; k = k->next)
        held |= w->kind == LOCK_KIND_FLOCK && k->r.kind == w->kind && k->r.owner == w->owner &&
                k->r.type == w->type;
    if (rc == 0 && !held) {
        bool blocked = w->type != F_UNLCK && in_the_way(f, w);
        if (!blocked || w->kind == LOCK_KIND_FLOCK)
            cut(f, w, &spare);
        if (blocked) {
            rc = EAGAIN;
        } else if (w->type != F_UNLCK) {
            add(f, fresh, *w);
            fresh = NULL;
        }
    }
    free(fresh);
    free(spare);
    return rc;
}

/* ---- waiting ---- */

static void unqueue(struct locks *l, struct lock_wait *w)
{
    struct lock_wait **at = &l->waits;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->next = NULL;
    w->state = LOCK_DONE;
}

/* Something was unlocked: who gets it?  Returns those whose waiting is over, for tell(). */
static struct lock_wait *wake(struct lock_file *f)
{
    struct lock_wait *over = NULL, **last = &over, *next;
    for (struct lock_wait *w = f->locks->waits; w; w = next) {
        next = w->next;
        if (w->file != f || in_the_way(f, &w->want))
            continue;
        int rc = try_set(f, &w->want);
        unqueue(f->locks, w);
        w->cancelled = rc != 0;
        *last = w;
        last = &w->next;
    }
    return over;
}

static void tell(struct lock_wait *over)
{
    for (struct lock_wait *next; over; over = next) {
        next = over->next;
        over->done(over, over->cancelled ? ENOLCK : 0);
    }
}

/* Whether what w waits for is held by its own owner, or by one who waits for such a lock.  Each
 * wait is walked once. */
static bool leads_to(struct locks *l, struct lock_wait *w, uint64_t owner)
{
    w->seen = l->walk;
    for (const struct lock *k = w->file->held; k; k = k->next) {
        if (!conflict(&k->r, &w->want))
            continue;
        if (k->r.owner == owner)
            return true;
        for (struct lock_wait *o = l->waits; o; o = o->next)
            if (o->seen != l->walk && o->want.kind == LOCK_KIND_POSIX &&
                o->want.owner == k->r.owner && leads_to(l, o, owner))
                return true;
    }
    return false;
}

int locks_set(struct lock_file *f, struct lock_wait *w, bool sleep)
{
    struct locks *l = f->locks;
    struct lock_wait *over = NULL;
    int rc;
    {
        MCFS_LOCK_SCOPE(&l->lock);
        w->file = f;
        rc = w->cancelled ? EINTR : try_set(f, &w->want);
        if (rc == EAGAIN && sleep) {
            l->walk++;
            rc = w->want.kind == LOCK_KIND_POSIX && leads_to(l, w, w->want.owner) ? EDEADLK
                                                                                  : EINPROGRESS;
        }
        if (rc == EINPROGRESS) {
            struct lock_wait **at = &l->waits;
            while (*at)
                at = &(*at)->next;
            *at = w;
            w->state = LOCK_QUEUED;
        } else {
            w->state = LOCK_DONE;
        }
        if (l->waits && rc != EINTR)
            over = wake(f);
    }
    tell(over);
    return rc;
}

void locks_test(struct lock_file *f, struct lock_range *want)
{
    MCFS_LOCK_SCOPE(&f->locks->lock);
    const struct lock *k = in_the_way(f, want);
    if (k)
        *want = k->r;
    else
        want->type = F_UNLCK;
}

bool locks_cancel(struct locks *l, struct lock_wait *w)
{
    MCFS_LOCK_SCOPE(&l->lock);
    bool queued = w->state == LOCK_QUEUED;
    if (queued)
        unqueue(l, w);
    else if (w->state == LOCK_NEW)
        w->cancelled = true;
    return queued;
}

unsigned locks_waiting(struct locks *l)
{
    unsigned n = 0;
    MCFS_LOCK_SCOPE(&l->lock);
    for (const struct lock_wait *w = l->waits; w; w = w->next)
        n++;
    return n;
}

void locks_end_waits(struct locks *l)
{
    for (;;) {
        struct lock_wait *w;
        {
            MCFS_LOCK_SCOPE(&l->lock);
            w = l->waits;
            if (w)
                unqueue(l, w);
        }
        if (!w)
            return;
        w->done(w, EINTR);
    }
}

/* ---- closing and names ---- */

static void drop(struct lock_file *f, bool by_owner, enum lock_kind kind, uint64_t owner,
                 const void *via)
{
    struct lock_wait *over;
    {
        MCFS_LOCK_SCOPE(&f->locks->lock);
        for (struct lock **at = &f->held; *at;) {
            struct lock *k = *at;
            if (by_owner ? k->r.kind != kind || k->r.owner != owner : k->r.via != via) {
                at = &k->next;
                continue;
            }
            *at = k->next;
            free(k);
        }
        over = wake(f);
    }
    tell(over);
}

void locks_drop_owner(struct lock_file *f, enum lock_kind kind, uint64_t owner)
{
    drop(f, true, kind, owner, NULL);
}

void locks_drop_via(struct lock_file *f, const void *via)
{
    drop(f, false, LOCK_KIND_POSIX, 0, via);
}

void locks_rename(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice from,
                  struct mcfs_slice to)
{
    if (mcfs_slice_eq(from, to))
        return;
    MCFS_LOCK_SCOPE(&l->lock);
    struct lock_file *f = find(l, tenant, from);
    take_name(find(l, tenant, to));
    take_name(f);
    /* Without memory its locks hold among those who have it open. */
    if (f && set_name(f, tenant, to) == 0)
        f->named = mcfs_table_add(&l->files, f) == 0;
}

void locks_exchange(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice a,
                    struct mcfs_slice b)
{
    if (mcfs_slice_eq(a, b))
        return;
    MCFS_LOCK_SCOPE(&l->lock);
    struct lock_file *fa = find(l, tenant, a), *fb = find(l, tenant, b);
    take_name(fa);
    take_name(fb);
    if (fa && set_name(fa, tenant, b) == 0)
        fa->named = mcfs_table_add(&l->files, fa) == 0;
    if (fb && set_name(fb, tenant, a) == 0)
        fb->named = mcfs_table_add(&l->files, fb) == 0;
}

void locks_unlink(struct locks *l, struct mcfs_slice tenant, struct mcfs_slice key)
{
    MCFS_LOCK_SCOPE(&l->lock);
    take_name(find(l, tenant, key));
}
