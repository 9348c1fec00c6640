/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/live.h"

#include "backends/backends.h"
#include "backends/file_per_key/files.h"
#include "backends/get.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/cond.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/log.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_MAX 4
#define LOOKING_SHARE 20 /* looking takes at most one part in so many of the time */

/*
 * The store as it was read at one time.  Versions may go back when its owner starts afresh, or puts
 * an older file in a newer one's place; to others a version must never name other bytes, nor an
 * older one be the present one.  So they are raised, by as much as that takes.
 */
struct generation {
    struct mcfs_backend *store;
    uint64_t raise; /* added to the store's versions for everybody else */
    uint32_t users; /* under the live store's lock */
};

struct live {
    struct mcfs_backend base;
    struct mcfs_backend_ops ops; /* with the layout's name */
    const struct mcfs_backend_ops *layout;
    struct mcfs_backend_config config;
    enum io_engine io;
    char *dir, *fsdir;

    pthread_mutex_t lock; /* guards what follows */
    struct generation *current;
    bool stopping;
    pthread_cond_t wake;

    pthread_t thread;
    bool started;
    uint32_t interval_ms;
    uint64_t signature; /* of the files that `current` was read from; the thread's */
    void (*changed)(void *arg);
    void *arg;
};

struct reader {
    struct mcfs_backend_reader base;
    struct live *live;
    struct generation *generation;
    struct mcfs_backend_reader *inner;
};

/* ---- what the files look like ---- */

/* A data file that changes all the time says nothing; the checkpoint beside it does. */
static bool is_silent(const char *name)
{
    static const char *const silent[] = {".", "..", "lock", "kv_cache.data", "lost+found", "*.tmp"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(silent); i++)
        if (fnmatch(silent[i], name, 0) == 0)
            return true;
    return false;
}

/* A sum over names, sizes and times, in whatever order they are listed. */
static uint64_t look(int parent, const char *name, int depth)
{
    uint64_t sum = 0;
    _cleanup_dir_ DIR *dir = mcfs_open_dir(parent, name);
    struct dirent *d;
    if (!dir)
        return 0;
    while ((d = readdir(dir))) {
        struct stat st;
        /* The files of a file-per-key store of ours do not change, and its logs name them. */
        if (strcmp(name, FILES_DIR) == 0 && strcmp(d->d_name, "values") == 0)
            continue;
        if (is_silent(d->d_name) || fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue;
        int64_t what[] = {st.st_size, mcfs_timespec_ns(st.st_mtim), (int64_t)st.st_ino};
        if (S_ISDIR(st.st_mode) && depth < DEPTH_MAX)
            sum += look(dirfd(dir), d->d_name, depth + 1);
        else
            sum += mcfs_hash_seed(what, sizeof(what), mcfs_hash(d->d_name, strlen(d->d_name)));
    }
    return sum;
}

/* ---- generations ---- */

static struct generation *hold(struct live *l)
{
    MCFS_LOCK_SCOPE(&l->lock);
    l->current->users++;
    return l->current;
}

static void let_go(struct live *l, struct generation *g)
{
    {
        MCFS_LOCK_SCOPE(&l->lock);
        if (--g->users)
            return;
    }
    l->layout->close(g->store, NULL);
    free(g);
}

static struct generation *read_store(struct live *l, struct mcfs_backend_recovery *recovery,
                                     struct mcfs_error *err)
{
    struct generation *g = calloc(1, sizeof(*g));
    if (!g) {
        mcfs_fail_errno(err, ENOMEM, "%s", l->dir);
        return NULL;
    }
    g->users = 1;                                               /* being the current one */
    l->config.previous = l->current ? l->current->store : NULL; /* changed by this thread only */
    g->store = l->layout->open(&l->config, recovery, err);
    if (g->store)
        return g;
    free(g);
    return NULL;
}

/* ---- versions ---- */

struct mark {
    uint64_t hash, version, content;
};

struct marks {
    struct mark *v;
    size_t count, cap;
    bool failed;
};

static struct mark mark_of(const struct mcfs_object *o)
{
    uint64_t content[] = {o->size, o->has_crc ? o->crc32c : 0};
    return (struct mark){
        mcfs_hash_seed(o->key.data, o->key.len, mcfs_hash(o->tenant.data, o->tenant.len)),
        o->version, mcfs_hash(content, sizeof(content))};
}

static bool note(const struct mcfs_object *o, void *arg)
{
    struct marks *m = arg;
    if (m->count == m->cap) {
        size_t cap = m->cap ? m->cap * 2 : 1024;
        struct mark *v = realloc(m->v, cap * sizeof(*v));
        m->failed |= !v;
        if (!v)
            return false;
        m->v = v;
        m->cap = cap;
    }
    m->v[m->count++] = mark_of(o);
    return true;
}

static int by_hash(const void *a, const void *b)
{
    const struct mark *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash > y->hash ? 1 : -1;
    return (x->version > y->version) - (x->version < y->version);
}

/* The newest version of each key, in order of hash. */
static int take_marks(struct live *l, const struct generation *g, struct marks *m,
                      struct mcfs_error *err)
{
    if (l->layout->scan(g->store, note, m, err))
        return -1;
    if (m->failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->dir);
    if (!m->count)
        return 0;
    qsort(m->v, m->count, sizeof(*m->v), by_hash);
    size_t kept = 0;
    for (size_t i = 1; i < m->count; i++) {
        kept += m->v[i].hash != m->v[kept].hash;
        m->v[kept] = m->v[i];
    }
    m->count = kept + 1;
    return 0;
}

/* By how much the newer versions have to be raised. */
static uint64_t went_back(const struct marks *was, const struct marks *now, bool counted)
{
    uint64_t delta = 0, newest_was = 0, newest_now = 0;
    for (size_t i = 0; i < was->count; i++)
        newest_was = MCFS_MAX(newest_was, was->v[i].version);
    for (size_t i = 0, k = 0; i < now->count; i++) {
        const struct mark *n = &now->v[i];
        newest_now = MCFS_MAX(newest_now, n->version);
        while (k < was->count && was->v[k].hash < n->hash)
            k++;
        const struct mark *w = k < was->count && was->v[k].hash == n->hash ? &was->v[k] : NULL;
        if (w &&
            (w->version > n->version || (w->version == n->version && w->content != n->content)))
            delta = MCFS_MAX(delta, w->version - n->version + 1);
    }
    /* Fewer than before means that the count began again. */
    if (counted && newest_now < newest_was)
        delta = MCFS_MAX(delta, newest_was - newest_now + 1);
    return delta;
}

static int raise_versions(struct live *l, const struct generation *old, struct generation *g,
                          struct mcfs_error *err)
{
    struct marks was = {0}, now = {0};
    int rc = take_marks(l, old, &was, err) || take_marks(l, g, &now, err) ? -1 : 0;
    if (rc == 0)
        g->raise = old->raise + went_back(&was, &now, l->layout == &mcfs_offset_ops);
    free(was.v);
    free(now.v);
    return rc;
}

/* An owner that is in the middle of something may make it unreadable for a moment: what was read
 * before stays, and the next look tries again. */
static void read_again(struct live *l, bool *complained)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t signature = look(AT_FDCWD, l->dir, 0);
    if (signature == l->signature)
        return;
    struct generation *g = read_store(l, NULL, &err), *old = l->current; /* changed here only */
    if (g && raise_versions(l, old, g, &err)) {
        let_go(l, g);
        g = NULL;
    }
    if (!g) {
        if (!*complained)
            mcfs_warning("%s; what was read before is shown still", err.msg);
        *complained = true;
        return;
    }
    *complained = false;
    l->signature = signature; /* from before it was read: a change since is seen by the next look */
    {
        MCFS_LOCK_SCOPE(&l->lock);
        l->current = g;
    }
    let_go(l, old);
    l->changed(l->arg);
}

static void *watch_main(void *arg)
{
    struct live *l = arg;
    bool complained = false;
    int64_t pause_ns = (int64_t)l->interval_ms * 1000000;
    for (;;) {
        int64_t until = mcfs_mono_ns() + pause_ns;
        {
            MCFS_LOCK_SCOPE(&l->lock);
            while (!l->stopping && mcfs_mono_ns() < until)
                mcfs_cond_wait_until(&l->wake, &l->lock, until);
            if (l->stopping)
                return NULL;
        }
        int64_t started = mcfs_mono_ns();
        read_again(l, &complained);
        int64_t took = mcfs_mono_ns() - started, interval = (int64_t)l->interval_ms * 1000000;
        pause_ns = MCFS_MAX(interval, took * LOOKING_SHARE);
    }
}

int mcfs_backend_watch(struct mcfs_backend *b, uint32_t interval_ms, void (*changed)(void *arg),
                       void *arg, struct mcfs_error *err)
{
    struct live *l = (struct live *)b;
    l->interval_ms = interval_ms;
    l->changed = changed;
    l->arg = arg;
    int rc = pthread_create(&l->thread, NULL, watch_main, l);
    if (rc)
        return mcfs_fail_errno(err, rc, "watching thread");
    l->started = true;
    return 0;
}

void mcfs_backend_unwatch(struct mcfs_backend *b)
{
    struct live *l = (struct live *)b;
    if (!l->started)
        return;
    {
        MCFS_LOCK_SCOPE(&l->lock);
        l->stopping = true;
        pthread_cond_broadcast(&l->wake);
    }
    pthread_join(l->thread, NULL);
    l->started = false;
}

/* ---- the ops: those of the current generation ---- */

static struct mcfs_backend_reader *live_reader_open(struct mcfs_backend *b,
                                                    struct mcfs_slice tenant, struct mcfs_slice key,
                                                    uint64_t version, struct mcfs_error *err)
{
    struct live *l = (struct live *)b;
    struct reader *r = malloc(sizeof(*r));
    if (!r) {
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    struct generation *g = hold(l);
    *r = (struct reader){
        .base = {&l->ops},
        .live = l,
        .generation = g,
        .inner = l->layout->reader_open(g->store, tenant, key, version - g->raise, err)};
    if (r->inner)
        return &r->base;
    let_go(l, g);
    free(r);
    return NULL;
}

static void live_reader_close(struct mcfs_backend_reader *base)
{
    struct reader *r = (struct reader *)base;
    r->live->layout->reader_close(r->inner);
    let_go(r->live, r->generation);
    free(r);
}

static int live_reader_fd(struct mcfs_backend_reader *base, uint64_t *offset, uint64_t *length)
{
    struct reader *r = (struct reader *)base;
    return r->live->layout->reader_fd(r->inner, offset, length);
}

static int64_t live_reader_read(struct mcfs_backend_reader *base, void *buf, size_t len,
                                uint64_t off, struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    return r->live->layout->reader_read(r->inner, buf, len, off, err);
}

static int live_reader_verify(struct mcfs_backend_reader *base, struct mcfs_error *err)
{
    struct reader *r = (struct reader *)base;
    return r->live->layout->reader_verify(r->inner, err);
}

static bool live_reader_is_verified(const struct mcfs_backend_reader *base)
{
    const struct reader *r = (const struct reader *)base;
    return r->live->layout->reader_is_verified(r->inner);
}

static size_t live_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n)
{
    return backend_get(b, ((struct live *)b)->io, items, n);
}

static size_t live_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n)
{
    struct live *l = (struct live *)b;
    struct generation *g = hold(l);
    size_t failed = l->layout->put(g->store, items, n);
    let_go(l, g);
    return failed;
}

static size_t live_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n)
{
    struct live *l = (struct live *)b;
    struct generation *g = hold(l);
    size_t failed = l->layout->remove(g->store, names, n);
    let_go(l, g);
    return failed;
}

static int live_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                      uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                      struct mcfs_error *err)
{
    struct live *l = (struct live *)b;
    struct generation *g = hold(l);
    int rc = l->layout->rekey(g->store, tenant, from, from_version - g->raise, to,
                              to_version - g->raise, err);
    let_go(l, g);
    return rc;
}

static int live_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                         uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err)
{
    struct live *l = (struct live *)b;
    struct generation *g = hold(l);
    int rc = l->layout->set_attr(g->store, tenant, key, version - g->raise, attr, err);
    let_go(l, g);
    return rc;
}

static int live_locate(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                       uint64_t version, struct mcfs_backend_place *place, struct mcfs_error *err)
{
    struct live *l = (struct live *)b;
    struct generation *g = hold(l);
    int rc = l->layout->locate(g->store, tenant, key, version - g->raise, place, err);
    let_go(l, g);
    return rc;
}

struct scan {
    mcfs_backend_scan_fn fn;
    void *arg;
    uint64_t raise;
};

static bool scan_one(const struct mcfs_object *o, void *arg)
{
    const struct scan *s = arg;
    struct mcfs_object raised = *o;
    raised.version += s->raise;
    return s->fn(&raised, s->arg);
}

static int live_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg,
                     struct mcfs_error *err)
{
    struct live *l = (struct live *)b;
    struct generation *g = hold(l);
    struct scan s = {fn, arg, g->raise};
    int rc = l->layout->scan(g->store, scan_one, &s, err);
    let_go(l, g);
    return rc;
}

static int live_sync(struct mcfs_backend *b, struct mcfs_error *err)
{
    (void)b;
    (void)err;
    return 0;
}

static void live_stats(struct mcfs_backend *b, struct mcfs_backend_stats *out)
{
    struct live *l = (struct live *)b;
    struct generation *g = hold(l);
    l->layout->stats(g->store, out);
    out->io_engine = io_engine_name(l->io);
    let_go(l, g);
}

static int live_close(struct mcfs_backend *b, struct mcfs_error *err)
{
    struct live *l = (struct live *)b;
    (void)err;
    mcfs_backend_unwatch(b);
    if (l->current)
        let_go(l, l->current);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->wake);
    free(l->dir);
    free(l->fsdir);
    free(l);
    return 0;
}

static const struct mcfs_backend_ops live_ops = {
    .put = live_put,
    .get = live_get,
    .reader_open = live_reader_open,
    .reader_close = live_reader_close,
    .reader_fd = live_reader_fd,
    .reader_read = live_reader_read,
    .reader_verify = live_reader_verify,
    .reader_is_verified = live_reader_is_verified,
    .remove = live_remove,
    .rekey = live_rekey,
    .set_attr = live_set_attr,
    .locate = live_locate,
    .scan = live_scan,
    .sync = live_sync,
    .stats = live_stats,
    .close = live_close,
};

struct mcfs_backend *mcfs_backend_open_live(const struct mcfs_backend_ops *layout,
                                            const struct mcfs_backend_config *config,
                                            struct mcfs_backend_recovery *recovery,
                                            struct mcfs_error *err)
{
    struct live *l = calloc(1, sizeof(*l));
    if (!l) {
        mcfs_fail_errno(err, ENOMEM, "%s", config->dir);
        return NULL;
    }
    l->ops = live_ops;
    l->ops.name = layout->name;
    l->ops.open = layout->open;
    if (!layout->reader_is_verified)
        l->ops.reader_is_verified = NULL;
    l->base.ops = &l->ops;
    l->layout = layout;
    pthread_mutex_init(&l->lock, NULL);
    mcfs_cond_init(&l->wake);
    l->dir = strdup(config->dir);
    l->fsdir = config->fsdir ? strdup(config->fsdir) : NULL;
    l->config = *config;
    l->config.dir = l->dir;
    l->config.fsdir = l->fsdir;
    l->config.read_only = l->config.versions_by_bucket = true;
    if (!l->dir || (config->fsdir && !l->fsdir)) {
        mcfs_fail_errno(err, ENOMEM, "%s", config->dir);
    } else if (io_engine_choose(config->io_engine, &l->io, err) == 0) {
        l->config.io_engine = NULL;
        l->signature = look(AT_FDCWD, l->dir, 0);
        l->current = read_store(l, recovery, err);
    }
    if (l->current)
        return &l->base;
    live_close(&l->base, NULL);
    return NULL;
}
