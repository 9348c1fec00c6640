/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/local_dirs.h"

#include "common/cleanup.h"
#include "common/hash.h"
#include "common/table.h"

struct local_dir {
    struct mcfs_slice tenant, prefix;
    bool kept, has_attr;
    struct mcfs_attr attr;
    struct local_dir *parent, *child, *sibling,
        *sibling_before; /* kept ones, below their parent's node */
    char bytes[];
};

struct local_dirs {
    pthread_mutex_t lock;
    struct mcfs_table table;
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

/* "a/b/" -> "a/"; "a/" -> "". */
static struct mcfs_slice parent_prefix(struct mcfs_slice prefix)
{
    const char *slash = memrchr(prefix.data, '/', prefix.len - 1);
    return mcfs_slice(prefix.data, slash ? (size_t)(slash - prefix.data) + 1 : 0);
}

int local_dirs_keep(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                    const struct mcfs_attr *attr)
{
    if (prefix.len == 0)
        return 0;
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = get(d, tenant, prefix);
    struct local_dir *parent = e ? get(d, tenant, parent_prefix(prefix)) : NULL;
    if (!parent)
        return -1;
    if (attr) {
        e->attr = *attr;
        e->has_attr = true;
    }
    if (e->kept)
        return 0;
    e->kept = true;
    e->parent = parent;
    e->sibling_before = NULL;
    e->sibling = parent->child;
    if (e->sibling)
        e->sibling->sibling_before = e;
    parent->child = e;
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

void local_dirs_drop(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = find(d, tenant, prefix);
    if (!e)
        return;
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
    /* One with children stays as their parent's node. */
    if (!e->child) {
        mcfs_table_del(&d->table, e);
        free(e);
    }
}

void local_dirs_touch(struct local_dirs *d, struct mcfs_slice tenant, struct mcfs_slice prefix,
                      int64_t now_ns)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct local_dir *e = find(d, tenant, prefix);
    if (e && e->has_attr)
        e->attr.mtime_ns = now_ns;
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
