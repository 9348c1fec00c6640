/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_MASTER_MEMORY_H
#define TESTS_UNIT_MASTER_MEMORY_H

/* A directory with memory segments s0, s1, ... of one node, and puts into them, for the tests of
 * master_segments*.  Keys are of the tenant "t". */
#include "master/evict.h"
#include "master/object_memory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define NODE 1

static inline struct directory *make(uint32_t lease_ms)
{
    struct directory_config config = directory_alone("n:1");
    config.lease_ms = lease_ms;
    config.soft_pin_ms = config.put_discard_ms = config.put_release_ms = 3600000;
    struct directory *d = directory_new(&config, NULL);
    cr_assert_not_null(d);
    cr_assert_eq(directory_client(d, (struct mcfs_id){1, 1}), NODE);
    return d;
}

static inline struct segment_info described(uint32_t i, uint64_t size)
{
    struct segment_info g = {
        .node = NODE, .id = {7, i}, .base = (uint64_t)(i + 1) << 32, .size = size};
    g.name_len = (uint8_t)snprintf(g.name, sizeof(g.name), "s%u", i);
    g.endpoint_len = (uint8_t)snprintf(g.endpoint, sizeof(g.endpoint), "h:%u", i);
    return g;
}

static inline void mount(struct directory *d, uint32_t i, uint64_t size)
{
    struct segment_info g = described(i, size);
    struct mcfs_error err = MCFS_ERROR_INIT;
    bool gone;
    cr_assert_eq(directory_mount_segment(d, &g, &gone, &err), 0, "%s", err.msg);
}

static inline bool info_of(struct directory *d, uint32_t i, struct segment_info *out)
{
    struct segments *s = directory_segments(d);
    return segments_get(s, segments_find(s, (struct mcfs_id){7, i}), 0, out);
}

static inline uint64_t used(struct directory *d)
{
    struct segments_sum sum;
    segments_sum(directory_segments(d), &sum);
    return sum.used;
}

struct how {
    bool hard, soft, upsert;
    const char *group;
    uint32_t replicas;
    enum segment_strategy strategy;
};

static inline int begin(struct directory *d, const char *key, uint64_t size, struct how how,
                        uint64_t *version, struct memory_put *m)
{
    struct put_start p = {.tenant = mcfs_slice_str("t"),
                          .key = mcfs_slice_str(key),
                          .size = size,
                          .client = NODE,
                          .upsert = how.upsert,
                          .hard_pin = how.hard,
                          .has_soft_pin = how.soft,
                          .soft_pin_ms = SOFT_PIN_DEFAULT,
                          .has_group = how.group != NULL,
                          .group = mcfs_slice_str(how.group ? how.group : "")};
    struct mcfs_error err = MCFS_ERROR_INIT;
    *m = (struct memory_put){.replica_num = how.replicas ? how.replicas : 1,
                             .strategy = how.strategy};
    directory_put_start_memory(d, &p, m, version, &err);
    return err.code;
}

static inline int end(struct directory *d, const char *key, uint64_t version, uint64_t size)
{
    struct put_end e = {.tenant = mcfs_slice_str("t"),
                        .key = mcfs_slice_str(key),
                        .version = version,
                        .client = NODE,
                        .size = size};
    struct put_result out;
    struct mcfs_error err = MCFS_ERROR_INIT;
    directory_put_end(d, &e, &out, &err);
    return err.code;
}

static inline void put(struct directory *d, const char *key, uint64_t size, struct how how)
{
    struct memory_put m;
    uint64_t version;
    cr_assert_eq(begin(d, key, size, how, &version, &m), 0);
    cr_assert_eq(end(d, key, version, size), 0);
}

static inline bool look(struct directory *d, const char *key, struct object_view *v)
{
    return directory_get(d, mcfs_slice_str("t"), mcfs_slice_str(key), 0, v, NULL) == 0;
}

static inline bool there(struct directory *d, const char *key)
{
    struct object_view v;
    return look(d, key, &v);
}

static inline int drop(struct directory *d, const char *key, uint32_t client, bool force)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t removed;
    directory_remove(d, mcfs_slice_str("t"), mcfs_slice_str(key), 0, client, force, &removed, &err);
    return err.code;
}

#endif
