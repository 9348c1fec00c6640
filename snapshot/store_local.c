/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in a directory.  A value is written under a temporary name, flushed, and renamed; then
 * its directory is flushed, so that a name that can be seen survives power loss with all its bytes.
 */
#include "snapshot/repository.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/stat.h>

#define TEMPORARY ".tmp." /* in the names of what is being written */
#define PENDING_MAX (1u << 20)
#define DEPTH_MAX 16 /* of folders below the root; a loop of links ends here */

struct local_store {
    struct mcfs_object_store base;
    char *root;
};

struct mcfs_object_store_put {
    int fd;
    char *path, *temporary;
    struct mcfs_buf pending;
    uint64_t written;
};

static const struct mcfs_object_store_ops local_ops;

static bool stays_below(const char *name)
{
    for (const char *p = name;; p++) {
        size_t len = strcspn(p, "/");
        if ((len == 1 && p[0] == '.') || (len == 2 && p[0] == '.' && p[1] == '.'))
            return false;
        p += len;
        if (!*p)
            return name[0] != '/';
    }
}

static int full_path(const struct mcfs_object_store *s, const char *name, char out[PATH_MAX],
                     struct mcfs_error *err)
{
    const struct local_store *l = (const struct local_store *)s;
    if (!stays_below(name) || (size_t)snprintf(out, PATH_MAX, "%s/%s", l->root, name) >= PATH_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%.100s: not a name in a snapshot store", name);
    return 0;
}

/* mkdir -p of a file's folder, with the name of each new folder made durable in the one above. */
static int make_folder(const char *dir, struct mcfs_error *err)
{
    struct stat st;
    char above[PATH_MAX];
    if (stat(dir, &st) == 0)
        return 0;
    snprintf(above, sizeof(above), "%s", dir);
    char *slash = strrchr(above, '/');
    if (!slash || slash == above)
        return mcfs_fail_errno(err, ENOENT, "%s", dir);
    *slash = 0;
    if (make_folder(above, err))
        return -1;
    if (mkdir(dir, 0755) && errno != EEXIST)
        return mcfs_fail_errno(err, errno, "%s", dir);
    return mcfs_sync_dir(above, err);
}

/* ---- writing ---- */

static void put_free(struct mcfs_object_store_put *p)
{
    if (p->fd >= 0)
        close(p->fd);
    mcfs_buf_free(&p->pending);
    free(p->path);
    free(p->temporary);
    free(p);
}

/* Several values, or the same one twice, may be on their way at once. */
static int open_temporary(struct mcfs_object_store_put *p, const char *dir, const char *file,
                          struct mcfs_error *err)
{
    static atomic_uint serial;
    do {
        free(p->temporary);
        if (asprintf(&p->temporary, "%s/%s%s%d.%u", dir, file, TEMPORARY, (int)getpid(),
                     atomic_fetch_add(&serial, 1)) < 0) {
            p->temporary = NULL;
            return mcfs_fail_errno(err, ENOMEM, "%s", p->path);
        }
        p->fd = open(p->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    } while (p->fd < 0 && errno == EEXIST);
    return p->fd < 0 ? mcfs_fail_errno(err, errno, "%s", p->temporary) : 0;
}

static struct mcfs_object_store_put *put_begin(struct mcfs_object_store *s, const char *name,
                                               struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (full_path(s, name, path, err))
        return NULL;
    struct mcfs_object_store_put *p = calloc(1, sizeof(*p));
    if (!p || !(p->path = strdup(path))) {
        free(p);
        mcfs_fail_errno(err, ENOMEM, "%s", path);
        return NULL;
    }
    p->fd = -1;
    char *slash = strrchr(path, '/');
    *slash = 0;
    /* The folder may go with another's last file in between; then once more. */
    for (int tries = 0; tries < 2; tries++) {
        struct mcfs_error bad = MCFS_ERROR_INIT;
        if (make_folder(path, &bad) == 0 && open_temporary(p, path, slash + 1, &bad) == 0)
            return p;
        if (err)
            *err = bad;
        if (bad.errnum != ENOENT)
            break;
    }
    put_free(p);
    return NULL;
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
    p->written += len;
    if (p->pending.len + len > PENDING_MAX && put_flush(p, err))
        return -1;
    if (len > PENDING_MAX / 2 && p->pending.len == 0)
        return mcfs_write_full(p->fd, data, len) ? mcfs_fail_errno(err, errno, "%s", p->temporary)
                                                 : 0;
    mcfs_buf_append(&p->pending, data, len);
    return p->pending.failed ? mcfs_fail_errno(err, ENOMEM, "%s", p->temporary) : 0;
}

static void put_abort(struct mcfs_object_store_put *p)
{
    unlink(p->temporary);
    /* A folder that was made for it alone goes as well; rmdir refuses any other. */
    *strrchr(p->temporary, '/') = 0;
    rmdir(p->temporary);
    put_free(p);
}

static int put_commit(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    int rc = put_flush(p, err);
    if (rc == 0 && p->written == 0)
        rc = mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: nothing to store", p->path);
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

/* ---- reading ---- */

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
    if (!S_ISREG(st.st_mode))
        return mcfs_fail_errno(err, ENOENT, "%s", path);
    *info = (struct mcfs_object_info){name, (uint64_t)st.st_size, mcfs_timespec_ns(st.st_mtim)};
    return 0;
}

/* ---- listing ---- */

struct visit {
    struct local_store *store;
    const char *prefix;
    bool temporary; /* visits what is being written, instead of what has been */
    mcfs_object_list_fn fn;
    void (*folder)(const char *name, void *arg); /* when it has been walked; or NULL */
    void *arg;
    bool more;
};

static int is_named(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Appends '/' to the names of folders, so that names sort as whole ones do: "a-" before "a/b". */
static char *whole_name(const char *dir, const char *name)
{
    struct stat st;
    char path[PATH_MAX], *out;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path) ||
        stat(path, &st)) /* removed meanwhile */
        return NULL;
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return NULL;
    return asprintf(&out, "%s%s", name, S_ISDIR(st.st_mode) ? "/" : "") < 0 ? NULL : out;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* A folder's names in byte order; *names is malloc'ed, as is each. */
static int read_names(const char *path, char ***names, size_t *count, struct mcfs_error *err)
{
    struct dirent **entries;
    int n = scandir(path, &entries, is_named, NULL);
    *names = NULL;
    *count = 0;
    if (n < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : mcfs_fail_errno(err, errno, "%s", path);
    *names = calloc((size_t)n + 1, sizeof(**names));
    for (int i = 0; i < n; i++) {
        char *name = *names ? whole_name(path, entries[i]->d_name) : NULL;
        if (name)
            (*names)[(*count)++] = name;
        free(entries[i]);
    }
    free(entries);
    if (!*names)
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    qsort(*names, *count, sizeof(**names), by_bytes);
    return 0;
}

static void visit_file(struct visit *v, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    bool temporary = strstr(name, TEMPORARY) != NULL;
    if (temporary != v->temporary || strncmp(name, v->prefix, strlen(v->prefix)) != 0 ||
        full_path(&v->store->base, name, path, NULL) || stat(path, &st))
        return;
    struct mcfs_object_info info = {name, (uint64_t)st.st_size, mcfs_timespec_ns(st.st_mtim)};
    v->more = v->fn(&info, v->arg);
}

/* dir: "" or with a '/' behind it. */
static int walk(struct visit *v, const char *dir, unsigned depth, struct mcfs_error *err)
{
    char path[PATH_MAX];
    char **names;
    size_t count;
    if (depth > DEPTH_MAX)
        return 0;
    if (full_path(&v->store->base, dir, path, err) || read_names(path, &names, &count, err))
        return -1;
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        _cleanup_free_ char *part = names[i], *name = NULL;
        if (rc || !v->more)
            continue;
        if (asprintf(&name, "%s%s", dir, part) < 0) {
            name = NULL;
            rc = mcfs_fail_errno(err, ENOMEM, "%s", path);
        } else if (name[strlen(name) - 1] == '/') {
            rc = walk(v, name, depth + 1, err);
        } else {
            visit_file(v, name);
        }
    }
    free(names);
    if (rc == 0 && v->folder && strncmp(dir, v->prefix, strlen(v->prefix)) == 0)
        v->folder(dir, v->arg);
    return rc;
}

static int visit_all(struct visit *v, struct mcfs_error *err)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(v->prefix, '/');
    snprintf(dir, sizeof(dir), "%.*s", slash ? (int)(slash - v->prefix + 1) : 0, v->prefix);
    return walk(v, dir, 0, err);
}

static int local_list(struct mcfs_object_store *s, const char *prefix, mcfs_object_list_fn fn,
                      void *arg, struct mcfs_error *err)
{
    struct visit v = {
        .store = (struct local_store *)s, .prefix = prefix, .fn = fn, .arg = arg, .more = true};
    return visit_all(&v, err);
}

/* ---- removal ---- */

static int local_remove(struct mcfs_object_store *s, const char *name, struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (full_path(s, name, path, err))
        return -1;
    if (unlink(path))
        return errno == ENOENT || errno == ENOTDIR ? 0 : mcfs_fail_errno(err, errno, "%s", path);
    *strrchr(path, '/') = 0;
    if (mcfs_sync_dir(path, err)) /* what is removed next stays behind this */
        return -1;
    /* Its folder goes with its last file; rmdir refuses any other. */
    if (strcmp(path, ((struct local_store *)s)->root) != 0)
        rmdir(path);
    return 0;
}

struct sweeping {
    struct local_store *store;
    struct mcfs_object_sweep *what;
};

static bool sweep_file(const struct mcfs_object_info *info, void *arg)
{
    struct sweeping *s = arg;
    if (info->mtime_ns < s->what->before_ns && s->what->may_go(info->name, s->what->arg) &&
        local_remove(&s->store->base, info->name, NULL) == 0)
        s->what->removed++;
    return true;
}

/* One that was made for a file that never came; rmdir refuses any other. */
static void sweep_folder(const char *name, void *arg)
{
    struct sweeping *s = arg;
    char path[PATH_MAX];
    struct stat st;
    if (*name && s->what->may_go(name, s->what->arg) &&
        full_path(&s->store->base, name, path, NULL) == 0 && stat(path, &st) == 0 &&
        mcfs_timespec_ns(st.st_mtim) < s->what->before_ns)
        rmdir(path);
}

static int local_sweep(struct mcfs_object_store *store, struct mcfs_object_sweep *sweep,
                       struct mcfs_error *err)
{
    struct sweeping s = {(struct local_store *)store, sweep};
    struct visit v = {.store = s.store,
                      .prefix = sweep->prefix,
                      .temporary = true,
                      .fn = sweep_file,
                      .folder = sweep_folder,
                      .arg = &s,
                      .more = true};
    return visit_all(&v, err);
}

/* ---- owners ---- */

/* A lock of the folder itself, which leaves no file in it.  A folder may be removed with its last
 * file and made anew while it is opened here; then once more. */
static int local_own(struct mcfs_object_store *s, const char *folder, struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (full_path(s, folder, path, err))
        return -1;
    path[strlen(path) - 1] = 0; /* its '/' */
    for (int tries = 0; tries < 100; tries++) {
        struct stat opened, there;
        if (make_folder(path, err))
            return -1;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return mcfs_fail_errno(err, errno, "%s", path);
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            int e = errno;
            close(fd);
            return e == EWOULDBLOCK ? mcfs_fail(err, MCFS_FILE_LOCK_FAIL,
                                                "%s: another checkpoint is written there", path)
                                    : mcfs_fail_errno(err, e, "%s", path);
        }
        if (fstat(fd, &opened) == 0 && stat(path, &there) == 0 && opened.st_ino == there.st_ino)
            return fd;
        close(fd);
    }
    return mcfs_fail_errno(err, EAGAIN, "%s", path);
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
    .sweep = local_sweep,
    .own = local_own,
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
    int rc = mcfs_make_dirs(root, 0755, err);
    if (rc == 0 && !(l->root = realpath(root, NULL)))
        rc = mcfs_fail_errno(err, errno, "%s", root);
    if (rc == 0)
        return &l->base;
    free(l);
    return NULL;
}
