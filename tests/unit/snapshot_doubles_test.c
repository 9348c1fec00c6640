/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what is read of objects that a snapshot holds twice, or without their attributes. */
#include "common/hash.h"
#include "snapshot/frame.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char dir[64];
static struct mcfs_error err;
static struct mcfs_object_store *store;

static void setup(void)
{
    strcpy(dir, "/tmp/mcfs-snap-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    store = snap_store_local_open(dir, &err);
    cr_assert_not_null(store, "%s", err.msg);
}

static void teardown(void)
{
    char command[128];
    store->ops->close(store);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(snapshot_doubles, .init = setup, .fini = teardown, .timeout = 60);

/* One object, as often as it is said; its attributes can be left out. */
static void write_times(const char *id, int times, uint64_t size, bool attributes)
{
    struct snap_replica r = {.id = 1, .status = 3, .type = MCFS_REPLICA_LOCAL_DISK};
    struct snap_object o = {.tenant = mcfs_slice_str("default"),
                            .key = mcfs_slice_str("twice"),
                            .size = size,
                            .replica_count = 1,
                            .replicas = &r};
    struct snap_writer_config config = {.store = store, .cluster = "c", .id = id, .shard_count = 1};
    struct snap_writer *w = snap_writer_begin(&config, &err);
    struct snap_encoder *e = snap_encoder_new();
    struct mcfs_slice metadata, extra;
    struct mcfs_buf empty = MCFS_BUF_INIT;
    snap_encode_begin(e);
    for (int i = 0; i < times; i++, o.size++)
        snap_encode_object(e, &o, &err);
    snap_encode_end(e, &metadata, &extra, &err);
    cr_assert_eq(frame_pack(NULL, mcfs_slice("", 0), &empty, &err), 0);
    if (!attributes)
        extra = mcfs_slice(empty.data, empty.len);
    cr_assert_eq(snap_writer_shard(w, mcfs_shard_of(o.tenant, o.key), metadata, extra, &err), 0);
    cr_assert_eq(snap_writer_commit(w, &err), 0, "%s", err.msg);
    mcfs_buf_free(&empty);
    snap_encoder_free(e);
}

static int no_difference(const struct snap_difference *d, void *arg, struct mcfs_error *e)
{
    (void)arg;
    return mcfs_fail(e, MCFS_INTERNAL_ERROR, "change %d of %" PRIu64, d->change, d->new_size);
}

Test(snapshot_doubles, of_what_is_there_twice_the_first_counts)
{
    static const char *const ids[] = {"20260101_000000_000", "20260101_000000_001"};
    struct snap_reader *r[2];
    struct snap_diff_counts counts;
    for (int i = 0; i < 2; i++) {
        write_times(ids[i], 1 + 2 * i, 5, true);
        r[i] = snap_reader_open(store, "c", ids[i], &err);
        cr_assert_not_null(r[i], "%s", err.msg);
    }
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(snap_diff(r[i], r[!i], no_difference, NULL, NULL, &counts, &err), 0, "%s",
                     err.msg);
        cr_assert_eq(counts.same, 1u);
    }
    snap_reader_close(r[0]);
    snap_reader_close(r[1]);
}

Test(snapshot_doubles, attributes_that_are_missing_are_damage)
{
    static const char *const id = "20260101_000000_000";
    uint64_t objects;
    write_times(id, 1, 5, false);
    struct snap_reader *r = snap_reader_open(store, "c", id, &err);
    cr_assert_not_null(r, "%s", err.msg);
    cr_assert_eq(snap_reader_verify(r, &objects, &err), -1);
    cr_assert_not_null(strstr(err.msg, "mooncakefs"), "%s", err.msg);
    snap_reader_close(r);
}
