/* SPDX-License-Identifier: Apache-2.0 */
/* Mooncake's own files beside ours: read as they are, removed when they are discarded, and made
 * ours when they are to change. */
#include "backends/file_per_key/files.h"

#include "backends/file_per_key/file_per_key.h"
#include "common/cleanup.h"
#include "common/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>

#define CHUNK (1u << 20)

int mooncake_open(struct files *s, struct mcfs_error *err)
{
    struct stat st;
    uint64_t dropped = 0;
    struct finding_sink log = {.report = finding_log, .arg = s->dir};
    bool none = fstatat(s->dir_fd, s->config.fsdir, &st, AT_SYMLINK_NOFOLLOW) && errno == ENOENT;
    if (none && (s->own_fd >= 0 || !s->config.read_only))
        return 0;
    s->mooncake =
        file_per_key_read(s->dir, s->config.fsdir, s->sink ? s->sink : &log, &dropped, err);
    if (!s->mooncake)
        return -1;
    s->used_bytes += s->mooncake->object_bytes;
    s->mooncake_dropped = dropped;
    return 0;
}

static struct catalog_entry *find(const struct files *s, struct mcfs_slice tenant,
                                  struct mcfs_slice key, uint64_t version)
{
    return s->mooncake ? catalog_lookup(s->mooncake, tenant, key, version, NULL) : NULL;
}

bool mooncake_has(const struct files *s, struct mcfs_slice tenant, struct mcfs_slice key,
                  uint64_t version)
{
    return find(s, tenant, key, version) != NULL;
}

bool mooncake_mark(struct files *s, const struct mcfs_backend_victim *v, bool leaving)
{
    struct catalog_entry *e = find(s, v->tenant, v->key, v->version);
    bool other = !leaving;
    return e && atomic_compare_exchange_strong(&e->leaving, &other, leaving);
}

int mooncake_remove(struct files *s, struct mcfs_slice tenant, struct mcfs_slice key,
                    uint64_t version, struct mcfs_error *err)
{
    struct catalog_entry *e = find(s, tenant, key, version);
    if (!e)
        return 0;
    if (unlinkat(s->dir_fd, e->file, 0) && errno != ENOENT)
        return mcfs_fail_errno(err, errno, "%s/%s", s->dir, e->file);
    if (catalog_forget(s->mooncake, e)) {
        atomic_fetch_sub(&s->used_bytes, e->size);
        atomic_fetch_add(&s->removes, 1);
    }
    atomic_store(&s->mooncake_dirty, true);
    return 0;
}

/* ---- making one ours ---- */

static int copy_value(struct mcfs_backend_reader *r, int to, uint64_t size, struct mcfs_error *err)
{
    _cleanup_free_ char *chunk = malloc(CHUNK);
    if (!chunk)
        return mcfs_fail_errno(err, ENOMEM, "copy");
    for (uint64_t at = 0; at < size;) {
        int64_t n = catalog_reader_read(r, chunk, CHUNK, at, err);
        if (n < 0)
            return -1;
        if (n == 0)
            return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "the object ends too early");
        if (mcfs_pwrite_full(to, chunk, (size_t)n, at))
            return mcfs_fail_errno(err, errno, "copy");
        at += (uint64_t)n;
    }
    return 0;
}

static int copy_file(struct files *s, const struct mcfs_object *o, const char *path,
                     struct mcfs_error *err)
{
    struct mcfs_backend_reader *r =
        catalog_reader_open(&s->mooncake->base, o->tenant, o->key, o->version, err);
    if (!r)
        return -1;
    _cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    int rc = fd < 0 ? mcfs_fail_errno(err, errno, "%s", path) : copy_value(r, fd, o->size, err);
    catalog_reader_close(r);
    return rc;
}

int mooncake_adopt(struct files *s, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, struct mcfs_error *err)
{
    struct catalog_entry *e = find(s, tenant, key, version);
    char path[PATH_MAX];
    if (!e || atomic_load(&e->leaving))
        return 0;
    struct mcfs_backend_put item = {.object = {.tenant = tenant,
                                               .key = key,
                                               .version = version,
                                               .size = e->size,
                                               .attr = {MCFS_ATTR_DEFAULT_MODE, 0, 0, e->mtime_ns}},
                                    .staging_path = path};
    snprintf(path, sizeof(path), "%s/" FILES_DIR "/new/%016" PRIx64, s->dir,
             atomic_fetch_add(&s->next_new, 1) + 1);
    /* Ours is durable before the original goes. */
    int rc = copy_file(s, &item.object, path, err) || files_put_one(s, &item, err) ||
                     files_sync(&s->base, err)
                 ? -1
                 : 0;
    unlink(path);
    return rc ? -1 : mooncake_remove(s, tenant, key, version, err);
}
