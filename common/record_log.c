/* SPDX-License-Identifier: Apache-2.0 */
#include "common/record_log.h"

#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <fcntl.h>

#define FILE_MAX_BYTES (1ull << 32)

struct record_log {
    char *path;
    int fd;
    uint64_t end; /* bytes */
    size_t records;
    bool name_synced; /* the file has its name after a power cut, too */
};

size_t records_read(const void *data, size_t len, bool (*fn)(struct mp_reader *content, void *arg),
                    void *arg)
{
    const char *p = data;
    struct mp_reader in;
    size_t at = 0;
    for (size_t n; (n = mcfs_record_read(p + at, len - at, &in)); at += n)
        if (!fn(&in, arg))
            break;
    return at;
}

struct counting {
    bool (*fn)(struct mp_reader *content, void *arg);
    void *arg;
    size_t records;
};

static bool count(struct mp_reader *content, void *arg)
{
    struct counting *c = arg;
    if (!c->fn(content, c->arg))
        return false;
    c->records++;
    return true;
}

/* Reads what is there; cuts off what is not whole. */
static int load(struct record_log *l, struct counting *c, struct mcfs_error *err)
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
    size_t fine = records_read(data, (size_t)len, count, c);
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

static int open_for_append(struct record_log *l, struct mcfs_error *err)
{
    _cleanup_fd_ int fd = open(l->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    off_t end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (end < 0)
        return mcfs_fail_errno(err, errno, "%s", l->path);
    if (l->fd >= 0)
        close(l->fd);
    l->fd = mcfs_steal_fd(&fd);
    l->end = (uint64_t)end;
    return 0;
}

struct record_log *record_log_open(const char *path,
                                   bool (*fn)(struct mp_reader *content, void *arg), void *arg,
                                   struct mcfs_error *err)
{
    struct counting c = {fn, arg, 0};
    struct record_log *l = calloc(1, sizeof(*l));
    if (l)
        l->fd = -1;
    if (!l || !(l->path = strdup(path))) {
        record_log_close(l);
        mcfs_fail_errno(err, ENOMEM, "%s", path);
        return NULL;
    }
    if (load(l, &c, err) || open_for_append(l, err)) {
        record_log_close(l);
        return NULL;
    }
    return l;
}

void record_log_close(struct record_log *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    free(l);
}

int record_log_append(struct record_log *l, const struct mcfs_buf *record, struct mcfs_error *err)
{
    if (record->failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->path);
    if (mcfs_pwrite_full(l->fd, record->data, record->len, l->end)) {
        int errnum = errno;
        /* A half record would hide those after it. */
        if (ftruncate(l->fd, (off_t)l->end))
            mcfs_warning("%s: cannot take half a record back: %s", l->path, strerror(errno));
        return mcfs_fail_errno(err, errnum, "%s", l->path);
    }
    l->end += record->len;
    l->records++;
    return 0;
}

int record_log_sync(struct record_log *l, struct mcfs_error *err)
{
    if (fdatasync(l->fd))
        return mcfs_fail_errno(err, errno, "%s", l->path);
    _cleanup_free_ char *dir = l->name_synced ? NULL : strdup(l->path);
    if (l->name_synced)
        return 0;
    if (!dir)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->path);
    *strrchr(dir, '/') = 0;
    if (mcfs_sync_dir(dir, err))
        return -1;
    l->name_synced = true;
    return 0;
}

size_t record_log_count(const struct record_log *l)
{
    return l->records;
}

int record_log_rewrite(struct record_log *l, const struct mcfs_buf *records, size_t n, bool durable,
                       struct mcfs_error *err)
{
    if (records->failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->path);
    if (mcfs_write_file(l->path, records->len ? (const void *)records->data : "", records->len,
                        0600, durable, err) ||
        open_for_append(l, err))
        return -1;
    l->records = n;
    l->name_synced = durable;
    return 0;
}
