/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/file_per_key/file_per_key.h"

#include "backends/file_per_key/message.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/hash.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

struct reading {
    struct catalog *c;
    const char *fsdir;
    const struct finding_sink *sink;
    uint64_t dropped;
    struct mcfs_error *err;
};

void file_per_key_path(struct mcfs_slice key, struct mcfs_buf *out)
{
    uint64_t h = mcfs_hash_libstdcxx(key.data, key.len);
    mcfs_buf_printf(out, "%c/%c/", (int)('a' + (h & 15)), (int)('a' + (h >> 4 & 15)));
    for (size_t i = 0; i < key.len; i++)
        mcfs_buf_append(
            out, key.data[i] == 0 || strchr("/\\:*?\"<>|", key.data[i]) ? "_" : &key.data[i], 1);
}

static void report(struct reading *r, enum finding_kind kind, enum finding_repair repair,
                   const char *file, struct mcfs_slice key, const char *what)
{
    finding_report(
        r->sink,
        &(struct finding){.kind = kind, .repair = repair, .file = file, .key = key, .what = what});
}

static uint32_t mark_of(const struct stat *st)
{
    struct {
        int64_t mtime_ns;
        uint64_t size, ino;
    } s = {mcfs_timespec_ns(st->st_mtim), (uint64_t)st->st_size, (uint64_t)st->st_ino};
    return mcfs_crc32c(0, &s, sizeof(s));
}

static bool still_there(const struct catalog_entry *e, int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && mark_of(&st) == e->mark;
}

static ssize_t read_fd(void *arg, void *buf, size_t len, uint64_t off)
{
    return mcfs_pread_full(*(int *)arg, buf, len, off);
}

/* Whether a file is where its key says. */
static bool is_in_place(const struct reading *r, struct mcfs_slice key, const char *file)
{
    _cleanup_buf_ struct mcfs_buf path = MCFS_BUF_INIT;
    mcfs_buf_printf(&path, "%s/", r->fsdir);
    file_per_key_path(key, &path);
    return !path.data || path.failed ||
           mcfs_slice_eq(mcfs_slice(path.data, path.len), mcfs_slice_str(file));
}

static int take_message(struct reading *r, const char *file, const struct message *m,
                        const struct stat *st)
{
    struct mcfs_slice key = mcfs_slice(m->key.data, m->key.len);
    int64_t mtime_ns = mcfs_timespec_ns(st->st_mtim);
    bool in_place = is_in_place(r, key, file);
    if (!in_place)
        report(r, FINDING_MISPLACED, REPAIR_NONE, file, key,
               "the file is not where its key belongs: Mooncake does not find it");
    /* A copy in another place never wins over the one that Mooncake would read. */
    struct catalog_entry e = {.key = key.data,
                              .key_len = (uint32_t)key.len,
                              .file = file,
                              .version = in_place && mtime_ns > 0 ? (uint64_t)mtime_ns : 1,
                              .offset = m->value_at,
                              .size = m->value_size,
                              .mtime_ns = mtime_ns,
                              .mark = mark_of(st)};
    r->c->used_bytes += (uint64_t)st->st_blocks * 512;
    return catalog_add(r->c, &e) ? mcfs_fail_errno(r->err, ENOMEM, "%s", r->c->dir) : 0;
}

static int take_file(struct reading *r, int dir_fd, const char *name, const char *file)
{
    const struct mcfs_slice none = {"", 0};
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct message m;
    struct stat st;
    _cleanup_fd_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return 0; /* its owner removed it just now */
    if (fd < 0 && errno == ELOOP) {
        report(r, FINDING_UNKNOWN, REPAIR_NONE, file, none, "it is not a file of this store");
        return 0;
    }
    if (fd < 0 || fstat(fd, &st))
        return mcfs_fail_errno(r->err, errno, "%s/%s", r->c->dir, file);
    if (!S_ISREG(st.st_mode)) {
        report(r, FINDING_UNKNOWN, REPAIR_NONE, file, none, "it is not a file of this store");
        return 0;
    }
    int rc = message_parse(read_fd, &fd, (uint64_t)st.st_size, &m, &err);
    if (rc == 0) {
        rc = take_message(r, file, &m, &st);
    } else if (err.code == MCFS_CHECKSUM_MISMATCH) {
        r->dropped++;
        report(r, FINDING_RECORD, REPAIR_FILE, file, none, err.msg);
        rc = 0;
    } else if (r->err) {
        *r->err = err;
        mcfs_error_prefix(r->err, "%s/%s", r->c->dir, file);
    }
    message_free(&m);
    return rc;
}

static bool is_dir(int dir_fd, const char *name)
{
    struct stat st;
    return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Walks <fsdir>, <a> and <b> by depth 0, 1 and 2: folders of one letter, then files. */
static int walk(struct reading *r, int parent, const char *name, const char *path, int depth)
{
    const struct mcfs_slice none = {"", 0};
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT && depth > 0)
        return 0;
    _cleanup_dir_ DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *d;
    if (!dir) {
        int errnum = errno;
        if (fd >= 0)
            close(fd);
        return mcfs_fail_errno(r->err, errnum, "%s/%s", r->c->dir, path);
    }
    while ((errno = 0, d = readdir(dir))) {
        char child[600];
        int rc = 0;
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
            continue;
        snprintf(child, sizeof(child), "%s/%s", path, d->d_name);
        bool letter = d->d_name[0] >= 'a' && d->d_name[0] <= 'p' && !d->d_name[1];
        if (depth == 2)
            rc = take_file(r, fd, d->d_name, child);
        else if (letter && is_dir(fd, d->d_name))
            rc = walk(r, fd, d->d_name, child, depth + 1);
        else
            report(r, FINDING_UNKNOWN, REPAIR_NONE, child, none, "it is not a file of this store");
        if (rc)
            return -1;
    }
    return errno ? mcfs_fail_errno(r->err, errno, "%s/%s", r->c->dir, path) : 0;
}

static const struct mcfs_backend_ops mooncake_ops = {.name = FILE_PER_KEY_NAME, CATALOG_OPS};

struct catalog *file_per_key_read(const char *dir, const char *fsdir,
                                  const struct finding_sink *sink, uint64_t *dropped,
                                  struct mcfs_error *err)
{
    struct reading r = {.fsdir = fsdir && *fsdir ? fsdir : FILE_PER_KEY_FSDIR,
                        .sink = sink,
                        .err = err,
                        .c = catalog_new(&mooncake_ops, dir, sink, err)};
    if (!r.c)
        return NULL;
    r.c->still_there = still_there;
    if (strchr(r.fsdir, '/') || strlen(r.fsdir) > NAME_MAX || strcmp(r.fsdir, "..") == 0)
        mcfs_fail(err, MCFS_INVALID_PARAMS, "'%.200s' is not the name of a folder", r.fsdir);
    else if (walk(&r, r.c->dir_fd, r.fsdir, r.fsdir, 0) == 0) {
        catalog_seal(r.c);
        *dropped = r.dropped;
        return r.c;
    }
    catalog_free(r.c);
    return NULL;
}
