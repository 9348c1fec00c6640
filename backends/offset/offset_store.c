/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset_store.h"

#include "backends/backends.h"
#include "backends/offset/offset.h"
#include "backends/store_dir.h"
#include "common/cleanup.h"

#include <sys/statvfs.h>

static void destroy(struct offset_store *s)
{
    for (unsigned i = 0; i < OFFSET_STRIPES; i++) {
        mcfs_table_free(&s->stripes[i].table);
        pthread_mutex_destroy(&s->stripes[i].lock);
    }
    offset_list_free(&s->all);
    offset_list_free(&s->in_flight);
    mcfs_offset_allocator_free(s->allocator);
    const int fds[] = {s->dir_fd, s->data_fd, s->journal_fd, s->lock_fd};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->sync_lock);
    pthread_mutex_destroy(&s->checkpoint_lock);
    free(s->dir);
    free(s);
}

static struct offset_store *create(const struct mcfs_backend_config *config)
{
    struct offset_store *s = aligned_alloc(64, (sizeof(*s) + 63) & ~(size_t)63);
    if (!s)
        return NULL;
    memset(s, 0, sizeof(*s));
    s->base.ops = &mcfs_offset_store_ops;
    s->config = *config;
    s->dir_fd = s->lock_fd = s->data_fd = s->journal_fd = -1;
    s->data_unflushed = true; /* by a process that died, maybe */
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->sync_lock, NULL);
    pthread_mutex_init(&s->checkpoint_lock, NULL);
    for (unsigned i = 0; i < OFFSET_STRIPES; i++) {
        pthread_mutex_init(&s->stripes[i].lock, NULL);
        s->stripes[i].table.hash = offset_index_hash;
    }
    return s;
}

static int take_config(struct offset_store *s, struct mcfs_error *err)
{
    static const char *const modes[] = {"relaxed", "strict", "disabled"};
    const char *mode = s->config.offset_persist ? s->config.offset_persist : modes[0];
    const char *policy = s->config.eviction_policy;
    if (io_engine_choose(s->config.io_engine, &s->io, err))
        return -1;
    s->config.io_engine = NULL;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(modes); i++) {
        if (strcmp(mode, modes[i]) != 0)
            continue;
        s->mode = (enum offset_mode)i;
        s->config.offset_persist = modes[i];
        s->config.eviction_policy = NULL;
        return offset_init_order(s, policy, err);
    }
    return mcfs_fail(err, MCFS_INVALID_PARAMS,
                     "persist mode '%s' is not disabled, relaxed or strict", mode);
}

static int open_dir(struct offset_store *s, const char *dir, struct mcfs_error *err)
{
    if (store_dir_open(dir, false, &s->dir, &s->dir_fd, &s->lock_fd, err))
        return -1;
    s->config.dir = s->dir;
    /* Another layout's files are not strangers' to be set aside. */
    return mcfs_backend_fits(&mcfs_offset_ops, &s->config, err);
}

struct mcfs_backend *offset_store_open(const struct mcfs_backend_config *config,
                                       struct mcfs_backend_recovery *recovery,
                                       struct mcfs_error *err)
{
    struct offset_store *s = create(config);
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "%s", config->dir);
        return NULL;
    }
    if (take_config(s, err) || open_dir(s, config->dir, err) || offset_recover(s, recovery, err) ||
        evict_order_begin(&s->order, err) || offset_flusher_start(s, err)) {
        destroy(s);
        return NULL;
    }
    return &s->base;
}

/* The last checkpoint is of a store in which nothing waits, and nothing is written after it. */
static int finish(struct offset_store *s, struct mcfs_error *err)
{
    if (s->mode == OFFSET_DISABLED)
        return ftruncate(s->data_fd, 0) ? mcfs_fail_errno(err, errno, "%s/" OFFSET_DATA, s->dir)
                                        : 0;
    if (offset_store_sync(&s->base, err))
        return -1;
    bool current = s->journal_end == s->journal_base && !s->journal_broken;
    return current ? 0 : offset_checkpoint(s, err);
}

static int offset_store_close(struct mcfs_backend *b, struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    flush_thread_stop(s->flusher);
    int rc = finish(s, err);
    destroy(s);
    return rc;
}

static int offset_store_locate(struct mcfs_backend *b, struct mcfs_slice tenant,
                               struct mcfs_slice key, uint64_t version,
                               struct mcfs_backend_place *place, struct mcfs_error *err)
{
    struct offset_store *s = (struct offset_store *)b;
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    if (storage_key(tenant, key, &name, err))
        return -1;
    struct mcfs_slice k = mcfs_slice(name.data, name.len);
    struct offset_stripe *stripe = offset_stripe(s, k);
    MCFS_LOCK_SCOPE(&stripe->lock);
    struct offset_entry *e = offset_index_find(stripe, k, version);
    if (!e)
        return storage_gone(key, err);
    *place = (struct mcfs_backend_place){.file = OFFSET_DATA,
                                         .offset = offset_entry_value(e),
                                         .length = e->size,
                                         .crc32c = e->crc32c,
                                         .has_crc = e->has_crc};
    return 0;
}

static void offset_store_stats(struct mcfs_backend *b, struct mcfs_backend_stats *out)
{
    struct offset_store *s = (struct offset_store *)b;
    struct statvfs v;
    *out = (struct mcfs_backend_stats){.objects = atomic_load(&s->objects),
                                       .object_bytes = atomic_load(&s->object_bytes),
                                       .index_bytes = atomic_load(&s->index_bytes),
                                       .puts = atomic_load(&s->puts),
                                       .removes = atomic_load(&s->removes),
                                       .reads = atomic_load(&s->reads),
                                       .syncs = atomic_load(&s->syncs),
                                       .evictions = atomic_load(&s->order.evictions),
                                       .evicted_bytes = atomic_load(&s->order.evicted_bytes),
                                       .checksum_errors = atomic_load(&s->checksum_errors),
                                       .io_engine = io_engine_name(s->io)};
    MCFS_LOCK_SCOPE(&s->lock);
    out->used_bytes = s->used_bytes;
    for (const struct offset_entry *e = s->waiting; e; e = e->waits)
        out->dead_bytes += offset_room(s, e);
    out->capacity_bytes = s->config.capacity_bytes;
    if (!out->capacity_bytes && fstatvfs(s->dir_fd, &v) == 0)
        out->capacity_bytes = MCFS_MIN(s->used_bytes + (uint64_t)v.f_bavail * v.f_frsize,
                                       mcfs_offset_allocator_state(s->allocator)->capacity);
}

const struct mcfs_backend_ops mcfs_offset_store_ops = {
    .name = "offset_allocator_storage_backend",
    .open = offset_store_open,
    .put = offset_store_put,
    .get = offset_store_get,
    .reader_open = offset_reader_open,
    .reader_close = offset_reader_close,
    .reader_fd = offset_reader_fd,
    .reader_read = offset_reader_read,
    .reader_verify = offset_reader_verify,
    .reader_is_verified = offset_reader_is_verified,
    .evict_choose = offset_evict_choose,
    .evict_hold = offset_evict_hold,
    .evict_end = offset_evict_end,
    .remove = offset_store_remove,
    .rekey = offset_store_rekey,
    .set_attr = offset_store_set_attr,
    .locate = offset_store_locate,
    .scan = offset_store_scan,
    .sync = offset_store_sync,
    .stats = offset_store_stats,
    .close = offset_store_close,
};
