/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/bucket/bucket.h"

#include "backends/store_dir.h"
#include "common/cleanup.h"

#include <inttypes.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#define FDS_MAX 4096u

static void set_defaults(struct mcfs_backend_config *c)
{
    if (!c->bucket_size_limit)
        c->bucket_size_limit = 256ull << 20;
    if (!c->bucket_keys_limit)
        c->bucket_keys_limit = 500;
    if (!c->single_object_min_bytes)
        c->single_object_min_bytes = 1ull << 20;
}

static void destroy(struct store *s)
{
    for (unsigned i = 0; i < INDEX_STRIPES; i++) {
        mcfs_id_table_free(&s->stripes[i].table);
        pthread_mutex_destroy(&s->stripes[i].lock);
        pthread_cond_destroy(&s->stripes[i].put_done);
    }
    while (s->buckets) {
        struct bucket *b = s->buckets;
        while (b->entries) {
            struct entry *e = b->entries;
            b->entries = entry_after(e);
            entry_free(e);
        }
        bucket_free(s, b);
    }
    free(s->dirty);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    pthread_mutex_destroy(&s->open_lock);
    pthread_rwlock_destroy(&s->scan_lock);
    pthread_mutex_destroy(&s->lock);
    shared_sync_destroy(&s->sync);
    free(s->dir);
    free(s);
}

/* A quarter of what the process may open is for idle data files. */
static uint32_t fds_max(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return FDS_MAX / 16;
    return limit.rlim_cur / 4 < FDS_MAX ? (uint32_t)limit.rlim_cur / 4 : FDS_MAX;
}

static struct store *create(const struct mcfs_backend_config *config)
{
    struct store *s = aligned_alloc(64, (sizeof(*s) + 63) & ~(size_t)63);
    if (!s)
        return NULL;
    memset(s, 0, sizeof(*s));
    s->base.ops = &mcfs_bucket_ops;
    s->config = *config;
    s->dir_fd = s->lock_fd = -1;
    s->fds_max = fds_max();
    set_defaults(&s->config);
    pthread_mutex_init(&s->open_lock, NULL);
    pthread_rwlock_init(&s->scan_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    shared_sync_init(&s->sync);
    for (unsigned i = 0; i < INDEX_STRIPES; i++) {
        pthread_mutex_init(&s->stripes[i].lock, NULL);
        pthread_cond_init(&s->stripes[i].put_done, NULL);
    }
    return s;
}

static int open_dir(struct store *s, const char *dir, struct mcfs_error *err)
{
    if (io_engine_choose(s->config.io_engine, &s->io, err))
        return -1;
    s->config.io_engine = NULL; /* the caller's string */
    if (entry_arena_init(err) || store_init_order(s, s->config.eviction_policy, err) ||
        store_dir_open(dir, s->config.read_only, &s->dir, &s->dir_fd, &s->lock_fd, err))
        return -1;
    s->config.dir = s->dir;
    s->config.eviction_policy = NULL;
    return 0;
}

struct mcfs_backend *store_open_checked(const struct mcfs_backend_config *config,
                                        const struct finding_sink *sink,
                                        struct mcfs_backend_recovery *recovery,
                                        struct mcfs_error *err)
{
    struct store *s = create(config);
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "%s", config->dir);
        return NULL;
    }
    s->sink = sink;
    if (open_dir(s, config->dir, err) || store_recover(s, recovery, err) ||
        evict_order_begin(&s->order, err) || compact_start(s, err) ||
        (!config->read_only &&
         !(s->flusher = flush_thread_start(s->config.flush_interval_ms, store_has_work, store_flush,
                                           s, err)))) {
        compact_stop(s);
        destroy(s);
        return NULL;
    }
    return &s->base;
}

static struct mcfs_backend *store_open(const struct mcfs_backend_config *config,
                                       struct mcfs_backend_recovery *recovery,
                                       struct mcfs_error *err)
{
    return store_open_checked(config, NULL, recovery, err);
}

/* Seals the open bucket and brings the disk up to date. */
static int finish(struct store *s, struct mcfs_error *err)
{
    struct bucket *current;
    {
        MCFS_LOCK_SCOPE(&s->lock);
        current = s->current;
    }
    if (current) {
        MCFS_LOCK_SCOPE(&current->lock);
        bucket_stop_writing(s, current);
    }
    return store_flush(s, err);
}

static int store_close(struct mcfs_backend *b, struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    compact_stop(s);
    flush_thread_stop(s->flusher);
    int rc = s->config.read_only ? 0 : finish(s, err);
    destroy(s);
    return rc;
}

static int store_locate(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                        uint64_t version, struct mcfs_backend_place *place, struct mcfs_error *err)
{
    struct store *s = (struct store *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return -1;
    struct mcfs_slice k = mcfs_slice(name.data, name.len);
    struct index_stripe *stripe = index_stripe(s, k);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct entry *e = index_find(stripe, k, version);
    if (!e)
        return storage_gone(key, err);
    snprintf(place->file, sizeof(place->file), "%" PRIu64 ".bucket", entry_bucket(e)->id);
    place->offset = entry_offset(e);
    place->length = entry_size(e);
    place->crc32c = e->crc32c;
    place->has_crc = e->has_crc;
    place->whole_file = entry_bucket(e)->single;
    return 0;
}

static void store_stats(struct mcfs_backend *b, struct mcfs_backend_stats *out)
{
    struct store *s = (struct store *)b;
    struct statvfs v;
    uint64_t live = atomic_load(&s->live_bytes), used = atomic_load(&s->used_bytes);
    *out = (struct mcfs_backend_stats){.objects = atomic_load(&s->objects),
                                       .object_bytes = atomic_load(&s->object_bytes),
                                       .capacity_bytes = s->config.capacity_bytes,
                                       .used_bytes = used,
                                       .dead_bytes = used > live ? used - live : 0,
                                       .buckets = atomic_load(&s->bucket_count),
                                       .index_bytes = atomic_load(&s->index_bytes),
                                       .puts = atomic_load(&s->puts),
                                       .removes = atomic_load(&s->removes),
                                       .reads = atomic_load(&s->reads),
                                       .syncs = atomic_load(&s->syncs),
                                       .evictions = atomic_load(&s->order.evictions),
                                       .evicted_bytes = atomic_load(&s->order.evicted_bytes),
                                       .compactions = atomic_load(&s->compactions),
                                       .compacted_bytes = atomic_load(&s->compacted_bytes),
                                       .checksum_errors = atomic_load(&s->checksum_errors),
                                       .io_engine = io_engine_name(s->io)};
    if (!out->capacity_bytes && fstatvfs(s->dir_fd, &v) == 0)
        out->capacity_bytes = used + (uint64_t)v.f_bavail * v.f_frsize;
    MCFS_LOCK_SCOPE(&s->lock);
    out->open_buckets = s->current != NULL;
}

const struct mcfs_backend_ops mcfs_bucket_ops = {
    .name = "bucket_storage_backend",
    .open = store_open,
    .put = store_put,
    .get = store_get,
    .reader_open = store_reader_open,
    .reader_close = store_reader_close,
    .reader_fd = store_reader_fd,
    .reader_read = store_reader_read,
    .reader_verify = store_reader_verify,
    .reader_is_verified = store_reader_is_verified,
    .evict_choose = store_evict_choose,
    .evict_hold = store_evict_hold,
    .evict_end = store_evict_end,
    .remove = store_remove,
    .rekey = store_rekey,
    .set_attr = store_set_attr,
    .locate = store_locate,
    .scan = store_scan,
    .sync = store_sync,
    .stats = store_stats,
    .close = store_close,
};
