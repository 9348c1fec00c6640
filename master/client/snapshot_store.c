/* SPDX-License-Identifier: Apache-2.0 */
/* A master's snapshots as an object store that can be read: whoever reads snapshots reads them
 * wherever the master keeps them. */
#include "master/client/client.h"

#include "common/cleanup.h"

#include <stdio.h>
#include <string.h>

#define ROOT "mooncake_master_snapshot/"
#define READ_MAX (4u << 20)
#define FOUND_MAX 65536

struct client_store {
    struct mcfs_object_store base;
    struct mcfs_master *master;
};

/* "mooncake_master_snapshot/<id>/<file>" */
static int split(const char *name, char id[32], const char **file, struct mcfs_error *err)
{
    const char *at = name + sizeof(ROOT) - 1;
    const char *slash = strncmp(name, ROOT, sizeof(ROOT) - 1) == 0 ? strchr(at, '/') : NULL;
    if (!slash || slash - at >= 32 || strchr(slash + 1, '/'))
        return mcfs_fail_errno(err, ENOENT, "%s", name);
    snprintf(id, 32, "%.*s", (int)(slash - at), at);
    *file = slash + 1;
    return 0;
}

struct newest {
    char id[32];
};

static void first_is_newest(const struct mcfs_master_snapshot *s, void *arg)
{
    struct newest *n = arg;
    if (!n->id[0])
        memcpy(n->id, s->id, sizeof(n->id));
}

static ssize_t read_latest(struct client_store *s, uint64_t off, void *buf, size_t len,
                           struct mcfs_error *err)
{
    struct newest n = {""};
    if (mcfs_master_snapshots(s->master, first_is_newest, &n, NULL, err))
        return -1;
    if (!n.id[0])
        return mcfs_fail_errno(err, ENOENT, "latest.txt");
    size_t all = strlen(n.id), from = (size_t)MCFS_MIN(off, (uint64_t)all);
    len = MCFS_MIN(len, all - from);
    memcpy(buf, n.id + from, len);
    return (ssize_t)len;
}

static ssize_t store_read(struct mcfs_object_store *store, const char *name, uint64_t off,
                          void *buf, size_t len, struct mcfs_error *err)
{
    struct client_store *s = (struct client_store *)store;
    char id[32];
    const char *file = NULL;
    size_t done = 0;
    if (strcmp(name, ROOT "latest.txt") == 0)
        return read_latest(s, off, buf, len, err);
    if (split(name, id, &file, err))
        return -1;
    while (done < len) {
        uint32_t want = (uint32_t)MCFS_MIN(len - done, (size_t)READ_MAX);
        int64_t n = mcfs_master_snapshot_read(s->master, id, file, off + done, (char *)buf + done,
                                              want, NULL, err);
        if (n < 0)
            return -1;
        done += (size_t)n;
        if (n < want)
            break;
    }
    return (ssize_t)done;
}

struct one_file {
    const char *name;
    struct mcfs_object_info *info;
    bool found;
};

static void match_file(struct mcfs_slice name, uint64_t size, int64_t mtime_ns, void *arg)
{
    struct one_file *f = arg;
    if (!mcfs_slice_eq(name, mcfs_slice_str(f->name)))
        return;
    f->found = true;
    f->info->size = size;
    f->info->mtime_ns = mtime_ns;
}

static int store_stat(struct mcfs_object_store *store, const char *name,
                      struct mcfs_object_info *info, struct mcfs_error *err)
{
    struct client_store *s = (struct client_store *)store;
    struct one_file f = {.info = info};
    char id[32];
    if (split(name, id, &f.name, err))
        return -1;
    if (mcfs_master_snapshot_files(s->master, id, match_file, &f, NULL, err))
        return -1;
    info->name = name;
    return f.found ? 0 : mcfs_fail_errno(err, ENOENT, "%s", name);
}

/* ---- listing ---- */

struct found {
    char name[320];
    uint64_t size;
    int64_t mtime_ns;
};

struct finding {
    struct mcfs_buf list;
    char id[32];
};

static void add_id(const struct mcfs_master_snapshot *s, void *arg)
{
    mcfs_buf_append(arg, s->id, sizeof(s->id));
}

static void add_file(struct mcfs_slice name, uint64_t size, int64_t mtime_ns, void *arg)
{
    struct finding *f = arg;
    struct found one = {.size = size, .mtime_ns = mtime_ns};
    if (name.len > 255 || f->list.len >= FOUND_MAX * sizeof(one))
        return;
    snprintf(one.name, sizeof(one.name), ROOT "%s/%.*s", f->id, MCFS_SLICE_ARG(name));
    mcfs_buf_append(&f->list, &one, sizeof(one));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->name, ((const struct found *)b)->name);
}

static int store_list(struct mcfs_object_store *store, const char *prefix, mcfs_object_list_fn fn,
                      void *arg, struct mcfs_error *err)
{
    struct client_store *s = (struct client_store *)store;
    _cleanup_buf_ struct mcfs_buf ids = MCFS_BUF_INIT;
    struct finding f = {.list = MCFS_BUF_INIT};
    int rc = mcfs_master_snapshots(s->master, add_id, &ids, NULL, err);
    for (size_t at = 0; rc == 0 && at + sizeof(f.id) <= ids.len; at += sizeof(f.id)) {
        memcpy(f.id, ids.data + at, sizeof(f.id));
        struct mcfs_error bad = MCFS_ERROR_INIT;
        if (mcfs_master_snapshot_files(s->master, f.id, add_file, &f, NULL, &bad) == 0 ||
            bad.errnum == ENOENT) /* deleted meanwhile */
            continue;
        rc = -1;
        if (err)
            *err = bad;
    }
    if (rc == 0 && (ids.failed || f.list.failed))
        rc = mcfs_fail_errno(err, ENOMEM, "list of snapshots");
    size_t count = f.list.len / sizeof(struct found);
    struct found *list = (void *)f.list.data;
    if (rc == 0 && count)
        qsort(list, count, sizeof(*list), by_name);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        struct mcfs_object_info info = {list[i].name, list[i].size, list[i].mtime_ns};
        if (strncmp(list[i].name, prefix, strlen(prefix)) == 0 && !fn(&info, arg))
            break;
    }
    mcfs_buf_free(&f.list);
    return rc;
}

static struct mcfs_object_store_put *store_put(struct mcfs_object_store *s, const char *name,
                                               struct mcfs_error *err)
{
    (void)s;
    mcfs_fail_errno(err, EROFS, "%s", name);
    return NULL;
}

static int store_remove(struct mcfs_object_store *s, const char *name, struct mcfs_error *err)
{
    (void)s;
    return mcfs_fail_errno(err, EROFS, "%s", name);
}

static void store_close(struct mcfs_object_store *s)
{
    free(s);
}

static const struct mcfs_object_store_ops client_ops = {.name = "master",
                                                        .read_ahead_bytes = 1 << 20,
                                                        .put_begin = store_put,
                                                        .read = store_read,
                                                        .stat = store_stat,
                                                        .list = store_list,
                                                        .remove = store_remove,
                                                        .close = store_close};

struct mcfs_object_store *mcfs_master_snapshot_store(struct mcfs_master *m, struct mcfs_error *err)
{
    struct client_store *s = calloc(1, sizeof(*s));
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "snapshots");
        return NULL;
    }
    s->base.ops = &client_ops;
    s->master = m;
    return &s->base;
}
