/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in a directory.  A value is written under a temporary name, flushed, and renamed; then
 * its directory is flushed, so that a name that can be seen survives power loss with all its bytes.
 */
#include "snapshot/snapshot.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#define TEMPORARY ".tmp." /* in the names of what is being written */

struct local_store {
    struct mcfs_object_store base;
    char *root;
};

struct mcfs_object_store_put {
    struct mcfs_object_store *store;
    int fd;
    char *path, *temporary;
    struct mcfs_buf pending;
};

#define PENDING_MAX (1u << 20)

static int full_path(const struct mcfs_object_store *s, const char *name, char out[PATH_MAX],
                     struct mcfs_error *err)
{
    const struct local_store *l = (const struct local_store *)s;
    if (name[0] == '/' || strstr(name, "..") ||
        (size_t)snprintf(out, PATH_MAX, "%s/%s", l->root, name) >= PATH_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not a name in a snapshot store", name);
    return 0;
}

static void put_free(struct mcfs_object_store_put *p)
{
    if (p->fd >= 0)
        close(p->fd);
    mcfs_buf_free(&p->pending);
    free(p->path);
    free(p->temporary);
    free(p);
}

static struct mcfs_object_store_put *put_begin(struct mcfs_object_store *s, const char *name,
                                               struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (full_path(s, name, path, err))
        return NULL;
    struct mcfs_object_store_put *p = calloc(1, sizeof(*p));
    if (!p) {
        mcfs_fail_errno(err, ENOMEM, "%s", path);
        return NULL;
    }
    p->store = s;
    p->fd = -1;
    p->path = strdup(path);
    char *slash = strrchr(path, '/');
    *slash = 0;
    if (!p->path || mcfs_make_dirs(path, 0755, err) ||
        asprintf(&p->temporary, "%s/%s%s%d", path, slash + 1, TEMPORARY, (int)getpid()) < 0) {
        put_free(p);
        return NULL;
    }
    p->fd = open(p->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (p->fd < 0) {
        mcfs_fail_errno(err, errno, "%s", p->temporary);
        put_free(p);
        return NULL;
    }
    return p;
}

static int put_flush(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    if (mcfs_write_full(p->fd, p->pending.data, p->pending.len))
        return mcfs_fail_errno(err, errno, "%s", p->temporary);
    mcfs_buf_reset(&p->pending);
    return 0;
}

static int put_write(struct mcfs_object_store_put *p, const void *data, size_t len,
                     struct mcfs_error *err)
{
    if (p->pending.len + len > PENDING_MAX && put_flush(p, err))
        return -1;
    if (len > PENDING_MAX / 2)
        return mcfs_write_full(p->fd, data, len) ? mcfs_fail_errno(err, errno, "%s", p->temporary)
                                                 : 0;
    mcfs_buf_append(&p->pending, data, len);
    return p->pending.failed ? mcfs_fail_errno(err, ENOMEM, "%s", p->temporary) : 0;
}

static void put_abort(struct mcfs_object_store_put *p)
{
    unlink(p->temporary);
    put_free(p);
}

static int put_commit(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    int rc = put_flush(p, err);
    if (rc == 0 && (fsync(p->fd) || rename(p->temporary, p->path)))
        rc = mcfs_fail_errno(err, errno, "%s", p->path);
    if (rc) {
        put_abort(p);
        return -1;
    }
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(p->path, '/') - p->path), p->path);
    rc = mcfs_sync_dir(dir, err);
    put_free(p);
    return rc;
}

static ssize_t local_read(struct mcfs_object_store *s, const char *name, uint64_t off, void *buf,
                          size_t len, struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (full_path(s, name, path, err))
        return -1;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : mcfs_pread_full(fd, buf, len, off);
    return n < 0 ? mcfs_fail_errno(err, errno, "%s", path) : n;
}

static int local_stat(struct mcfs_object_store *s, const char *name, struct mcfs_object_info *info,
                      struct mcfs_error *err)
{
    char path[PATH_MAX];
    struct stat st;
    if (full_path(s, name, path, err))
        return -1;
    if (stat(path, &st))
        return mcfs_fail_errno(err, errno, "%s", path);
    *info = (struct mcfs_object_info){name, (uint64_t)st.st_size, mcfs_timespec_ns(st.st_mtim)};
    return 0;
}

static int plain_names(const struct dirent *e)
{
    return e->d_name[0] != '.' && !strstr(e->d_name, TEMPORARY);
}

/* Visits what lies below a directory, in byte order of whole names. */
static int walk(struct mcfs_object_store *s, const char *dir, const char *prefix,
                mcfs_object_list_fn fn, void *arg, bool *more, struct mcfs_error *err)
{
    char path[PATH_MAX];
    struct dirent **names;
    if (full_path(s, dir, path, err))
        return -1;
    int n = scandir(path, &names, plain_names, alphasort), rc = 0;
    if (n < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : mcfs_fail_errno(err, errno, "%s", path);
    for (int i = 0; i < n; i++) {
        char name[PATH_MAX];
        struct stat st;
        snprintf(name, sizeof(name), "%s%s%s", dir, *dir ? "/" : "", names[i]->d_name);
        snprintf(path, sizeof(path), "%s/%s", ((struct local_store *)s)->root, name);
        free(names[i]);
        if (rc || !*more || stat(path, &st))
            continue; /* removed meanwhile, or enough */
        if (S_ISDIR(st.st_mode)) {
            rc = walk(s, name, prefix, fn, arg, more, err);
        } else if (strncmp(name, prefix, strlen(prefix)) == 0) {
            struct mcfs_object_info info = {name, (uint64_t)st.st_size,
                                            mcfs_timespec_ns(st.st_mtim)};
            *more = fn(&info, arg);
        }
    }
    free(names);
    return rc;
}

static int local_list(struct mcfs_object_store *s, const char *prefix, mcfs_object_list_fn fn,
                      void *arg, struct mcfs_error *err)
{
    char dir[PATH_MAX];
    bool more = true;
    const char *slash = strrchr(prefix, '/');
    snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - prefix) : 0, prefix);
    return walk(s, dir, prefix, fn, arg, &more, err);
}

static int local_remove(struct mcfs_object_store *s, const char *name, struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (full_path(s, name, path, err))
        return -1;
    if (unlink(path) && errno != ENOENT)
        return mcfs_fail_errno(err, errno, "%s", path);
    /* Its folder goes with its last file; rmdir refuses any other. */
    *strrchr(path, '/') = 0;
    if (strcmp(path, ((struct local_store *)s)->root) != 0)
        rmdir(path);
    return 0;
}

static void local_close(struct mcfs_object_store *s)
{
    free(((struct local_store *)s)->root);
    free(s);
}

static const struct mcfs_object_store_ops local_ops = {
    .name = "local",
    .put_begin = put_begin,
    .put_write = put_write,
    .put_commit = put_commit,
    .put_abort = put_abort,
    .read = local_read,
    .stat = local_stat,
    .list = local_list,
    .remove = local_remove,
    .close = local_close,
};

struct mcfs_object_store *snap_store_local_open(const char *root, struct mcfs_error *err)
{
    struct local_store *l = calloc(1, sizeof(*l));
    if (!l) {
        mcfs_fail_errno(err, ENOMEM, "%s", root);
        return NULL;
    }
    l->base.ops = &local_ops;
    if (mcfs_make_dirs(root, 0755, err) || !(l->root = realpath(root, NULL))) {
        free(l);
        return NULL;
    }
    return &l->base;
}
