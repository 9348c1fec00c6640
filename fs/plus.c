/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/plus.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cond.h"
#include "fs/fs.h"

#include <linux/fuse.h>

#define DIRS_MAX 64 /* settled at a time */
#define NO_NAME "%" /* encodes nothing (namespace.h), so no entry has it */

struct plus {
    struct fs *fs;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    uint64_t drops, sent; /* so far */
    struct plus_answer *under_way;
    uint64_t asked, settled; /* rounds of the thread */
    bool stop;
};

/* Under the lock. */
static void take_out(struct plus *p, struct plus_answer *a)
{
    if (!a->under_way)
        return;
    *(a->prev ? &a->prev->next : &p->under_way) = a->next;
    if (a->next)
        a->next->prev = a->prev;
    a->under_way = false;
}

/* A directory's answers, but for those sent later than that. */
static void take_out_dir(struct plus *p, uint64_t dir, uint64_t last)
{
    struct plus_answer *next;
    for (struct plus_answer *a = p->under_way; a; a = next) {
        next = a->next;
        if (a->dir == dir && a->number <= last)
            take_out(p, a);
    }
}

/* Directories with such an answer under way, each once. */
static size_t some_dirs(const struct plus *p, uint64_t last, uint64_t *dirs)
{
    size_t n = 0;
    for (const struct plus_answer *a = p->under_way; a && n < DIRS_MAX; a = a->next) {
        size_t i = a->number <= last ? 0 : n + 1;
        while (i < n && dirs[i] != a->dir)
            i++;
        if (i == n)
            dirs[n++] = a->dir;
    }
    return n;
}

/* One round: answers that were sent before it.  Under the lock, which is given up meanwhile. */
static void settle_all(struct plus *p)
{
    uint64_t dirs[DIRS_MAX], last = p->sent;
    size_t n;
    while (!p->stop && (n = some_dirs(p, last, dirs))) {
        pthread_mutex_unlock(&p->lock);
        for (size_t i = 0; i < n; i++)
            fs_await_directory(p->fs, dirs[i], NO_NAME);
        fs_new_epoch(p->fs);
        pthread_mutex_lock(&p->lock);
        for (size_t i = 0; i < n; i++)
            take_out_dir(p, dirs[i], last);
    }
}

static void *plus_main(void *arg)
{
    struct plus *p = arg;
    MCFS_LOCK_SCOPE(&p->lock);
    while (!p->stop) {
        if (p->settled == p->asked) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        uint64_t round = p->asked;
        settle_all(p);
        p->settled = round;
        pthread_cond_broadcast(&p->changed);
    }
    return NULL;
}

struct plus *plus_new(struct fs *fs, struct mcfs_error *err)
{
    struct plus *p = calloc(1, sizeof(*p));
    if (!p) {
        mcfs_fail_errno(err, ENOMEM, "listings");
        return NULL;
    }
    p->fs = fs;
    pthread_mutex_init(&p->lock, NULL);
    mcfs_cond_init(&p->changed);
    int rc = pthread_create(&p->thread, NULL, plus_main, p);
    if (rc == 0)
        return p;
    mcfs_fail_errno(err, rc, "thread of listings");
    free(p);
    return NULL;
}

void plus_free(struct plus *p)
{
    if (!p)
        return;
    {
        MCFS_LOCK_SCOPE(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}

uint64_t plus_begin(struct plus *p, struct plus_answer *a)
{
    MCFS_LOCK_SCOPE(&p->lock);
    take_out(p, a);
    return p->drops;
}

bool plus_send(struct plus *p, struct plus_answer *a, uint64_t dir, uint64_t began)
{
    MCFS_LOCK_SCOPE(&p->lock);
    if (p->drops != began)
        return false;
    a->dir = dir;
    a->number = ++p->sent;
    a->prev = NULL;
    a->next = p->under_way;
    if (a->next)
        a->next->prev = a;
    p->under_way = a;
    a->under_way = true;
    return true;
}

void plus_done(struct plus *p, struct plus_answer *a)
{
    MCFS_LOCK_SCOPE(&p->lock);
    take_out(p, a);
}

void plus_done_dir(struct plus *p, uint64_t dir)
{
    MCFS_LOCK_SCOPE(&p->lock);
    take_out_dir(p, dir, p->sent);
}

void plus_drop(struct plus *p)
{
    MCFS_LOCK_SCOPE(&p->lock);
    p->drops++;
}

void plus_settle(struct plus *p, int64_t wait_ms)
{
    MCFS_LOCK_SCOPE(&p->lock);
    if (!p->under_way && p->settled == p->asked)
        return;
    uint64_t round = ++p->asked;
    int64_t until_ns = mcfs_mono_ns() + wait_ms * 1000000;
    pthread_cond_broadcast(&p->changed);
    while (p->settled < round && !p->stop) {
        if (wait_ms == PLUS_FOREVER)
            pthread_cond_wait(&p->changed, &p->lock);
        else if (mcfs_mono_ns() >= until_ns)
            return;
        else
            mcfs_cond_wait_until(&p->changed, &p->lock, until_ns);
    }
}

/* ---- entries ---- */

/* The entry at an offset, which moves behind it; NULL at the end. */
static struct fuse_direntplus *entry_at(const char *data, size_t len, size_t *at)
{
    if (*at >= len)
        return NULL;
    struct fuse_direntplus *d = (struct fuse_direntplus *)(void *)(uintptr_t)(data + *at);
    *at += FUSE_DIRENTPLUS_SIZE(d);
    return d;
}

void plus_void(char *data, size_t len)
{
    struct fuse_direntplus *d;
    for (size_t at = 0; (d = entry_at(data, len, &at));) {
        d->entry_out.entry_valid = d->entry_out.attr_valid = 0;
        d->entry_out.entry_valid_nsec = d->entry_out.attr_valid_nsec = 0;
    }
}

void plus_forget(struct inode_table *t, const char *data, size_t len)
{
    const struct fuse_direntplus *d;
    for (size_t at = 0; (d = entry_at(data, len, &at));)
        if (d->entry_out.nodeid)
            inode_forget(t, inode_from(t, d->entry_out.nodeid), 1);
}
