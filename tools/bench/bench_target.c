/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/bench/bench_target.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#define PAGE 4096u

static int open_plain(struct bench_target *t, struct mcfs_error *err)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/plain", t->config.dir);
    if (mkdir(t->config.dir, 0755) && errno != EEXIST)
        return mcfs_fail_errno(err, errno, "%s", t->config.dir);
    t->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (t->fd < 0)
        return mcfs_fail_errno(err, errno, "%s", path);
    if (!t->config.direct)
        return 0;
    t->direct_fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    return t->direct_fd < 0 ? mcfs_fail_errno(err, errno, "%s past the page cache", path) : 0;
}

static int open_store(struct bench_target *t, struct mcfs_error *err)
{
    const struct bench_target_config *c = &t->config;
    struct mcfs_backend_recovery found;
    struct mcfs_backend_config config = {
        .dir = c->dir, .capacity_bytes = c->capacity, .io_engine = c->io_engine};
    t->store = c->ops->open(&config, &found, err);
    return t->store ? 0 : -1;
}

int bench_target_open(struct bench_target *t, const struct bench_target_config *config,
                      struct mcfs_error *err)
{
    *t = (struct bench_target){.config = *config,
                               .fd = -1,
                               .direct_fd = -1,
                               .slot = (config->value_size + PAGE - 1) / PAGE * PAGE};
    if (config->versions && !(t->versions = calloc(config->versions, sizeof(*t->versions))))
        return mcfs_fail_errno(err, ENOMEM, "versions of %" PRIu64 " keys", config->versions);
    int64_t began = mcfs_mono_ns();
    int r = config->ops ? open_store(t, err) : open_plain(t, err);
    t->open_ms = (double)(mcfs_mono_ns() - began) / 1e6;
    if (r)
        bench_target_close(t, NULL);
    return r;
}

int bench_target_close(struct bench_target *t, struct mcfs_error *err)
{
    int r = t->store ? t->store->ops->close(t->store, err) : 0;
    t->store = NULL;
    mcfs_cleanup_fd(&t->fd);
    mcfs_cleanup_fd(&t->direct_fd);
    t->fd = t->direct_fd = -1;
    free(t->versions);
    t->versions = NULL;
    return r;
}

int bench_batch_init(struct bench_batch *b, const struct bench_target *t, uint32_t cap,
                     struct mcfs_error *err)
{
    *b = (struct bench_batch){.cap = cap,
                              .slot = t->slot,
                              .keys = calloc(cap, sizeof(*b->keys)),
                              .data = aligned_alloc(PAGE, cap * t->slot),
                              .names = calloc(cap, sizeof(*b->names)),
                              .puts = calloc(cap, sizeof(*b->puts)),
                              .gets = calloc(cap, sizeof(*b->gets)),
                              .olds = calloc(cap, sizeof(*b->olds))};
    if (b->keys && b->data && b->names && b->puts && b->gets && b->olds) {
        memset(b->data, 0, cap * t->slot); /* not what is timed provides the memory */
        return 0;
    }
    bench_batch_free(b);
    return mcfs_fail_errno(err, ENOMEM, "a batch of %" PRIu32 " values", cap);
}

void bench_batch_free(struct bench_batch *b)
{
    free(b->keys);
    free(b->data);
    free(b->names);
    free(b->puts);
    free(b->gets);
    free(b->olds);
    *b = (struct bench_batch){.cap = 0};
}

void bench_key_name(uint64_t key, char name[BENCH_KEY_MAX])
{
    snprintf(name, BENCH_KEY_MAX, "kvcache_block_%" PRIu64, key);
}

void bench_batch_add(struct bench_batch *b, uint64_t key)
{
    for (uint32_t i = 0; i < b->count; i++)
        if (b->keys[i] == key)
            return;
    bench_key_name(key, b->names[b->count]);
    b->keys[b->count++] = key;
}

static uint64_t version_of(const struct bench_target *t, uint64_t key)
{
    return t->versions && key < t->config.versions ? t->versions[key] : 1;
}

void bench_target_ready_write(struct bench_target *t, struct bench_batch *b)
{
    struct mcfs_slice tenant = mcfs_slice_str(MCFS_DEFAULT_TENANT);
    for (uint32_t i = 0; i < b->count; i++) {
        struct mcfs_slice key = mcfs_slice_str(b->names[i]);
        uint64_t old = t->versions ? version_of(t, b->keys[i]) : 0;
        b->puts[i] = (struct mcfs_backend_put){.object = {.tenant = tenant,
                                                          .key = key,
                                                          .version = old + 1,
                                                          .size = t->config.value_size,
                                                          .attr = {0644, 0, 0, 1}},
                                               .data = bench_batch_value(b, i)};
        b->olds[i] = (struct mcfs_backend_name){.tenant = tenant, .key = key, .version = old};
    }
}

void bench_target_ready_read(struct bench_target *t, struct bench_batch *b)
{
    for (uint32_t i = 0; i < b->count; i++)
        b->gets[i] = (struct mcfs_backend_get){.tenant = mcfs_slice_str(MCFS_DEFAULT_TENANT),
                                               .key = mcfs_slice_str(b->names[i]),
                                               .version = version_of(t, b->keys[i]),
                                               .buf = bench_batch_value(b, i),
                                               .len = t->config.value_size,
                                               .direct = t->config.direct};
}

/* A value that is written again is a new version, and the old one goes. */
static int store_write(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err)
{
    const struct mcfs_backend_ops *ops = t->store->ops;
    if (ops->put(t->store, b->puts, b->count))
        for (uint32_t i = 0; i < b->count; i++)
            if (b->puts[i].err.code)
                return mcfs_fail(err, b->puts[i].err.code, "%s", b->puts[i].err.msg);
    if (b->count && b->olds[0].version && ops->remove(t->store, b->olds, b->count))
        return mcfs_fail(err, MCFS_WRITE_FAIL, "an old version could not be removed");
    for (uint32_t i = 0; t->versions && i < b->count; i++)
        t->versions[b->keys[i]]++;
    return 0;
}

static int plain_write(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err)
{
    size_t len = t->config.value_size;
    for (uint32_t i = 0; i < b->count; i++) {
        ssize_t n = pwrite(t->fd, bench_batch_value(b, i), len, (off_t)(b->keys[i] * t->slot));
        if (n != (ssize_t)len)
            return mcfs_fail_errno(err, n < 0 ? errno : ENOSPC, "the plain file");
    }
    return 0;
}

int bench_target_write(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err)
{
    int r = t->store ? store_write(t, b, err) : plain_write(t, b, err);
    return r || !t->config.sync_writes ? r : bench_target_sync(t, err);
}

static int plain_read(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err)
{
    int fd = t->direct_fd < 0 ? t->fd : t->direct_fd;
    size_t len = t->direct_fd < 0 ? t->config.value_size : t->slot;
    for (uint32_t i = 0; i < b->count; i++) {
        ssize_t n = pread(fd, bench_batch_value(b, i), len, (off_t)(b->keys[i] * t->slot));
        if (n < (ssize_t)t->config.value_size)
            return mcfs_fail_errno(err, n < 0 ? errno : EIO, "the plain file");
    }
    return 0;
}

int bench_target_read(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err)
{
    if (!t->store)
        return plain_read(t, b, err);
    t->store->ops->get(t->store, b->gets, b->count);
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->gets[i].err.code)
            return mcfs_fail(err, b->gets[i].err.code, "%s", b->gets[i].err.msg);
        if (b->gets[i].got != t->config.value_size)
            return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s is short", b->names[i]);
    }
    return 0;
}

bool bench_target_has(struct bench_target *t, const char *name)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_backend_place place;
    return t->store->ops->locate(t->store, mcfs_slice_str(MCFS_DEFAULT_TENANT),
                                 mcfs_slice_str(name), 1, &place, &err) == 0;
}

int bench_target_sync(struct bench_target *t, struct mcfs_error *err)
{
    if (t->store)
        return t->store->ops->sync(t->store, err);
    return fdatasync(t->fd) ? mcfs_fail_errno(err, errno, "the plain file") : 0;
}
