/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "tools/bench/bench_mooncake.h"

#include <fcntl.h>
#include <string.h>

static int drop_page_cache(struct mcfs_error *err)
{
    _cleanup_fd_ int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
    sync();
    if (fd < 0 || write(fd, "3", 1) != 1)
        return mcfs_fail_errno(err, errno, "/proc/sys/vm/drop_caches");
    return 0;
}

void mooncake_batch_of(struct bench_batch *b, uint64_t first, uint32_t n)
{
    b->count = 0;
    for (uint32_t i = 0; i < n; i++) {
        bench_key_name(first + i, b->names[i]);
        b->keys[b->count++] = first + i;
    }
}

void mooncake_batch_fill(struct bench_batch *b, uint64_t value_size, uint64_t salt)
{
    for (uint32_t i = 0; i < b->count; i++)
        bench_data_fill(bench_batch_value(b, i), value_size, b->keys[i] + salt);
}

typedef int (*batch_fn)(struct bench_target *t, struct bench_batch *b, struct mcfs_error *err);

static int timed(struct bench_target *t, struct bench_batch *b, batch_fn fn,
                 struct bench_samples *s, struct mcfs_error *err)
{
    struct mcfs_error failure = MCFS_ERROR_INIT;
    int64_t began = mcfs_mono_ns();
    int r = fn(t, b, &failure);
    int64_t took = mcfs_mono_ns() - began;
    if (s)
        bench_samples_add(s, took, b->count * t->config.value_size, &failure);
    else if (r)
        return mcfs_fail(err, failure.code, "%s", failure.msg);
    return 0;
}

int mooncake_write(struct bench_target *t, struct bench_batch *b, struct bench_samples *s,
                   struct mcfs_error *err)
{
    bench_target_ready_write(t, b);
    return timed(t, b, bench_target_write, s, err);
}

int mooncake_read(struct bench_target *t, struct bench_batch *b, struct bench_samples *s,
                  struct mcfs_error *err)
{
    bench_target_ready_read(t, b);
    return timed(t, b, bench_target_read, s, err);
}

int mooncake_check(const struct mooncake_options *o, const struct bench_batch *b,
                   struct bench_samples *s, struct mcfs_error *err)
{
    for (uint32_t i = 0; i < b->count; i++) {
        if (bench_data_is(bench_batch_value(b, i), o->value_size, b->keys[i]))
            continue;
        s->wrong++;
        if (o->fail_fast)
            return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s was read with other bytes",
                             b->names[i]);
    }
    return 0;
}

int mooncake_populate(const struct mooncake_options *o, struct bench_target *t, uint64_t from,
                      uint64_t to, struct mcfs_error *err)
{
    _cleanup_(bench_batch_free) struct bench_batch b;
    bool sync_writes = t->config.sync_writes;
    if (bench_batch_init(&b, t, o->batch_size, err))
        return -1;
    t->config.sync_writes = false;
    int r = 0;
    for (uint64_t key = from; !r && key < to; key += b.count) {
        mooncake_batch_of(&b, key, (uint32_t)MCFS_MIN(o->batch_size, to - key));
        mooncake_batch_fill(&b, t->config.value_size, 0);
        r = mooncake_write(t, &b, NULL, err);
    }
    t->config.sync_writes = sync_writes;
    /* What is written back while the test runs would be part of it for who comes first only. */
    if (r || bench_target_sync(t, err))
        return -1;
    return o->drop_cache ? drop_page_cache(err) : 0;
}
