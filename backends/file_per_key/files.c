/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/file_per_key/files.h"

#include "backends/backends.h"
#include "backends/file_per_key/file_per_key.h"
#include "backends/file_per_key/files_marker.h"
#include "backends/store_dir.h"
#include "common/cleanup.h"
#include "common/file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static void destroy(struct files *s)
{
    for (unsigned i = 0; i < FILES_STRIPES; i++) {
        mcfs_table_free(&s->stripes[i].table);
        pthread_mutex_destroy(&s->stripes[i].lock);
        pthread_cond_destroy(&s->stripes[i].put_done);
    }
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        struct file_shard *h = &s->shards[i];
        while (h->first) {
            struct file_entry *e = h->first;
            file_unlink(h, e);
            file_entry_drop(e);
        }
        free(h->unsynced.v);
        free(h->dead.v);
        if (h->log_fd >= 0)
            close(h->log_fd);
        pthread_mutex_destroy(&h->lock);
    }
    catalog_free(s->mooncake);
    if (s->own_fd >= 0)
        close(s->own_fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    shared_sync_destroy(&s->sync);
    free(s->dir);
    free(s);
}

static struct files *create(const struct mcfs_backend_config *config)
{
    struct files *s = aligned_alloc(64, (sizeof(*s) + 63) & ~(size_t)63);
    if (!s)
        return NULL;
    memset(s, 0, sizeof(*s));
    s->base.ops = &mcfs_file_per_key_ops;
    s->config = *config;
    s->dir_fd = s->own_fd = s->lock_fd = -1;
    if (!config->fsdir || !*config->fsdir)
        s->config.fsdir = FILE_PER_KEY_FSDIR;
    shared_sync_init(&s->sync);
    for (unsigned i = 0; i < FILES_STRIPES; i++) {
        pthread_mutex_init(&s->stripes[i].lock, NULL);
        pthread_cond_init(&s->stripes[i].put_done, NULL);
        s->stripes[i].table.hash = file_entry_hash;
    }
    for (unsigned i = 0; i < FILES_SHARDS; i++) {
        pthread_mutex_init(&s->shards[i].lock, NULL);
        s->shards[i].log_fd = -1;
    }
    return s;
}

/* ---- open ---- */

static int open_dirs(struct files *s, const char *dir, struct mcfs_error *err)
{
    const struct mcfs_backend_config *c = &s->config;
    bool read_only = c->read_only;
    struct stat st;
    if (io_engine_choose(c->io_engine, &s->io, err))
        return -1;
    s->config.io_engine = NULL; /* the caller's string */
    if (files_init_order(s, c->eviction_policy, err))
        return -1;
    s->config.eviction_policy = NULL;
    if (strcmp(c->fsdir, FILES_DIR) == 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "fsdir: '" FILES_DIR "' is the folder of what we write ourselves");
    if (store_dir_open(dir, read_only, &s->dir, &s->dir_fd, &s->lock_fd, err))
        return -1;
    s->config.dir = s->dir;
    if (!read_only && mcfs_backend_fits(s->base.ops, &s->config, err))
        return -1;
    if (!read_only && mkdirat(s->dir_fd, FILES_DIR, 0755) && errno != EEXIST)
        return mcfs_fail_errno(err, errno, "%s/" FILES_DIR, s->dir);
    s->own_fd = openat(s->dir_fd, FILES_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (s->own_fd < 0 && !(read_only && errno == ENOENT))
        return mcfs_fail_errno(err, errno, "%s/" FILES_DIR, s->dir);
    if (s->own_fd >= 0 && fstat(s->own_fd, &st) == 0)
        s->device = st.st_dev;
    return 0;
}

static int read_marker(struct files *s, struct mcfs_error *err)
{
    char path[PATH_MAX], text[256];
    struct mcfs_error bad = MCFS_ERROR_INIT;
    snprintf(path, sizeof(path), "%s/" FILES_DIR "/format", s->dir);
    ssize_t n = mcfs_read_file(path, text, sizeof(text), &bad);
    if (n < 0 && bad.errnum == ENOENT) {
        s->marker = MARKER_MISSING;
        return 0;
    }
    if (n < 0 && bad.errnum != EFBIG) {
        if (err)
            *err = bad;
        return -1;
    }
    if (n >= 0 && files_marker_parse(text, (size_t)n, &bad) == 0)
        return 0;
    s->marker = MARKER_DAMAGED;
    if (bad.code != MCFS_INVALID_VERSION)
        return 0;
    if (err)
        *err = bad;
    return mcfs_error_prefix(err, "%s", path);
}

static int write_marker(struct files *s, struct mcfs_error *err)
{
    char path[PATH_MAX];
    _cleanup_buf_ struct mcfs_buf text = MCFS_BUF_INIT;
    if (s->marker == MARKER_GOOD)
        return 0;
    snprintf(path, sizeof(path), "%s/" FILES_DIR "/format", s->dir);
    files_marker_put(&text);
    if (text.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", path);
    if (syncfs(s->own_fd)) /* folders and logs, before it says that they are there */
        return mcfs_fail_errno(err, errno, "%s", s->dir);
    return mcfs_write_file(path, text.data, text.len, 0644, true, err);
}

static int recover(struct files *s, struct mcfs_backend_recovery *out, struct mcfs_error *err)
{
    if (s->own_fd >= 0 && (read_marker(s, err) || files_recover(s, out, err)))
        return -1;
    if (!s->config.read_only && write_marker(s, err))
        return -1;
    if (evict_order_begin(&s->order, err) || mooncake_open(s, err))
        return -1;
    if (s->mooncake) {
        out->objects += s->mooncake->count;
        out->bytes += s->mooncake->object_bytes;
        out->dropped_objects += s->mooncake_dropped;
    }
    if (s->config.read_only)
        return 0;
    s->flusher =
        flush_thread_start(s->config.flush_interval_ms, files_has_work, files_flush, s, err);
    return s->flusher ? 0 : -1;
}

struct files *files_open_checked(const struct mcfs_backend_config *config,
                                 const struct finding_sink *sink,
                                 struct mcfs_backend_recovery *recovery, struct mcfs_error *err)
{
    struct files *s = create(config);
    struct mcfs_backend_recovery ignored;
    struct mcfs_backend_recovery *out = recovery ? recovery : &ignored;
    *out = (struct mcfs_backend_recovery){.objects = 0};
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "%s", config->dir);
        return NULL;
    }
    s->sink = sink;
    if (open_dirs(s, config->dir, err) == 0 && recover(s, out, err) == 0)
        return s;
    destroy(s);
    return NULL;
}

static struct mcfs_backend *files_open(const struct mcfs_backend_config *config,
                                       struct mcfs_backend_recovery *recovery,
                                       struct mcfs_error *err)
{
    struct files *s = files_open_checked(config, NULL, recovery, err);
    return s ? &s->base : NULL;
}

static int files_close(struct mcfs_backend *b, struct mcfs_error *err)
{
    struct files *s = (struct files *)b;
    flush_thread_stop(s->flusher);
    int rc = !s->config.read_only && files_has_work(s) ? files_flush(s, err) : 0;
    destroy(s);
    return rc;
}

/* ---- what there is ---- */

static int files_locate(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                        uint64_t version, struct mcfs_backend_place *place, struct mcfs_error *err)
{
    struct files *s = (struct files *)b;
    char path[FILES_NAME];
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return -1;
    struct mcfs_slice k = mcfs_slice(name.data, name.len);
    struct file_stripe *stripe = file_stripe(s, k);
    {
        MCFS_LOCK_SCOPE(&stripe->lock);
        const struct file_entry *e = file_find(&stripe->table, k, version);
        if (e) {
            file_path(e->shard, e->id, path);
            snprintf(place->file, sizeof(place->file), FILES_DIR "/%s", path);
            place->offset = 0;
            place->length = e->size;
            place->crc32c = e->crc32c;
            place->has_crc = e->has_crc;
            place->whole_file = true;
            return 0;
        }
    }
    if (s->mooncake)
        return catalog_locate(&s->mooncake->base, tenant, key, version, place, err);
    return storage_gone(key, err);
}

static void files_stats(struct mcfs_backend *b, struct mcfs_backend_stats *out)
{
    struct files *s = (struct files *)b;
    struct mcfs_backend_stats theirs = {.objects = 0};
    struct statvfs v;
    if (s->mooncake)
        catalog_stats(&s->mooncake->base, &theirs);
    uint64_t used = atomic_load(&s->used_bytes);
    *out = (struct mcfs_backend_stats){
        .objects = atomic_load(&s->objects) + theirs.objects,
        .object_bytes = atomic_load(&s->object_bytes) + theirs.object_bytes,
        .capacity_bytes = s->config.capacity_bytes,
        .used_bytes = used,
        .index_bytes = atomic_load(&s->index_bytes) + theirs.index_bytes,
        .puts = atomic_load(&s->puts),
        .removes = atomic_load(&s->removes),
        .reads = atomic_load(&s->reads),
        .syncs = atomic_load(&s->syncs),
        .evictions = atomic_load(&s->order.evictions),
        .evicted_bytes = atomic_load(&s->order.evicted_bytes),
        .checksum_errors = atomic_load(&s->checksum_errors) + theirs.checksum_errors,
        .io_engine = io_engine_name(s->io)};
    out->dead_bytes = used > out->object_bytes ? used - out->object_bytes : 0;
    if (!out->capacity_bytes && fstatvfs(s->dir_fd, &v) == 0)
        out->capacity_bytes = used + (uint64_t)v.f_bavail * v.f_frsize;
}

const struct mcfs_backend_ops mcfs_file_per_key_ops = {
    .name = FILE_PER_KEY_NAME,
    .open = files_open,
    .put = files_put,
    .get = files_get,
    .reader_open = files_reader_open,
    .reader_close = files_reader_close,
    .reader_fd = files_reader_fd,
    .reader_read = files_reader_read,
    .reader_verify = files_reader_verify,
    .reader_is_verified = files_reader_is_verified,
    .evict_choose = files_evict_choose,
    .evict_hold = files_evict_hold,
    .evict_end = files_evict_end,
    .remove = files_remove,
    .rekey = files_rekey,
    .set_attr = files_set_attr,
    .locate = files_locate,
    .scan = files_scan,
    .sync = files_sync,
    .stats = files_stats,
    .close = files_close,
};
