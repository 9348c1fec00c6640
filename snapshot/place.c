/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding the snapshots in whatever a user points at: a store's root, one cluster's folder, a
 * folder of copies, or a single snapshot.  What is found is shown as a store in which they lie
 * where they belong.
 */
#include "snapshot/snapshot.h"

#include "common/cleanup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define ROOT "mooncake_master_snapshot/"
#define PLAIN_CLUSTER "mooncake_cluster" /* the name that a cluster has unless told otherwise */
#define NAMES_MAX 100000 /* looked at before giving up on a folder of other things */
#define BASES_MAX 64

/* ---- a store whose ROOT lies elsewhere ---- */

struct moved_store {
    struct mcfs_object_store base;
    struct mcfs_object_store_ops ops; /* its own: as far away as the inner store */
    struct mcfs_object_store *inner;
    char *to; /* in the inner store, what stands for ROOT: "" or with a '/' behind it */
};

static bool move_name(struct mcfs_object_store *s, const char *name, char out[PATH_MAX])
{
    struct moved_store *m = (struct moved_store *)s;
    return strncmp(name, ROOT, sizeof(ROOT) - 1) == 0 &&
           (size_t)snprintf(out, PATH_MAX, "%s%s", m->to, name + sizeof(ROOT) - 1) < PATH_MAX;
}

static int bad_name(const char *name, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "%.100s: no name of a snapshot", name);
}

static struct mcfs_object_store_put *moved_put(struct mcfs_object_store *s, const char *name,
                                               struct mcfs_error *err)
{
    (void)s;
    mcfs_fail_errno(err, EROFS, "%s", name);
    return NULL;
}

static ssize_t moved_read(struct mcfs_object_store *s, const char *name, uint64_t off, void *buf,
                          size_t len, struct mcfs_error *err)
{
    struct mcfs_object_store *inner = ((struct moved_store *)s)->inner;
    char moved[PATH_MAX];
    return move_name(s, name, moved) ? inner->ops->read(inner, moved, off, buf, len, err)
                                     : bad_name(name, err);
}

static int moved_stat(struct mcfs_object_store *s, const char *name, struct mcfs_object_info *info,
                      struct mcfs_error *err)
{
    struct mcfs_object_store *inner = ((struct moved_store *)s)->inner;
    char moved[PATH_MAX];
    if (!move_name(s, name, moved))
        return bad_name(name, err);
    int rc = inner->ops->stat(inner, moved, info, err);
    info->name = name;
    return rc;
}

struct moved_list {
    struct moved_store *store;
    mcfs_object_list_fn fn;
    void *arg;
};

static bool list_one(const struct mcfs_object_info *info, void *arg)
{
    struct moved_list *l = arg;
    char name[PATH_MAX];
    struct mcfs_object_info moved = *info;
    snprintf(name, sizeof(name), ROOT "%s", info->name + strlen(l->store->to));
    moved.name = name;
    return l->fn(&moved, l->arg);
}

static int moved_list(struct mcfs_object_store *s, const char *prefix, mcfs_object_list_fn fn,
                      void *arg, struct mcfs_error *err)
{
    struct moved_list l = {(struct moved_store *)s, fn, arg};
    struct mcfs_object_store *inner = l.store->inner;
    char moved[PATH_MAX];
    return move_name(s, prefix, moved) ? inner->ops->list(inner, moved, list_one, &l, err)
                                       : bad_name(prefix, err);
}

static int moved_remove(struct mcfs_object_store *s, const char *name, struct mcfs_error *err)
{
    (void)s;
    return mcfs_fail_errno(err, EROFS, "%s", name);
}

static void moved_close(struct mcfs_object_store *s)
{
    struct moved_store *m = (struct moved_store *)s;
    m->inner->ops->close(m->inner);
    free(m->to);
    free(m);
}

static const struct mcfs_object_store_ops moved_ops = {.name = "moved",
                                                       .put_begin = moved_put,
                                                       .read = moved_read,
                                                       .stat = moved_stat,
                                                       .list = moved_list,
                                                       .remove = moved_remove,
                                                       .close = moved_close};

/* ---- finding ---- */

struct search {
    char *bases[BASES_MAX]; /* folders of snapshots: "" or with a '/' behind them */
    unsigned count, names;
    bool failed;
};

static void search_free(struct search *s)
{
    for (unsigned i = 0; i < s->count; i++)
        free(s->bases[i]);
}

/* "<base><id>/<file>" */
static bool look_at(const struct mcfs_object_info *info, void *arg)
{
    struct search *s = arg;
    const char *file = strrchr(info->name, '/');
    if (++s->names > NAMES_MAX)
        return false;
    if (!file || file - info->name < SNAP_ID_SIZE - 1 || strcmp(file, "/descriptor.txt") != 0)
        return true;
    char id[SNAP_ID_SIZE];
    const char *at = file - (SNAP_ID_SIZE - 1);
    snprintf(id, sizeof(id), "%.*s", SNAP_ID_SIZE - 1, at);
    size_t len = (size_t)(at - info->name);
    if (!snap_id_is_valid(id) || (len && at[-1] != '/'))
        return true;
    for (unsigned i = 0; i < s->count; i++)
        if (strlen(s->bases[i]) == len && memcmp(s->bases[i], info->name, len) == 0)
            return true;
    if (s->count == BASES_MAX)
        return true;
    s->bases[s->count] = strndup(info->name, len);
    s->failed |= !s->bases[s->count];
    s->count += !s->failed;
    return !s->failed;
}

/* Whether a base is the folder of this cluster. */
static bool is_of(const char *base, const char *cluster)
{
    size_t len = strlen(base), want = strlen(cluster);
    if (!want)
        return !len || strcmp(base, ROOT) == 0;
    return len > want && base[len - 1] == '/' &&
           memcmp(base + len - 1 - want, cluster, want) == 0 &&
           (len == want + 1 || base[len - 2 - want] == '/');
}

static const char *choose(const struct search *s, const char *where, const char *cluster,
                          struct mcfs_error *err)
{
    const char *wanted = cluster ? cluster : PLAIN_CLUSTER;
    struct mcfs_buf names = MCFS_BUF_INIT;
    for (unsigned i = 0; i < s->count; i++)
        if (is_of(s->bases[i], wanted))
            return s->bases[i];
    if (s->count == 1 && (!cluster || !*s->bases[0]))
        return s->bases[0];
    for (unsigned i = 0; i < s->count; i++)
        mcfs_buf_printf(&names, "%s%s", i ? ", " : "", *s->bases[i] ? s->bases[i] : "./");
    mcfs_buf_append(&names, "", 1);
    if (s->count == 0)
        mcfs_fail(err, MCFS_FILE_NOT_FOUND, "%.200s holds no snapshots", where);
    else
        mcfs_fail(err, MCFS_INVALID_PARAMS, "%.100s holds snapshots of %s: say which --cluster",
                  where, names.failed ? "several clusters" : (char *)names.data);
    mcfs_buf_free(&names);
    return NULL;
}

/* Where the last part is a snapshot's id, the rest is the place and it is the snapshot. */
static char *split_id(const char *where, char id[SNAP_ID_SIZE])
{
    size_t len = strlen(where), least = strncmp(where, "s3://", 5) == 0 ? 5 : 1;
    while (len > least && where[len - 1] == '/')
        len--;
    id[0] = 0;
    if (len >= SNAP_ID_SIZE && where[len - SNAP_ID_SIZE] == '/') {
        snprintf(id, SNAP_ID_SIZE, "%.*s", SNAP_ID_SIZE - 1, where + len - (SNAP_ID_SIZE - 1));
        if (snap_id_is_valid(id))
            return strndup(where, len - SNAP_ID_SIZE);
        id[0] = 0;
    }
    return strndup(where, len);
}

static struct mcfs_object_store *open_existing(const char *where, struct mcfs_error *err)
{
    struct stat st;
    if (strncmp(where, "s3://", 5) != 0) {
        if (stat(where, &st)) /* a store that is opened to be read is not made */
            mcfs_fail_errno(err, errno, "%s", where);
        else if (!S_ISDIR(st.st_mode))
            mcfs_fail_errno(err, ENOTDIR, "%s", where);
        else
            return snap_store_open(where, err);
        return NULL;
    }
    return snap_store_open(where, err);
}

static int move(struct snap_place *out, const char *base, struct mcfs_error *err)
{
    struct moved_store *m = calloc(1, sizeof(*m));
    if (!m || !(m->to = strdup(base))) {
        free(m);
        return mcfs_fail_errno(err, ENOMEM, "snapshots");
    }
    m->ops = moved_ops;
    m->ops.read_ahead_bytes = out->store->ops->read_ahead_bytes;
    m->base.ops = &m->ops;
    m->inner = out->store;
    out->store = &m->base;
    out->cluster[0] = 0;
    return 0;
}

int snap_place_open(const char *where, const char *cluster, struct snap_place *out,
                    struct mcfs_error *err)
{
    _cleanup_(search_free) struct search s = {0};
    *out = (struct snap_place){0};
    char real[PATH_MAX];
    bool s3 = strncmp(where, "s3://", 5) == 0;
    /* "." may be a snapshot, too. */
    _cleanup_free_ char *place = split_id(!s3 && realpath(where, real) ? real : where, out->id);
    if (!place)
        return mcfs_fail_errno(err, ENOMEM, "%s", where);
    out->store = open_existing(*place ? place : "/", err);
    if (!out->store)
        return -1;
    int rc = out->store->ops->list(out->store, out->id[0] ? out->id : "", look_at, &s, err);
    if (rc == 0 && s.failed)
        rc = mcfs_fail_errno(err, ENOMEM, "%s", where);
    const char *base = rc ? NULL : choose(&s, where, cluster, err);
    if (base && strncmp(base, ROOT, sizeof(ROOT) - 1) == 0) {
        snprintf(out->cluster, sizeof(out->cluster), "%.*s",
                 (int)MCFS_MAX(strlen(base), sizeof(ROOT)) - (int)sizeof(ROOT),
                 base + sizeof(ROOT) - 1);
        return 0;
    }
    if (base && move(out, base, err) == 0)
        return 0;
    snap_place_close(out);
    return -1;
}

void snap_place_close(struct snap_place *p)
{
    if (p->store)
        p->store->ops->close(p->store);
    p->store = NULL;
}
