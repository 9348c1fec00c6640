/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/dir_log.h"

#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"
#include "common/record.h"

#include <fcntl.h>

#define FILE_MAX_BYTES (1ull << 32)

struct dir_log {
    char *path;
    int fd;
    size_t records;
};

void dir_record_put(struct mcfs_buf *b, const struct dir_record *r)
{
    size_t at = mcfs_record_begin(b);
    mp_put_array(b, 8);
    mp_put_str(b, r->tenant);
    mp_put_str(b, r->prefix);
    mp_put_bool(b, r->kept);
    mp_put_bool(b, r->has_attr);
    mp_put_uint(b, r->attr.mode);
    mp_put_uint(b, r->attr.uid);
    mp_put_uint(b, r->attr.gid);
    mp_put_int(b, r->attr.mtime_ns);
    mcfs_record_end(b, at);
}

static bool read_record(struct mp_reader *p, struct dir_record *r)
{
    return mp_read_array_of(p, 8) && mp_read_raw(p, &r->tenant) && mp_read_raw(p, &r->prefix) &&
           mp_read_bool(p, &r->kept) && mp_read_bool(p, &r->has_attr) &&
           mp_read_u32_max(p, 07777, &r->attr.mode) &&
           mp_read_u32_max(p, UINT32_MAX, &r->attr.uid) &&
           mp_read_u32_max(p, UINT32_MAX, &r->attr.gid) && mp_read_int(p, &r->attr.mtime_ns) &&
           mp_done(p) && r->tenant.len > 0 && r->tenant.len <= MCFS_TENANT_MAX &&
           r->prefix.len <= MCFS_KEY_MAX + 1 &&
           (r->prefix.len == 0 || r->prefix.data[r->prefix.len - 1] == '/');
}

size_t dir_records_read(const void *data, size_t len,
                        int (*fn)(const struct dir_record *r, void *arg), void *arg)
{
    const char *p = data;
    struct mp_reader in;
    size_t at = 0;
    for (size_t n; (n = mcfs_record_read(p + at, len - at, &in)); at += n) {
        struct dir_record r = {0};
        if (!read_record(&in, &r) || fn(&r, arg))
            break;
    }
    return at;
}

struct counting {
    int (*fn)(const struct dir_record *r, void *arg);
    void *arg;
    size_t records;
};

static int count(const struct dir_record *r, void *arg)
{
    struct counting *c = arg;
    if (c->fn(r, c->arg))
        return -1;
    c->records++;
    return 0;
}

/* Reads what is there; cuts off what is not whole. */
static int load(struct dir_log *l, struct counting *c, struct mcfs_error *err)
{
    _cleanup_free_ char *data = NULL;
    struct mcfs_error local = MCFS_ERROR_INIT;
    ssize_t len = mcfs_read_file_alloc(l->path, FILE_MAX_BYTES, &data, &local);
    if (len < 0 && local.errnum == ENOENT)
        return 0;
    if (len < 0) {
        if (err)
            *err = local;
        return -1;
    }
    size_t fine = dir_records_read(data, (size_t)len, count, c);
    l->records = c->records;
    if (fine == (size_t)len)
        return 0;
    _cleanup_free_ char *damaged = NULL;
    if (asprintf(&damaged, "%s.damaged", l->path) < 0)
        damaged = NULL;
    if (!damaged)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->path);
    mcfs_warning("%s: damaged at byte %zu of %zd; the rest is kept in %s", l->path, fine, len,
                 damaged);
    if (mcfs_write_file(damaged, data + fine, (size_t)len - fine, 0600, true, err))
        return -1;
    if (truncate(l->path, (off_t)fine))
        return mcfs_fail_errno(err, errno, "%s", l->path);
    return 0;
}

static int open_for_append(struct dir_log *l, struct mcfs_error *err)
{
    int fd = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", l->path);
    if (l->fd >= 0)
        close(l->fd);
    l->fd = fd;
    return 0;
}

struct dir_log *dir_log_open(const char *path, int (*fn)(const struct dir_record *r, void *arg),
                             void *arg, struct mcfs_error *err)
{
    struct counting c = {fn, arg, 0};
    struct dir_log *l = calloc(1, sizeof(*l));
    if (l)
        l->fd = -1;
    if (!l || !(l->path = strdup(path))) {
        dir_log_close(l);
        mcfs_fail_errno(err, ENOMEM, "%s", path);
        return NULL;
    }
    if (load(l, &c, err) || open_for_append(l, err)) {
        dir_log_close(l);
        return NULL;
    }
    return l;
}

void dir_log_close(struct dir_log *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    free(l);
}

int dir_log_append(struct dir_log *l, const struct dir_record *r, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    dir_record_put(&b, r);
    if (b.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->path);
    off_t end = lseek(l->fd, 0, SEEK_END);
    if (mcfs_write_full(l->fd, b.data, b.len)) {
        int errnum = errno;
        /* A half record would hide those after it. */
        if (end < 0 || ftruncate(l->fd, end))
            mcfs_warning("%s: cannot take half a record back: %s", l->path, strerror(errno));
        return mcfs_fail_errno(err, errnum, "%s", l->path);
    }
    l->records++;
    return 0;
}

size_t dir_log_records(const struct dir_log *l)
{
    return l->records;
}

int dir_log_rewrite(struct dir_log *l, const struct mcfs_buf *records, size_t n,
                    struct mcfs_error *err)
{
    if (records->failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->path);
    if (mcfs_write_file(l->path, records->len ? (const void *)records->data : "", records->len,
                        0600, true, err) ||
        open_for_append(l, err))
        return -1;
    l->records = n;
    return 0;
}
