/* SPDX-License-Identifier: Apache-2.0 */
#include "common/file.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];

static void setup(void)
{
    strcpy(dir, "/tmp/mcfs-snap-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(snapshot, .init = setup, .fini = teardown, .timeout = 200);

static struct mcfs_object_store *open_store(const char *root)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_object_store *s = snap_store_local_open(root, &err);
    cr_assert_not_null(s, "%s", err.msg);
    return s;
}

/* ---- Mooncake's own ---- */

struct golden {
    json_t *by_name; /* "tenant\0key" as listed -> object */
    size_t seen;
};

static int check_golden(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct golden *g = arg;
    char name[8192];
    (void)err;
    snprintf(name, sizeof(name), "%.*s|%.*s", MCFS_SLICE_ARG(o->tenant), MCFS_SLICE_ARG(o->key));
    json_t *want = json_object_get(g->by_name, name);
    cr_assert_not_null(want, "%s", name);
    cr_assert_eq((double)o->size, json_number_value(json_object_get(want, "size")));
    cr_assert_eq(o->data_type, json_number_value(json_object_get(want, "data_type")));
    cr_assert_eq(o->hard_pin, json_is_true(json_object_get(want, "hard_pin")));
    cr_assert(mcfs_slice_eq(o->group,
                            mcfs_slice_str(json_string_value(json_object_get(want, "group_id")))));
    json_t *sum = json_object_get(want, "object_checksum");
    cr_assert_eq(o->has_checksum, sum != NULL);
    json_t *replicas = json_object_get(want, "replicas");
    /* The listing has those that a client was told of. */
    size_t i;
    json_t *r;
    json_array_foreach(replicas, i, r)
    {
        uint32_t k = 0;
        while (k < o->replica_count &&
               (double)o->replicas[k].id != json_number_value(json_object_get(r, "id")))
            k++;
        cr_assert_lt(k, o->replica_count);
        cr_assert_eq(o->replicas[k].status, json_number_value(json_object_get(r, "status")));
    }
    g->seen++;
    return 0;
}

Test(snapshot, golden_is_read_whole)
{
    struct mcfs_object_store *store = open_store(TEST_DATA_DIR "/snapshot");
    struct mcfs_error err = MCFS_ERROR_INIT;
    json_t *listing = json_load_file(TEST_DATA_DIR "/snapshot.json",
                                     JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL),
           *o;
    cr_assert_not_null(listing);
    struct golden g = {json_object(), 0};
    size_t i;
    json_array_foreach(json_object_get(listing, "objects"), i, o)
    {
        char name[8192];
        json_t *key = json_object_get(o, "key");
        snprintf(name, sizeof(name), "%s|%.*s", json_string_value(json_object_get(o, "tenant")),
                 (int)json_string_length(key), json_string_value(key));
        if (strcmp(json_string_value(json_object_get(o, "state")), "removed") == 0)
            continue;
        json_object_set(g.by_name, name, o);
    }
    char(*ids)[SNAP_ID_SIZE];
    size_t count;
    cr_assert_eq(snap_repo_candidates(store, "golden", &ids, &count, &err), 0);
    cr_assert_eq(count, 2u);
    struct snap_reader *r = snap_reader_open(store, "golden", ids[0], &err);
    cr_assert_not_null(r, "%s", err.msg);
    for (uint32_t p = 0; p < snap_reader_shards(r); p++)
        cr_assert_eq(snap_reader_shard(r, p, check_golden, &g, &err), 0, "%s", err.msg);
    cr_assert_eq(g.seen, json_object_size(g.by_name));
    struct mcfs_buf segments = MCFS_BUF_INIT, tasks = MCFS_BUF_INIT;
    cr_assert_eq(snap_reader_segments(r, &segments, &err), 0);
    cr_assert_eq(snap_reader_tasks(r, &tasks, &err), 0);
    mcfs_buf_free(&segments);
    mcfs_buf_free(&tasks);
    snap_reader_close(r);
    free(ids);
    json_decref(listing);
    json_decref(g.by_name);
    store->ops->close(store);
}

/* ---- ours ---- */

#define OBJECTS 200

static struct snap_replica replica_of(int i)
{
    return (struct snap_replica){.id = (uint64_t)i + 1,
                                 .status = MCFS_REPLICA_COMPLETE,
                                 .type = MCFS_REPLICA_LOCAL_DISK,
                                 .client = {(uint64_t)i % 3 + 1, 9},
                                 .endpoint = mcfs_slice_str("unix:/e"),
                                 .size = (uint64_t)i};
}

static struct snap_object object_of(int i, char key[32], const struct snap_replica *r)
{
    sprintf(key, "key-%05d", i);
    return (struct snap_object){.tenant = mcfs_slice_str(i % 2 ? "tenant-b" : "default"),
                                .key = mcfs_slice_str(key),
                                .put_client = {(uint64_t)i, 1},
                                .put_start_ms = 1700000000000 + i,
                                .size = (uint64_t)i,
                                .lease_ms = i,
                                .data_type = (uint8_t)(i % 10),
                                .hard_pin = i % 5 == 0,
                                .group = mcfs_slice_str(i % 7 ? "" : "group"),
                                .has_checksum = i % 4 == 0,
                                .checksum = (uint64_t)i * 12345,
                                .replica_count = 1,
                                .replicas = r,
                                .version = (uint64_t)i + 1,
                                .attr = {0600 + (uint32_t)i % 64, 1, 2, i}};
}

static int write_snapshot(struct mcfs_object_store *store, const char *id)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct snap_writer_config config = {.store = store,
                                        .cluster = "c",
                                        .id = id,
                                        .info = {.created_ms = 5, .replica_next_id = 1000},
                                        .shard_count = 2};
    struct snap_writer *w = snap_writer_begin(&config, &err);
    struct snap_encoder *e = snap_encoder_new();
    int rc = w ? 0 : -1;
    for (uint32_t shard = 0; rc == 0 && shard < 2; shard++) {
        struct mcfs_slice metadata, extra;
        snap_encode_begin(e);
        for (int i = (int)shard; i < OBJECTS; i += 2) {
            char key[32];
            struct snap_replica r = replica_of(i);
            struct snap_object o = object_of(i, key, &r);
            cr_assert_eq(snap_encode_object(e, &o, &err), 0);
        }
        cr_assert_eq(snap_encode_end(e, &metadata, &extra, &err), 0);
        rc = snap_writer_shard(w, shard * 7, metadata, extra, &err);
    }
    if (rc == 0)
        rc = snap_writer_commit(w, &err);
    snap_encoder_free(e);
    cr_assert_eq(rc, 0, "%s", err.msg);
    return rc;
}

static int check_ours(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    int i = atoi(o->key.data + 4);
    char key[32];
    struct snap_replica r = replica_of(i);
    struct snap_object want = object_of(i, key, &r);
    (void)err;
    ++*(int *)arg;
    cr_assert(mcfs_slice_eq(o->tenant, want.tenant) && mcfs_slice_eq(o->key, want.key));
    cr_assert(mcfs_id_eq(o->put_client, want.put_client) && o->put_start_ms == want.put_start_ms);
    cr_assert(o->size == want.size && o->lease_ms == want.lease_ms);
    cr_assert(o->data_type == want.data_type && o->hard_pin == want.hard_pin);
    cr_assert(mcfs_slice_eq(o->group, want.group) && o->has_checksum == want.has_checksum);
    cr_assert(!o->has_checksum || o->checksum == want.checksum);
    cr_assert(o->has_extra && o->version == want.version);
    cr_assert_eq(memcmp(&o->attr, &want.attr, sizeof(want.attr)), 0);
    cr_assert_eq(o->replica_count, 1u);
    cr_assert(o->replicas[0].id == r.id && mcfs_id_eq(o->replicas[0].client, r.client));
    return 0;
}

static int count_objects(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    (void)o;
    (void)err;
    ++*(int *)arg;
    return 0;
}

/* Reads everything; the number of objects, or -1. */
static int read_snapshot(struct mcfs_object_store *store, const char *id,
                         int (*fn)(const struct snap_object *, void *, struct mcfs_error *))
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct snap_reader *r = snap_reader_open(store, "c", id, &err);
    int n = 0;
    if (!r) {
        cr_assert_neq(err.msg[0], 0);
        return -1;
    }
    for (uint32_t p = 0; n >= 0 && p < snap_reader_shards(r); p++)
        if (snap_reader_shard(r, p, fn, &n, &err))
            n = -1;
    snap_reader_close(r);
    return n;
}

#define ID "20260102_030405_006"

Test(snapshot, what_is_written_is_read_back_equal)
{
    struct mcfs_object_store *store = open_store(dir);
    write_snapshot(store, ID);
    cr_assert_eq(read_snapshot(store, ID, check_ours), OBJECTS);
    store->ops->close(store);
}

Test(snapshot, a_cut_anywhere_is_an_error)
{
    struct mcfs_object_store *store = open_store(dir);
    static const char *const files[] = {"metadata", "mooncakefs", "manifest.txt", "descriptor.txt"};
    write_snapshot(store, ID);
    for (size_t f = 0; f < 4; f++) {
        char path[256], *data;
        snprintf(path, sizeof(path), "%s/mooncake_master_snapshot/c/%s/%s", dir, ID, files[f]);
        ssize_t len = mcfs_read_file_alloc(path, 1 << 20, &data, NULL);
        cr_assert_gt(len, 0);
        for (ssize_t cut = 0; cut < len; cut++) {
            /* A descriptor cut in its last number is a descriptor still. */
            if (f == 3 && cut >= len - 1)
                continue;
            if (f == 2 && cut > 18)
                continue; /* the id's text is not looked at */
            cr_assert_eq(truncate(path, cut), 0);
            cr_assert_eq(read_snapshot(store, ID, count_objects), -1, "%s cut at %zd", files[f],
                         cut);
            mcfs_write_file(path, data, (size_t)len, 0644, false, NULL);
        }
        free(data);
    }
    store->ops->close(store);
}

Test(snapshot, list_retention_and_latest)
{
    struct mcfs_object_store *store = open_store(dir);
    struct mcfs_error err = MCFS_ERROR_INIT;
    char ids[5][SNAP_ID_SIZE], (*candidates)[SNAP_ID_SIZE];
    struct snap_entry *list;
    size_t count;
    for (int i = 0; i < 5; i++) {
        cr_assert_eq(snap_repo_new_id(store, "c", ids[i], &err), 0);
        cr_assert(snap_id_is_valid(ids[i]));
        cr_assert(i == 0 || strcmp(ids[i], ids[i - 1]) > 0);
        write_snapshot(store, ids[i]);
    }
    cr_assert_eq(snap_repo_retain(store, "c", ids[4], 3, &err), 0);
    cr_assert_eq(snap_repo_list(store, "c", &list, &count, &err), 0);
    cr_assert_eq(count, 3u);
    for (size_t i = 0; i < 3; i++)
        cr_assert_str_eq(list[i].id, ids[4 - i]);
    free(list);
    /* Deleting the latest moves latest.txt to the next newest. */
    cr_assert_eq(snap_repo_delete(store, "c", ids[4], &err), 0);
    cr_assert_eq(snap_repo_candidates(store, "c", &candidates, &count, &err), 0);
    cr_assert_eq(count, 2u);
    cr_assert_str_eq(candidates[0], ids[3]);
    free(candidates);
    cr_assert_eq(snap_repo_delete(store, "c", "../../etc", &err), -1);
    store->ops->close(store);
}

Test(snapshot, names_do_not_leave_the_store)
{
    struct mcfs_object_store *store = open_store(dir);
    char buf[10];
    cr_assert_eq(store->ops->read(store, "../etc/passwd", 0, buf, 10, NULL), -1);
    cr_assert_eq(store->ops->read(store, "/etc/passwd", 0, buf, 10, NULL), -1);
    cr_assert_null(store->ops->put_begin(store, "a/../../b", NULL));
    store->ops->close(store);
}
