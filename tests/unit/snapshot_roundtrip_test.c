/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that random directories go through a snapshot unchanged, shard by shard and in parallel.
 */
#include "common/mp.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OBJECTS 3000
#define ID "20260102_030405_006"

static char dir[64];
static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* Small numbers as often as large ones. */
static uint64_t any_number(void)
{
    return draw(UINT64_MAX) >> draw(64);
}

static void setup(void)
{
    strcpy(dir, "/tmp/mcfs-snap-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    state = 0x9e3779b97f4a7c15;
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(snapshot_roundtrip, .init = setup, .fini = teardown, .timeout = 200);

static struct mcfs_slice any_bytes(size_t max)
{
    size_t len = draw(max + 1);
    char *p = malloc(len ? len : 1);
    for (size_t i = 0; i < len; i++)
        p[i] = draw(4) ? (char)('a' + draw(26)) : (char)draw(256);
    return mcfs_slice(p, len);
}

static struct mcfs_slice any_payload(uint8_t type)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    struct snap_memory m = {
        any_number(), any_number(), {any_number(), any_number()}, draw(2),
        any_number(), any_number(), (uint32_t)draw(UINT32_MAX),   (uint32_t)draw(UINT32_MAX)};
    struct snap_dfs f = {any_bytes(40), any_number(), any_number(), any_number(),
                         (int32_t)draw(UINT32_MAX)};
    struct snap_disk d = {any_bytes(40), any_number()};
    if (type == MCFS_REPLICA_MEMORY)
        snap_memory_encode(&m, &b);
    else if (type == MCFS_REPLICA_DISK)
        snap_disk_encode(&d, &b);
    else if (type == MCFS_REPLICA_DFS)
        snap_dfs_encode(&f, &b);
    else
        mp_put_nil(&b);
    free((char *)f.path.data);
    free((char *)d.path.data);
    return mcfs_slice(b.data, b.len);
}

static struct snap_replica *any_replicas(uint32_t n)
{
    static const uint8_t types[] = {0, 1, 2, 2, 2, 3, 100, 255};
    struct snap_replica *r = calloc(n + 1, sizeof(*r));
    for (uint32_t i = 0; i < n; i++) {
        r[i] = (struct snap_replica){.id = any_number(),
                                     .status = (int16_t)(draw(7) - 1),
                                     .type = types[draw(sizeof(types))]};
        if (r[i].type == MCFS_REPLICA_LOCAL_DISK) {
            r[i].client = (struct mcfs_id){any_number(), any_number()};
            r[i].endpoint = any_bytes(60);
            r[i].size = any_number();
        } else {
            r[i].payload = any_payload(r[i].type);
        }
    }
    return r;
}

static struct snap_object any_object(void)
{
    uint32_t n = (uint32_t)(draw(20) ? draw(4) : draw(40));
    return (struct snap_object){.tenant = any_bytes(20),
                                .key = any_bytes(draw(30) ? 100 : 3000),
                                .put_client = {any_number(), any_number()},
                                .put_start_ms = (int64_t)(any_number() >> 1),
                                .size = any_number(),
                                .lease_ms = (int64_t)any_number(),
                                .data_type = (uint8_t)draw(10),
                                .hard_pin = draw(2),
                                .has_checksum = draw(2),
                                .checksum = any_number(),
                                .group = draw(3) ? mcfs_slice(calloc(1, 1), 0) : any_bytes(300),
                                .replica_count = n,
                                .replicas = any_replicas(n),
                                .version = any_number(),
                                .attr = {(uint32_t)draw(010000), (uint32_t)draw(UINT32_MAX),
                                         (uint32_t)draw(UINT32_MAX), (int64_t)any_number()}};
}

static void object_free(struct snap_object *o)
{
    for (uint32_t i = 0; i < o->replica_count; i++) {
        free((char *)o->replicas[i].payload.data);
        free((char *)o->replicas[i].endpoint.data);
    }
    free((struct snap_replica *)o->replicas);
    free((char *)o->tenant.data);
    free((char *)o->key.data);
    free((char *)o->group.data);
}

static bool same_replica(const struct snap_replica *a, const struct snap_replica *b)
{
    if (a->id != b->id || a->status != b->status || a->type != b->type)
        return false;
    if (a->type == MCFS_REPLICA_LOCAL_DISK)
        return mcfs_id_eq(a->client, b->client) && a->size == b->size &&
               mcfs_slice_eq(a->endpoint, b->endpoint);
    return mcfs_slice_eq(a->payload, b->payload);
}

static bool same_object(const struct snap_object *a, const struct snap_object *b)
{
    bool same = mcfs_slice_eq(a->tenant, b->tenant) && mcfs_slice_eq(a->key, b->key) &&
                mcfs_id_eq(a->put_client, b->put_client) && a->put_start_ms == b->put_start_ms &&
                a->size == b->size && a->lease_ms == b->lease_ms && a->data_type == b->data_type &&
                a->hard_pin == b->hard_pin && a->has_checksum == b->has_checksum &&
                (!a->has_checksum || a->checksum == b->checksum) &&
                mcfs_slice_eq(a->group, b->group) && a->version == b->version &&
                a->attr.mode == b->attr.mode && a->attr.uid == b->attr.uid &&
                a->attr.gid == b->attr.gid && a->attr.mtime_ns == b->attr.mtime_ns &&
                a->replica_count == b->replica_count;
    for (uint32_t i = 0; same && i < a->replica_count; i++)
        same = same_replica(&a->replicas[i], &b->replicas[i]);
    return same;
}

/* ---- the directory: objects in shards by their place in the list ---- */

struct reading {
    struct snap_object *objects;
    struct snap_reader *reader;
    uint32_t shards;
};

struct walk {
    struct reading *r;
    uint32_t shard, at;
    bool same;
};

static uint32_t shard_of(uint32_t i, uint32_t shards)
{
    return i % shards * (MCFS_SHARD_COUNT / shards);
}

static int compare_next(const struct snap_object *o, void *arg, struct mcfs_error *e)
{
    struct walk *w = arg;
    (void)e;
    while (w->at < OBJECTS && shard_of(w->at, w->r->shards) != w->shard)
        w->at++;
    w->same &= w->at < OBJECTS && o->has_extra && same_object(o, &w->r->objects[w->at]);
    w->at++;
    return 0;
}

static void *read_all(void *arg)
{
    struct reading *r = arg;
    struct mcfs_error e = MCFS_ERROR_INIT;
    uintptr_t good = 1;
    for (uint32_t i = 0; i < r->shards; i++) {
        struct walk w = {r, shard_of(i, r->shards), 0, true};
        uint32_t place = snap_reader_place(r->reader, w.shard);
        good &= snap_reader_shard(r->reader, place, compare_next, &w, &e) == 0 && w.same;
    }
    return (void *)good;
}

static void write_all(struct mcfs_object_store *store, struct snap_object *objects, uint32_t shards)
{
    struct mcfs_error e = MCFS_ERROR_INIT;
    struct snap_node nodes[] = {
        {{1, 2}, mcfs_slice_str("node-a"), mcfs_slice_str("unix:/a"), 1ull << 40},
        {{3, 4}, mcfs_slice_str(""), mcfs_slice_str("tcp:b:1"), 0}};
    struct snap_writer_config config = {.store = store,
                                        .cluster = "c",
                                        .id = ID,
                                        .info = {7, 8, 1700000000000, UINT64_MAX},
                                        .shard_count = shards,
                                        .nodes = nodes,
                                        .node_count = 2};
    struct snap_writer *w = snap_writer_begin(&config, &e);
    struct snap_encoder *enc = snap_encoder_new();
    struct mcfs_slice metadata, extra;
    cr_assert_not_null(w, "%s", e.msg);
    for (uint32_t s = shards; s-- > 0;) { /* in any order */
        snap_encode_begin(enc);
        for (uint32_t i = 0; i < OBJECTS; i++)
            if (shard_of(i, shards) == shard_of(s, shards))
                cr_assert_eq(snap_encode_object(enc, &objects[i], &e), 0, "%s", e.msg);
        cr_assert_eq(snap_encode_end(enc, &metadata, &extra, &e), 0, "%s", e.msg);
        cr_assert_eq(snap_writer_shard(w, shard_of(s, shards), metadata, extra, &e), 0);
    }
    cr_assert_eq(snap_writer_shard(w, 5, metadata, extra, &e), -1, "one shard too many");
    cr_assert_eq(snap_writer_commit(w, &e), 0, "%s", e.msg);
    cr_assert_null(snap_writer_begin(&config, &e), "published already");
    cr_assert_eq(e.errnum, EEXIST);
    snap_encoder_free(enc);
}

static void go_round(struct snap_object *objects, uint32_t shards)
{
    struct mcfs_error e = MCFS_ERROR_INIT;
    struct mcfs_object_store *store = snap_store_local_open(dir, &e);
    write_all(store, objects, shards);
    struct reading r = {objects, snap_reader_open(store, "c", ID, &e), shards};
    cr_assert_not_null(r.reader, "%s", e.msg);
    cr_assert_eq(snap_reader_shards(r.reader), shards);
    cr_assert_eq(snap_reader_place(r.reader, 1023), UINT32_MAX);
    cr_assert_eq(snap_reader_info(r.reader)->replica_next_id, UINT64_MAX);
    cr_assert_eq(snap_reader_info(r.reader)->producer_view_version, 8u);
    uint32_t n;
    const struct snap_node *nodes = snap_reader_nodes(r.reader, &n);
    cr_assert(n == 2 && nodes[0].id.hi == 1 && nodes[0].capacity_bytes == 1ull << 40);
    cr_assert(mcfs_slice_eq(nodes[1].endpoint, mcfs_slice_str("tcp:b:1")));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, read_all, &r);
    for (int i = 0; i < 4; i++) {
        void *good;
        pthread_join(threads[i], &good);
        cr_assert_eq((uintptr_t)good, 1u);
    }
    uint64_t verified;
    cr_assert_eq(snap_reader_verify(r.reader, &verified, &e), 0, "%s", e.msg);
    cr_assert_eq(verified, (uint64_t)OBJECTS);
    snap_reader_close(r.reader);
    cr_assert_eq(snap_repo_delete(store, "c", ID, &e), 0, "%s", e.msg);
    store->ops->close(store);
}

Test(snapshot_roundtrip, random_directories)
{
    struct snap_object *objects = calloc(OBJECTS, sizeof(*objects));
    for (uint32_t i = 0; i < OBJECTS; i++)
        objects[i] = any_object();
    for (uint32_t shards = 1; shards <= 512; shards *= 8)
        go_round(objects, shards);
    for (uint32_t i = 0; i < OBJECTS; i++)
        object_free(&objects[i]);
    free(objects);
}

Test(snapshot_roundtrip, an_empty_directory)
{
    struct mcfs_error e = MCFS_ERROR_INIT;
    struct mcfs_object_store *store = snap_store_local_open(dir, &e);
    struct snap_writer_config config = {.store = store, .cluster = "", .id = ID};
    struct snap_writer *w = snap_writer_begin(&config, &e);
    uint64_t objects = 1;
    cr_assert_not_null(w, "%s", e.msg);
    cr_assert_eq(snap_writer_commit(w, &e), 0, "%s", e.msg);
    struct snap_reader *r = snap_reader_open_lazily(store, "", ID, &e);
    cr_assert_not_null(r, "%s", e.msg);
    cr_assert_eq(snap_reader_shards(r), 0u);
    cr_assert_eq(snap_reader_verify(r, &objects, &e), 0, "%s", e.msg);
    cr_assert_eq(objects, 0u);
    snap_reader_close(r);
    store->ops->close(store);
}
