/* SPDX-License-Identifier: Apache-2.0 */
/* Putting objects: a file is written, or a staging file taken, then named, then recorded. */
#include "backends/file_per_key/files.h"

#include "backends/value.h"
#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

/* Where the value's file is before it gets its name. */
struct source {
    int dir_fd;
    const char *path;
    char name[32];   /* below FILES_DIR, when it is a file of ours in new/ */
    bool is_staging; /* it is the caller's */
};

static const char *staging_of(const struct mcfs_backend_put *item)
{
    return item->data ? NULL : item->staging_path;
}

/* ---- the file ---- */

static int fill(int to, const struct mcfs_backend_put *item)
{
    const char *staging = staging_of(item);
    if (!staging)
        return mcfs_pwrite_full(to, item->data, item->object.size, 0);
    _cleanup_fd_ int from = open(staging, O_RDONLY | O_CLOEXEC);
    return from < 0 ? -1 : mcfs_copy_range(from, 0, to, 0, item->object.size);
}

static int make_new(struct files *s, const struct mcfs_backend_put *item, struct source *from,
                    struct mcfs_error *err)
{
    snprintf(from->name, sizeof(from->name), "new/%016" PRIx64,
             atomic_fetch_add(&s->next_new, 1) + 1);
    from->dir_fd = s->own_fd;
    from->path = from->name;
    _cleanup_fd_ int to =
        openat(s->own_fd, from->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (to < 0)
        return mcfs_fail_errno(err, errno, "%s/" FILES_DIR "/%s", s->dir, from->name);
    if (fill(to, item) == 0)
        return 0;
    mcfs_fail_errno(err, errno, "%s/" FILES_DIR "/%s", s->dir, from->name);
    unlinkat(s->own_fd, from->name, 0);
    return -1;
}

/* The staging file itself when it lies where it can be renamed. */
static int find_source(struct files *s, const struct mcfs_backend_put *item, struct source *from,
                       struct mcfs_error *err)
{
    const char *staging = staging_of(item);
    struct stat st;
    *from = (struct source){.dir_fd = AT_FDCWD};
    if (!staging)
        return make_new(s, item, from, err);
    if (stat(staging, &st))
        return mcfs_fail_errno(err, errno, "%s", staging);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != item->object.size)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not a file of %" PRIu64 " bytes", staging,
                         item->object.size);
    if (st.st_dev != s->device)
        return make_new(s, item, from, err);
    from->path = staging;
    from->is_staging = true;
    return 0;
}

static int checksum(const struct mcfs_backend_put *item, uint32_t *crc, struct mcfs_error *err)
{
    const char *staging = staging_of(item);
    if (!staging) {
        *crc = mcfs_crc32c(0, item->data, item->object.size);
        return 0;
    }
    _cleanup_fd_ int fd = open(staging, O_RDONLY | O_CLOEXEC);
    struct value_place v = {fd, 0, item->object.size};
    *crc = 0;
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", staging);
    return value_checksum(&v, crc, err) ? mcfs_error_prefix(err, "%s", staging) : 0;
}

/* ---- its name ---- */

static int give_name(struct files *s, const struct source *from, const char *path)
{
    char folder[FILES_NAME];
    if (renameat2(from->dir_fd, from->path, s->own_fd, path, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != ENOENT)
        return -1;
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    if (mkdirat(s->own_fd, folder, 0755) && errno != EEXIST)
        return -1;
    atomic_store(&s->folders_made, true);
    return renameat2(from->dir_fd, from->path, s->own_fd, path, RENAME_NOREPLACE);
}

/* Names the file and records it: nobody's until then, the store's afterwards. */
static int commit(struct files *s, struct file_entry *e, const struct source *from,
                  struct mcfs_error *err)
{
    struct file_shard *h = &s->shards[e->shard];
    char path[FILES_NAME];
    MCFS_LOCK_SCOPE(&h->lock);
    e->id = atomic_fetch_add(&s->next_id, 1);
    file_path(e->shard, e->id, path);
    if (give_name(s, from, path))
        return mcfs_fail_errno(err, errno, "%s/" FILES_DIR "/%s", s->dir, path);
    h->names_dirty |= 1u << (e->id & 15);
    struct log_record r = file_record(e);
    if (file_log(s, e->shard, &r, err)) {
        if (renameat2(s->own_fd, path, from->dir_fd, from->path, RENAME_NOREPLACE))
            unlinkat(s->own_fd, path, 0);
        return -1;
    }
    file_link(h, e);
    if (file_ids_add(&h->unsynced, e->id, e->size))
        h->sync_all = true;
    return 0;
}

static int store_value(struct files *s, struct file_entry *e, struct mcfs_backend_put *item,
                       struct mcfs_error *err)
{
    struct source from;
    if (!e->has_crc && checksum(item, &e->crc32c, err))
        return -1;
    e->has_crc = true;
    if (files_claim(s, e->size, err))
        return -1;
    int rc = find_source(s, item, &from, err);
    if (rc == 0 && from.path && (rc = commit(s, e, &from, err)) && !from.is_staging)
        unlinkat(from.dir_fd, from.path, 0);
    if (rc)
        atomic_fetch_sub(&s->used_bytes, e->size);
    else if (staging_of(item) && !from.is_staging)
        unlink(item->staging_path);
    return rc;
}

/* ---- put ---- */

static struct file_entry *entry_of(const struct mcfs_object *o, struct mcfs_slice key)
{
    struct file_entry *e = file_entry_new(key);
    if (!e)
        return NULL;
    e->version = o->version;
    e->size = o->size;
    e->attr = o->attr;
    e->attr.mode &= 07777;
    e->crc32c = o->crc32c;
    e->has_crc = o->has_crc;
    e->data_type = o->data_type;
    e->shard = (uint8_t)(mcfs_hash(key.data, key.len) % FILES_SHARDS);
    atomic_store_explicit(&e->checked, FILE_GOOD, memory_order_relaxed);
    return e;
}

int files_put_one(struct files *s, struct mcfs_backend_put *item, struct mcfs_error *err)
{
    const struct mcfs_object *o = &item->object;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    if (s->config.read_only)
        return mcfs_fail_errno(err, EROFS, "%s", s->dir);
    if (o->size > INT64_MAX / 2)
        return mcfs_fail_errno(err, EFBIG, "%" PRIu64 " bytes", o->size);
    if (!item->data && !item->staging_path && o->size > 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a put without data");
    if (storage_key(o->tenant, o->key, &key, err))
        return -1;
    struct file_pending pending = {.key = mcfs_slice(key.data, key.len), .version = o->version};
    struct file_stripe *stripe = file_stripe(s, pending.key);
    if (!file_begin_put(stripe, &pending)) {
        if (staging_of(item))
            unlink(item->staging_path); /* it counts as consumed */
        return 0;
    }
    struct file_entry *e = entry_of(o, pending.key);
    if (!e)
        mcfs_fail_errno(err, ENOMEM, "index");
    if (!e || store_value(s, e, item, err)) {
        file_end_put(s, stripe, &pending, NULL);
        file_entry_drop(e);
        return -1;
    }
    if (file_end_put(s, stripe, &pending, e)) {
        file_kill(s, e, NULL);
        return mcfs_fail_errno(err, ENOMEM, "index");
    }
    atomic_fetch_add_explicit(&s->puts, 1, memory_order_relaxed);
    return 0;
}

size_t files_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n)
{
    struct files *s = (struct files *)b;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        struct mcfs_backend_put *item = &items[i];
        const struct mcfs_object *o = &item->object;
        item->err = (struct mcfs_error)MCFS_ERROR_INIT;
        if (mooncake_has(s, o->tenant, o->key, o->version)) {
            if (staging_of(item))
                unlink(item->staging_path);
            continue;
        }
        failed += files_put_one(s, item, &item->err) != 0;
    }
    return failed;
}
