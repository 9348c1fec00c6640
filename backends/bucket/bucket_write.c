/* SPDX-License-Identifier: Apache-2.0 */
/* Putting objects: small ones into the open bucket, large ones into a bucket of their own. */
#include "backends/bucket/bucket.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>

#define CRC_CHUNK (1u << 20)
#define DISK_RESERVE (16ull << 20) /* bytes left free for logs and metas */

static void put_record(const struct entry *e, struct mcfs_buf *out)
{
    struct log_record r = {.type = LOG_PUT,
                           .version = e->version,
                           .offset = e->offset,
                           .size = e->size,
                           .attr = e->attr,
                           .crc32c = e->crc32c,
                           .data_type = e->data_type,
                           .has_crc = e->has_crc,
                           .key = entry_key(e)};
    log_put_record(out, &r);
}

/* ---- the open bucket ---- */

static struct bucket *open_new(struct store *s, struct mcfs_error *err)
{
    char path[PATH_MAX];
    uint64_t id = bucket_next_id(s);
    bucket_path(s, id, "bucket", path, sizeof(path));
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        mcfs_fail_errno(err, errno, "%s", path);
        return NULL;
    }
    struct bucket *b = bucket_add(s, id);
    if (!b) {
        close(fd);
        unlink(path);
        mcfs_fail_errno(err, ENOMEM, "bucket");
        return NULL;
    }
    b->data_fd = fd;
    b->is_open = b->meta_missing = true;
    MCFS_LOCK_SCOPE(&s->lock);
    s->open_fds++;
    s->names_dirty = true;
    return b;
}

/* Reserves room in the open bucket; the caller is one of its writers until finish_writing. */
static struct bucket *reserve(struct store *s, uint64_t bytes, uint64_t *offset,
                              struct mcfs_error *err)
{
    for (;;) {
        struct bucket *b;
        {
            MCFS_LOCK_SCOPE(&s->lock);
            b = s->current;
        }
        if (!b) {
            b = open_new(s, err);
            if (!b)
                return NULL;
            bool used;
            {
                MCFS_LOCK_SCOPE(&s->lock);
                used = !s->current;
                if (used)
                    s->current = b;
            }
            if (!used) { /* another thread was faster */
                bucket_remove_files(s, b);
                bucket_free(s, b);
                continue;
            }
        }
        MCFS_LOCK_SCOPE(&b->lock);
        if (b->sealing || !b->is_open)
            continue;
        *offset = b->data_end;
        b->data_end += bytes;
        b->keys++;
        b->writers++;
        if (b->data_end >= s->config.bucket_size_limit || b->keys >= s->config.bucket_keys_limit) {
            b->sealing = true;
            MCFS_LOCK_SCOPE(&s->lock);
            if (s->current == b)
                s->current = NULL;
        }
        return b;
    }
}

/* The caller holds the bucket's lock. */
static void finish_writing(struct store *s, struct bucket *b)
{
    if (--b->writers == 0 && b->sealing)
        bucket_seal(s, b);
}

static int append_object(struct store *s, struct entry *e, const void *data, struct mcfs_error *err)
{
    uint64_t offset;
    struct bucket *b = reserve(s, e->key_len + e->size, &offset, err);
    if (!b)
        return -1;
    e->bucket = b;
    e->offset = offset + e->key_len;
    e->key_inline = true;
    struct iovec iov[2] = {{e->key, e->key_len}, {(void *)(uintptr_t)data, e->size}};
    size_t whole = e->key_len + e->size;
    int rc = 0;
    ssize_t n = pwritev(b->data_fd, iov, 2, (off_t)offset);
    if (n >= 0 && (size_t)n < whole) { /* interrupted or nearly full: go on piecewise */
        size_t key_left = (size_t)n < e->key_len ? e->key_len - (size_t)n : 0;
        size_t done = (size_t)n > e->key_len ? (size_t)n - e->key_len : 0;
        rc = mcfs_pwrite_full(b->data_fd, e->key + e->key_len - key_left, key_left,
                              offset + e->key_len - key_left) ||
             mcfs_pwrite_full(b->data_fd, (const char *)data + done, e->size - done,
                              e->offset + done);
    }
    if (n < 0 || rc)
        rc = mcfs_fail_errno(err, errno, "bucket %" PRIu64, b->id);

    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    if (rc == 0)
        put_record(e, &record);
    MCFS_LOCK_SCOPE(&b->lock);
    if (rc == 0) {
        bucket_mark_dirty(s, b, true, true);
        rc = record.failed ? mcfs_fail_errno(err, ENOMEM, "bucket")
                           : bucket_append_log(s, b, record.data, record.len, err);
    }
    if (rc == 0) {
        bucket_link(b, e);
    } else {
        atomic_fetch_add(&s->dead_bytes, whole);
    }
    atomic_fetch_add(&s->used_bytes, whole);
    finish_writing(s, b);
    return rc;
}

/* ---- a bucket of its own ---- */

static int place_file(struct store *s, const struct mcfs_backend_put *item, const char *path,
                      struct mcfs_error *err)
{
    if (item->staging_path) {
        if (renameat2(AT_FDCWD, item->staging_path, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
            return 0;
        if (errno != EXDEV)
            return mcfs_fail_errno(err, errno, "%s", item->staging_path);
    }
    _cleanup_fd_ int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (to < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    int rc;
    if (item->staging_path) {
        _cleanup_fd_ int from = open(item->staging_path, O_RDONLY | O_CLOEXEC);
        rc = from < 0 || mcfs_copy_range(from, 0, to, 0, item->object.size);
    } else {
        rc = mcfs_pwrite_full(to, item->data, item->object.size, 0);
    }
    if (rc) {
        mcfs_fail_errno(err, errno, "%s", path);
        unlink(path);
        return -1;
    }
    if (item->staging_path)
        unlink(item->staging_path);
    (void)s;
    return 0;
}

static int store_single(struct store *s, struct entry *e, const struct mcfs_backend_put *item,
                        struct mcfs_error *err)
{
    char path[PATH_MAX];
    struct bucket *b = bucket_add(s, bucket_next_id(s));
    if (!b)
        return mcfs_fail_errno(err, ENOMEM, "bucket");
    b->single = b->meta_missing = true;
    b->keys = 1;
    b->data_end = e->size;
    e->bucket = b;
    e->offset = 0;
    _cleanup_buf_ struct mcfs_buf record = MCFS_BUF_INIT;
    put_record(e, &record);
    bucket_path(s, b->id, "bucket", path, sizeof(path));
    /* Log first: a log without its data is an unfinished put, data without a log would be a
     * stranger's. */
    pthread_mutex_lock(&b->lock);
    int rc = record.failed ? mcfs_fail_errno(err, ENOMEM, "bucket")
                           : bucket_append_log(s, b, record.data, record.len, err);
    if (rc == 0)
        rc = place_file(s, item, path, err);
    if (rc == 0) {
        bucket_link(b, e);
        bucket_mark_dirty(s, b, true, true);
    }
    pthread_mutex_unlock(&b->lock);
    if (rc) {
        bucket_remove_files(s, b);
        bucket_free(s, b);
        return -1;
    }
    atomic_fetch_add(&s->used_bytes, e->size);
    MCFS_LOCK_SCOPE(&s->lock);
    s->names_dirty = true;
    return 0;
}

/* ---- put ---- */

/* Checksum of a staging file that came without one. */
static int checksum_file(const char *path, uint64_t size, uint32_t *crc, struct mcfs_error *err)
{
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    _cleanup_free_ char *buf = malloc(CRC_CHUNK);
    *crc = 0;
    if (fd < 0 || !buf)
        return mcfs_fail_errno(err, fd < 0 ? errno : ENOMEM, "%s", path);
    for (uint64_t done = 0; done < size;) {
        size_t want = (size_t)MCFS_MIN(CRC_CHUNK, size - done);
        ssize_t n = mcfs_pread_full(fd, buf, want, done);
        if (n != (ssize_t)want)
            return mcfs_fail_errno(err, n < 0 ? errno : EIO, "%s", path);
        *crc = mcfs_crc32c(*crc, buf, want);
        done += want;
    }
    return 0;
}

static int check_room(struct store *s, uint64_t bytes, struct mcfs_error *err)
{
    struct statvfs v;
    uint64_t used = atomic_load(&s->used_bytes);
    if (s->config.capacity_bytes && used + bytes > s->config.capacity_bytes)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE,
                         "%s: the tier is full (%" PRIu64 " of %" PRIu64 " bytes used)", s->dir,
                         used, s->config.capacity_bytes);
    if (bytes >= DISK_RESERVE && fstatvfs(s->dir_fd, &v) == 0 &&
        (uint64_t)v.f_bavail * v.f_frsize < bytes + DISK_RESERVE)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "%s: the disk is full", s->dir);
    return 0;
}

static int read_staging(const struct mcfs_backend_put *item, char **data, struct mcfs_error *err)
{
    ssize_t n = mcfs_read_file_alloc(item->staging_path, item->object.size, data, err);
    if (n >= 0 && (uint64_t)n != item->object.size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not %" PRIu64 " bytes", item->staging_path,
                         item->object.size);
    return n < 0 ? -1 : 0;
}

static int store_object(struct store *s, struct entry *e, const struct mcfs_backend_put *item,
                        struct mcfs_error *err)
{
    bool single = e->size >= s->config.single_object_min_bytes;
    struct stat st;
    if (!item->data && !item->staging_path)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a put without bytes");
    if (item->staging_path && (stat(item->staging_path, &st) || (uint64_t)st.st_size != e->size))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not a file of %" PRIu64 " bytes",
                         item->staging_path, e->size);
    /* A staging file is used as it is whenever that is possible; only small ones are gathered. */
    if (single) {
        if (!e->has_crc && item->data)
            e->crc32c = mcfs_crc32c(0, item->data, e->size);
        else if (!e->has_crc && checksum_file(item->staging_path, e->size, &e->crc32c, err))
            return -1;
        e->has_crc = true;
        return store_single(s, e, item, err);
    }
    _cleanup_free_ char *copy = NULL;
    const void *data = item->data;
    if (!data && read_staging(item, &copy, err))
        return -1;
    if (!data)
        data = copy;
    if (!e->has_crc)
        e->crc32c = mcfs_crc32c(0, data, e->size);
    e->has_crc = true;
    if (append_object(s, e, data, err))
        return -1;
    if (item->staging_path)
        unlink(item->staging_path);
    return 0;
}

static int put_one(struct store *s, struct mcfs_backend_put *item, struct mcfs_error *err)
{
    const struct mcfs_object *o = &item->object;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (storage_key(o->tenant, o->key, &key, err) || check_room(s, o->size + key.len, err))
        return -1;
    struct mcfs_slice k = mcfs_slice(key.data, key.len);
    struct index_stripe *stripe = index_stripe(s, k);
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        if (index_find(stripe, k, o->version))
            return 0; /* stored already */
    }
    struct entry *e = entry_new(k);
    if (!e)
        return mcfs_fail_errno(err, ENOMEM, "index");
    e->version = o->version;
    e->size = o->size;
    e->attr = o->attr;
    e->crc32c = o->crc32c;
    e->has_crc = o->has_crc;
    e->data_type = o->data_type;
    if (store_object(s, e, item, err)) {
        entry_free(e);
        return -1;
    }
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        if (index_add(s, stripe, e) == 0) {
            atomic_fetch_add(&s->puts, 1);
            return 0;
        }
    }
    entry_reclaim(s, e);
    return mcfs_fail_errno(err, ENOMEM, "index");
}

size_t store_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n)
{
    struct store *s = (struct store *)b;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        items[i].err = (struct mcfs_error)MCFS_ERROR_INIT;
        failed += put_one(s, &items[i], &items[i].err) != 0;
    }
    return failed;
}
