/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is mounted again: what may still be written to or read there is not handed out. */
#include "tests/unit/master_memory.h"

#include <unistd.h>

static struct directory *make_releasing(uint32_t release_ms)
{
    struct directory_config config = directory_alone("n:1");
    config.lease_ms = 0;
    config.put_discard_ms = config.put_release_ms = release_ms;
    struct directory *d = directory_new(&config, NULL);
    cr_assert_not_null(d);
    cr_assert_eq(directory_client(d, (struct mcfs_id){1, 1}), NODE);
    return d;
}

static void unmount(struct directory *d, uint32_t i)
{
    segments_kill(directory_segments(d),
                  segments_find(directory_segments(d), (struct mcfs_id){7, i}));
    directory_sweep_segments(d);
}

/* Mounts segment i from `from` on within its place, as `node`; used bytes of it. */
static uint64_t mount_at(struct directory *d, uint32_t i, uint32_t node, uint64_t from,
                         uint64_t size)
{
    struct segment_info g = described(i, size), got;
    struct mcfs_error err = MCFS_ERROR_INIT;
    bool gone;
    g.base += from;
    g.node = node;
    cr_assert_eq(directory_mount_segment(d, &g, &gone, &err), 0, "%s", err.msg);
    cr_assert(info_of(d, i, &got));
    return got.used;
}

Test(again, ranges_of_puts_under_way_are_held_in_the_new_segment)
{
    struct directory *d = make_releasing(3600000);
    struct memory_put slow, m;
    uint64_t version, other;
    mount(d, 0, 1000);
    cr_assert_eq(begin(d, "slow", 400, (struct how){0}, &version, &slow), 0);
    cr_assert_eq(begin(d, "ended", 300, (struct how){0}, &other, &m), 0);
    cr_assert_eq(end(d, "ended", other, 300), 0);
    cr_assert_eq(begin(d, "revoked", 200, (struct how){0}, &other, &m), 0);
    cr_assert_eq(directory_put_revoke(d, other, NODE, NULL), 0);
    uint64_t at = slow.replicas[0].range.address - ((uint64_t)1 << 32);
    unmount(d, 0);
    /* Only where they overlap; at another node not at all. */
    uint32_t stranger = directory_client(d, (struct mcfs_id){2, 2});
    cr_assert_eq(mount_at(d, 0, stranger, 0, 1000), 0);
    unmount(d, 0);
    cr_assert_eq(mount_at(d, 0, NODE, at + 100, 1000), 300);
    unmount(d, 0);
    cr_assert_eq(mount_at(d, 0, NODE, at + 400, 1000), 0);
    unmount(d, 0);
    cr_assert_eq(mount_at(d, 0, NODE, 0, 1000), 400);
    /* The put is given up: its writer, who may not know, is still there. */
    cr_assert_eq(end(d, "slow", version, 400), MCFS_SEGMENT_NOT_FOUND);
    for (int i = 0; i < 600; i++) {
        char key[32];
        snprintf(key, sizeof(key), "k%d", i);
        cr_assert_eq(begin(d, key, 1, (struct how){0}, &other, &m), 0);
        uint64_t address = m.replicas[0].range.address - ((uint64_t)1 << 32);
        cr_assert(address < at || address >= at + 400);
    }
    cr_assert_eq(begin(d, "last", 1, (struct how){0}, &other, &m), MCFS_NO_AVAILABLE_HANDLE);
    directory_free(d);
}

Test(again, ranges_are_free_when_the_writers_time_is_over)
{
    struct directory *d = make_releasing(300);
    struct memory_put m;
    uint64_t version;
    mount(d, 0, 1000);
    cr_assert_eq(begin(d, "slow", 400, (struct how){0}, &version, &m), 0);
    for (int i = 0; i < 3; i++) { /* held by the put, then by the list as well */
        unmount(d, 0);
        uint64_t held = mount_at(d, 0, NODE, 0, 1000);
        cr_assert(held == 400 || held == 0); /* 0: the machine stood still for that long */
    }
    usleep(400000);
    segments_release_due(directory_segments(d));
    cr_assert_eq(used(d), 0);
    directory_discard_puts(d);
    unmount(d, 0);
    cr_assert_eq(mount_at(d, 0, NODE, 0, 1000), 0);
    directory_free(d);
}

Test(again, memory_in_units_of_more_than_a_byte)
{
    struct directory *d = make_releasing(3600000);
    struct memory_put m;
    uint64_t version, size = 1ull << 36; /* does not fit 32 bits: units of 16 bytes or more */
    mount(d, 40, size);
    for (int i = 0; i < 5; i++) {
        char key[32];
        snprintf(key, sizeof(key), "k%d", i);
        cr_assert_eq(begin(d, key, 33, (struct how){0}, &version, &m), 0);
    }
    uint64_t before = used(d);
    unmount(d, 40);
    cr_assert_eq(mount_at(d, 40, NODE, 0, size), before);
    unmount(d, 40);
    cr_assert(mount_at(d, 40, NODE, 7, size) >= 5 * 33 - 7);
    directory_free(d);
}

Test(again, a_segment_that_is_not_swept_yet_may_still_be_read)
{
    struct directory *d = make(3600000); /* PutEnd grants a lease */
    struct memory_put m;
    uint64_t version;
    mount(d, 0, 1000);
    put(d, "k", 1000, (struct how){0});
    segments_kill(directory_segments(d),
                  segments_find(directory_segments(d), (struct mcfs_id){7, 0}));
    mount(d, 0, 1000);
    cr_assert_eq(begin(d, "new", 10, (struct how){0}, &version, &m), MCFS_NO_AVAILABLE_HANDLE);
    directory_free(d);

    d = make(3600000); /* and here nobody has read */
    mount(d, 0, 1000);
    unmount(d, 0);
    mount(d, 0, 1000);
    cr_assert_eq(begin(d, "new", 10, (struct how){0}, &version, &m), 0);
    directory_free(d);
}
