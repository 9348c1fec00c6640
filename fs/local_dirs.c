/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/local_dirs.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/table.h"
#include "fs/dir_log.h"

#define LOG_SLACK 4096 /* outdated records that are not worth a rewriting */

struct local_dir {
    struct mcfs_slice tenant, prefix;
    bool kept, has_attr;
    bool touched; /* since it was written to the log */
    struct mcfs_attr attr;
    struct local_dir *parent, *child, *sibling,
        *sibling_before; /* kept ones, below their parent's node */
    char bytes[];
};

struct local_dirs {
    pthread_mutex_t lock;
    struct mcfs_table table;
    struct record_log *log; /* or NULL */
    bool touched;           /* one of them is */
};

struct name {
    struct mcfs_slice tenant, prefix;
};

static uint64_t hash_name(struct mcfs_slice tenant, struct mcfs_slice prefix)
{
    return mcfs_hash_seed(prefix.data, prefix.len, mcfs_hash(tenant.data, tenant.len));
}

static uint64_t dir_hash(const void *e)
{
    const struct local_dir *d = e;
    return hash_name(d->tenant, d->prefix);
}

static bool dir_eq(const void *e, const void *key)
{
    const struct local_dir *d = e;
    const struct name *n = key;
    return mcfs_slice_eq(d->prefix, n->prefix) && mcfs_slice_eq(d->tenant, n->tenant);
}

struct local_dirs *local_dirs_new(void)
{
    struct local_dirs *d = calloc(1, sizeof(*d));
    if (d) {
        pthread_mutex_init(&d->lock, NULL);
        d->table = (struct mcfs_table)MCFS_TABLE_INIT(dir_hash);
    }
    return d;
}

void local_dirs_free(struct local_dirs *d)
{
    struct local_dir *e;
    if (!d)
        return;
    for (size_t i = 0; (e = mcfs_table_next(&d->table, &i));)
        free(e);
    mcfs_table_free(&d->table);
    record_log_close(d->log);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static struct local_dir *find(struct local_dirs *d, struct mcfs_slice tenant,
                              struct mcfs_slice prefix)
{
    struct name n = {tenant, prefix};
    return mcfs_table_find(&d->table, hash_name(tenant, prefix), dir_eq, &n);
}

static struct local_dir *get(struct local_dirs *d, struct mcfs_slice tenant,
                             struct mcfs_slice prefix)
{
    struct local_dir *e = find(d, tenant, prefix);
    if (e || !(e = calloc(1, sizeof(*e) + tenant.len + prefix.len)))
        return e;
    memcpy(e->bytes, tenant.data, tenant.len);
    if (prefix.len)
        memcpy(e->bytes + tenant.len, prefix.data, prefix.len);
    e->tenant = mcfs_slice(e->bytes, tenant.len);
    e->prefix = mcfs_slice(e->bytes + tenant.len, prefix.len);
    if (mcfs_table_add(&d->table, e)) {
        free(e);
        return NULL;
    }
    return e;
}

static struct dir_record record_of(const struct local_dir *e)
{
    return (struct dir_record){e->tenant, e->prefix, e->kept, e->has_attr, e->attr};
}

/* The caller holds the lock. */
static void write_log(struct local_dirs *d, struct local_dir *e)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct dir_record r = record_of(e);
    e->touched = false;
    if (!d->log)
        return;
    dir_record_put(&b, &r);
    if (record_log_append(d->log, &b, &err))
        mcfs_warning("%s", err.msg);
}

/* "a/b/" -> "a/"; "a/" -> "". */
static struct mcfs_slice parent_prefix(struct mcfs_slice prefix)
{
    const char *slash = memrchr(prefix.data, '/', prefix.len - 1);
    return mcfs_slice(prefix.data, slash ? (size_t)(slash - prefix.data) + 1 : 0);
}

/* The caller holds the lock. */
static struct local_dir *keep(struct local_dirs *d, struct mcfs_slice tenant,
                              struct mcfs_slice prefix, const struct mcfs_attr *attr)
{
    struct local_dir *e = get(d, tenant, prefix);
    struct local_dir *parent = e ? get(d, tenant, parent_prefix(prefix)) : NULL;
    if (!parent)
        return NULL;
    if (attr) {
        e->attr = *attr;
        e->has_attr = true;
    }
    if (e->kept)
        return e;
    e->kept = true;
    e->parent = parent;
    e->sibling_before = NULL;
    e->sibling = parent->child;
    if (e->sibling)
        e->sibling->sibling_before = e;
    parent->child = e;
    return e;
}

int local_dirs_keep(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                    const struct mcfs_attr *attr)
{
    if (prefix.len == 0)
        return 0;
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = keep(d, tenant, prefix, attr);
    if (!e)
        return -1;
    write_log(d, e);
    return 0;
}

int local_dirs_set_attr(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                        const struct mcfs_attr *attr)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = get(d, tenant, prefix);
    if (!e)
        return -1;
    e->attr = *attr;
    e->has_attr = true;
    write_log(d, e);
    return 0;
}

bool local_dirs_get(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                    struct mcfs_attr *attr, bool *has_attr)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = find(d, tenant, prefix);
    if (has_attr)
        *has_attr = e && e->has_attr;
    if (e && e->has_attr && attr)
        *attr = e->attr;
    return e && e->kept;
}

/* The caller holds the lock. */
static void drop(struct local_dirs *d, struct local_dir *e)
{
    if (e->kept) {
        if (e->sibling_before)
            e->sibling_before->sibling = e->sibling;
        else
            e->parent->child = e->sibling;
        if (e->sibling)
            e->sibling->sibling_before = e->sibling_before;
        e->kept = false;
    }
    e->has_attr = false;
    write_log(d, e);
    /* One with children stays as their parent's node. */
    if (!e->child) {
        mcfs_table_del(&d->table, e);
        free(e);
    }
}

void local_dirs_drop(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = find(d, tenant, prefix);
    if (e)
        drop(d, e);
}

/* A record of the log; it is not open yet. */
static int apply(struct local_dirs *d, const struct dir_record *r)
{
    if (r->kept && r->prefix.len)
        return keep(d, r->tenant, r->prefix, r->has_attr ? &r->attr : NULL) ? 0 : -1;
    struct local_dir *e =
        r->has_attr ? get(d, r->tenant, r->prefix) : find(d, r->tenant, r->prefix);
    if (!e)
        return r->has_attr ? -1 : 0;
    if (r->has_attr) {
        e->attr = r->attr;
        e->has_attr = true;
    } else {
        drop(d, e);
    }
    return 0;
}

static bool apply_record(struct mp_reader *content, void *arg)
{
    struct dir_record r;
    return dir_record_read(content, &r) && apply(arg, &r) == 0;
}

int local_dirs_open_log(struct local_dirs *d, const char *path, struct mcfs_error *err)
{
    struct record_log *log = record_log_open(path, apply_record, d, err);
    d->log = log;
    return log ? 0 : -1;
}

/* The caller holds the lock. */
static void rewrite_log(struct local_dirs *d)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct local_dir *e;
    size_t n = 0;
    for (size_t i = 0; (e = mcfs_table_next(&d->table, &i));) {
        struct dir_record r = record_of(e);
        if (!e->kept && !e->has_attr)
            continue;
        dir_record_put(&b, &r);
        n++;
    }
    if (record_log_rewrite(d->log, &b, n, true, &err))
        mcfs_warning("%s", err.msg);
}

void local_dirs_flush(struct local_dirs *d)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e;
    if (!d->log)
        return;
    if (d->touched)
        for (size_t i = 0; (e = mcfs_table_next(&d->table, &i));)
            if (e->touched)
                write_log(d, e);
    d->touched = false;
    if (record_log_count(d->log) > 2 * d->table.count + LOG_SLACK)
        rewrite_log(d);
}

void local_dirs_touch(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                      int64_t now_ns)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = find(d, tenant, prefix);
    if (e && e->has_attr) {
        e->attr.mtime_ns = now_ns;
        e->touched = d->touched = true;
    }
}

void local_dirs_children(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                         void (*fn)(struct mcfs_slice name, const struct mcfs_attr *attr,
                                    void *arg),
                         void *arg)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = find(d, tenant, prefix);
    for (struct local_dir *c = e ? e->child : NULL; c; c = c->sibling) {
        struct mcfs_slice name =
            mcfs_slice(c->prefix.data + prefix.len, c->prefix.len - prefix.len - 1);
        fn(name, c->has_attr ? &c->attr : NULL, arg);
    }
}

bool local_dirs_has_children(struct local_dirs *d, struct mcfs_slice tenant,
                             struct mcfs_slice prefix)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = find(d, tenant, prefix);
    return e && e->child;
}
