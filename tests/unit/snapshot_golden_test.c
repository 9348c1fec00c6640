/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that everything in the snapshots that Mooncake wrote is understood, and that what is
 * encoded again is the same bytes. */
#include "common/id.h"
#include "common/mp.h"
#include "snapshot/frame.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>

static struct mcfs_object_store *store;
static struct snap_reader *reader;
static struct mcfs_error err;
static json_t *golden;

static void setup(void)
{
    char(*ids)[SNAP_ID_SIZE];
    size_t count;
    store = snap_store_local_open(TEST_DATA_DIR "/snapshot", &err);
    cr_assert_not_null(store, "%s", err.msg);
    cr_assert_eq(snap_repo_candidates(store, "golden", &ids, &count, &err), 0);
    cr_assert_eq(count, 2u);
    cr_assert_str_eq(ids[0], "20261201_065203_645");
    cr_assert_str_eq(ids[1], "20261201_065146_642");
    reader = snap_reader_open(store, "golden", ids[0], &err);
    cr_assert_not_null(reader, "%s", err.msg);
    free(ids);
    golden = json_load_file(TEST_DATA_DIR "/snapshot.json", JSON_ALLOW_NUL, NULL);
    if (!golden) /* checksums above 2^63 are more than JSON's integers hold here */
        golden = json_load_file(TEST_DATA_DIR "/snapshot.json",
                                JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
    cr_assert_not_null(golden);
}

static void teardown(void)
{
    snap_reader_close(reader);
    store->ops->close(store);
    json_decref(golden);
}

TestSuite(snapshot_golden, .init = setup, .fini = teardown, .timeout = 200);

static bool same_text(struct mcfs_slice s, const json_t *object, const char *field)
{
    const json_t *v = json_object_get(object, field);
    return v && mcfs_slice_eq(s, mcfs_slice(json_string_value(v), json_string_length(v)));
}

static bool same_id(struct mcfs_id id, const json_t *object, const char *field)
{
    char text[MCFS_ID_TEXT_MAX];
    return same_text(mcfs_slice_str(mcfs_id_format(id, text)), object, field);
}

static bool same_number(double v, const json_t *object, const char *field)
{
    return v == json_number_value(json_object_get(object, field));
}

static const json_t *find(const char *list, const char *field, double v)
{
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(golden, list), i, o)
    {
        if (same_number(v, o, field))
            return o;
    }
    return NULL;
}

/* ---- objects ---- */

static void check_replica(const struct snap_replica *r, const json_t *want)
{
    cr_assert(same_number((double)r->size, want, "size"));
    cr_assert(same_number(r->status, want, "status"));
    if (r->type == MCFS_REPLICA_LOCAL_DISK) {
        cr_assert_str_eq(json_string_value(json_object_get(want, "type")), "LOCAL_DISK");
        cr_assert(same_id(r->client, want, "client_id"));
        cr_assert(same_text(r->endpoint, want, "transport_endpoint"));
        return;
    }
    struct snap_memory m;
    cr_assert_eq(r->type, MCFS_REPLICA_MEMORY);
    cr_assert_str_eq(json_string_value(json_object_get(want, "type")), "MEMORY");
    cr_assert(snap_memory_decode(r->payload, &m));
    cr_assert(same_number((double)m.address, want, "address"));
    cr_assert_eq(m.size, r->size);
    cr_assert(m.has_handle);
    cr_assert_eq(m.real_base, m.address);
    /* The segment is the one whose endpoint the driver saw. */
    size_t i;
    json_t *s;
    bool found = false;
    json_array_foreach(json_object_get(golden, "segments"), i, s)
    {
        found |=
            same_id(m.segment, s, "id") && json_equal(json_object_get(s, "te_endpoint"),
                                                      json_object_get(want, "transport_endpoint"));
    }
    cr_assert(found);
    struct mcfs_buf again = MCFS_BUF_INIT;
    snap_memory_encode(&m, &again);
    cr_assert(mcfs_slice_eq(r->payload, mcfs_slice(again.data, again.len)));
    mcfs_buf_free(&again);
}

static int check_object(const struct snap_object *o, void *arg, struct mcfs_error *e)
{
    size_t i, matched = 0;
    json_t *want, *r;
    (void)e;
    json_array_foreach(json_object_get(golden, "objects"), i, want)
    {
        if (!same_text(o->key, want, "key") || !same_text(o->tenant, want, "tenant"))
            continue;
        const char *state = json_string_value(json_object_get(want, "state"));
        cr_assert(strcmp(state, "removed") != 0);
        cr_assert(same_id(o->put_client, want, "put_client_id"));
        cr_assert(same_number((double)o->size, want, "size"));
        cr_assert(same_number(o->data_type, want, "data_type"));
        cr_assert(same_text(o->group, want, "group_id"));
        cr_assert_eq(o->hard_pin, json_is_true(json_object_get(want, "hard_pin")));
        json_t *sum = json_object_get(want, "object_checksum");
        cr_assert_eq(o->has_checksum, sum != NULL);
        cr_assert(!sum || (double)o->checksum == json_number_value(sum));
        cr_assert_not(o->has_extra);
        cr_assert_eq(o->attr.mode, (uint32_t)MCFS_ATTR_DEFAULT_MODE);
        bool complete = strcmp(state, "processing") != 0;
        cr_assert_eq(o->lease_ms > 0, complete);
        json_t *replicas = json_object_get(want, "replicas");
        if (complete)
            cr_assert_eq(o->replica_count, json_array_size(replicas));
        for (uint32_t k = 0; k < o->replica_count; k++) {
            size_t j;
            cr_assert_eq(o->replicas[k].status == MCFS_REPLICA_COMPLETE, complete);
            json_array_foreach(replicas, j, r)
            {
                if (same_number((double)o->replicas[k].id, r, "id")) {
                    check_replica(&o->replicas[k], r);
                    matched++;
                }
            }
        }
        cr_assert_eq(matched, json_array_size(replicas));
        ++*(size_t *)arg;
        return 0;
    }
    cr_assert(false, "%.*s is not listed", MCFS_SLICE_ARG(o->key));
    return -1;
}

Test(snapshot_golden, every_object_and_replica)
{
    size_t seen = 0, i, expected = 0;
    json_t *o;
    for (uint32_t p = 0; p < snap_reader_shards(reader); p++)
        cr_assert_eq(snap_reader_shard(reader, p, check_object, &seen, &err), 0, "%s", err.msg);
    json_array_foreach(json_object_get(golden, "objects"), i, o)
    {
        expected += strcmp(json_string_value(json_object_get(o, "state")), "removed") != 0;
    }
    cr_assert_eq(seen, expected);
    cr_assert_eq(snap_reader_info(reader)->created_ms, 1796107923645);
    cr_assert_eq(snap_reader_info(reader)->replica_next_id, 1891u);
    cr_assert_not(snap_reader_has_extra(reader));
    uint64_t verified;
    cr_assert_eq(snap_reader_verify(reader, &verified, &err), 0, "%s", err.msg);
    cr_assert_eq(verified, expected);
}

static int encode_again(const struct snap_object *o, void *arg, struct mcfs_error *e)
{
    return snap_encode_object(arg, o, e);
}

/* The bytes of a file of the snapshot. */
static struct mcfs_buf load(const char *file)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    size_t cap = 1 << 20;
    ssize_t n = snap_repo_read(store, "golden", "20261201_065203_645", file, 0,
                               mcfs_buf_reserve(&b, cap), cap, &err);
    cr_assert_gt(n, 0, "%s", err.msg);
    b.len = (size_t)n;
    return b;
}

Test(snapshot_golden, shards_encode_to_the_same_bytes)
{
    struct mcfs_buf file = load("metadata");
    struct mp_reader p = mp_reader(file.data, file.len);
    struct snap_encoder *e = snap_encoder_new();
    struct mcfs_slice name, frame, metadata, extra;
    uint32_t n;
    uint64_t shard;
    cr_assert(mp_read_map(&p, &n) && mp_read_str(&p, &name) && mp_read_map(&p, &n));
    cr_assert_eq(n, snap_reader_shards(reader));
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_buf theirs = MCFS_BUF_INIT, ours = MCFS_BUF_INIT;
        cr_assert(mp_read_uint(&p, &shard) && mp_read_bin(&p, &frame));
        cr_assert_eq(snap_reader_place(reader, (uint32_t)shard), i);
        cr_assert_eq(frame_unpack(frame, &theirs, &err), 0, "%s", err.msg);
        snap_encode_begin(e);
        cr_assert_eq(snap_reader_shard(reader, i, encode_again, e, &err), 0, "%s", err.msg);
        cr_assert_eq(snap_encode_end(e, &metadata, &extra, &err), 0);
        cr_assert_eq(frame_unpack(metadata, &ours, &err), 0);
        cr_assert(
            mcfs_slice_eq(mcfs_slice(theirs.data, theirs.len), mcfs_slice(ours.data, ours.len)));
        mcfs_buf_free(&theirs);
        mcfs_buf_free(&ours);
    }
    snap_encoder_free(e);
    mcfs_buf_free(&file);
}

/* ---- discarded replicas ---- */

struct discarded_copy {
    struct snap_discarded v[16];
    uint32_t n;
    struct snap_replica replicas[16];
};

static int copy_discarded(const struct snap_discarded *d, void *arg, struct mcfs_error *e)
{
    struct discarded_copy *c = arg;
    (void)e;
    cr_assert_eq(d->replica_count, 1u);
    cr_assert_eq(d->replicas[0].size, d->bytes);
    cr_assert_eq(d->replicas[0].status, MCFS_REPLICA_PROCESSING);
    c->replicas[c->n] = d->replicas[0];
    c->v[c->n] = *d;
    c->v[c->n].replicas = &c->replicas[c->n];
    c->n++;
    return 0;
}

Test(snapshot_golden, discarded_replicas)
{
    struct discarded_copy c = {.n = 0};
    struct mcfs_slice content = snap_reader_discarded(reader);
    struct mcfs_buf again = MCFS_BUF_INIT;
    cr_assert_eq(snap_discarded_decode(content, copy_discarded, &c, &err), 0, "%s", err.msg);
    cr_assert_eq(c.n, 5u);
    cr_assert_eq(c.v[0].bytes, 10000u);
    cr_assert_eq(c.v[0].release_ms, 1796113900004);
    cr_assert_eq(c.replicas[4].id, 1865u);
    snap_discarded_encode(c.v, c.n, &again);
    cr_assert(mcfs_slice_eq(content, mcfs_slice(again.data, again.len)));
    mcfs_buf_free(&again);
}

/* ---- segments ---- */

/* The allocator's free lists and neighbours hang together as the offset allocator keeps them. */
static void check_allocator(const struct snap_allocator *a, struct mcfs_alloc_node *nodes,
                            uint32_t *free_nodes)
{
    uint64_t used_count = 0, used_size = 0, free_storage = 0;
    for (uint32_t bin = 0; bin < 256; bin++) {
        bool any = a->state.used_bins[bin >> 3] >> (bin & 7) & 1;
        cr_assert_eq(any, a->state.bin_heads[bin] != MCFS_ALLOC_NONE);
        for (uint32_t i = a->state.bin_heads[bin]; i != MCFS_ALLOC_NONE; i = nodes[i].bin_next) {
            cr_assert_not(nodes[i].used);
            free_storage += nodes[i].data_size;
        }
    }
    cr_assert_eq(free_storage, a->state.free_storage);
    for (uint32_t i = 0; i < a->state.current_capacity; i++) {
        used_count += nodes[i].used;
        used_size += nodes[i].used ? nodes[i].data_size : 0;
        cr_assert(i < a->state.free_offset || free_nodes[i] != MCFS_ALLOC_NONE);
    }
    cr_assert_eq(used_count, a->state.allocated_count);
    cr_assert_geq(used_size << a->state.multiplier_bits, a->state.allocated_size);
}

static int64_t listed_size(const struct snap_offload_task *t)
{
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(golden, "objects"), i, o)
    {
        if (same_text(t->key, o, "key") && same_text(t->tenant, o, "tenant"))
            return (int64_t)json_number_value(json_object_get(o, "size"));
    }
    return -1;
}

Test(snapshot_golden, segments)
{
    struct mcfs_buf content = MCFS_BUF_INIT, again = MCFS_BUF_INIT;
    cr_assert_eq(snap_reader_segments(reader, &content, &err), 0, "%s", err.msg);
    struct snap_segments *s = snap_segments_decode(mcfs_slice(content.data, content.len), &err);
    cr_assert_not_null(s, "%s", err.msg);
    cr_assert_eq(s->allocator_type, 1);
    cr_assert_eq(s->name_count, 2u);
    cr_assert_eq(s->segment_count, 2u);
    cr_assert_eq(s->client_count, 2u);
    cr_assert_eq(s->local_disk_count, 2u);
    uint64_t tasks = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const struct snap_segment *g = &s->segments[i];
        const json_t *want = find("segments", "base", (double)g->base);
        cr_assert_not_null(want);
        cr_assert(same_id(g->id, want, "id"));
        cr_assert(same_text(g->name, want, "name"));
        cr_assert(same_text(s->names[i], want, "name"));
        cr_assert(same_number((double)g->size, want, "size"));
        cr_assert(same_text(g->endpoint, want, "te_endpoint"));
        cr_assert(same_text(g->host, want, "host_id"));
        cr_assert_eq(g->status, 1);
        cr_assert(same_id(s->clients[i].client, want, "client_id"));
        cr_assert_eq(s->clients[i].count, 1u);
        cr_assert(mcfs_id_eq(s->clients[i].segments[0], g->id));
        cr_assert(same_id(s->local_disks[i].client, want, "client_id"));
        cr_assert(s->local_disks[i].enable_offloading);
        cr_assert(same_number((double)s->local_disks[i].capacity_bytes, want,
                              "ssd_total_capacity_bytes"));
        tasks += s->local_disks[i].task_count;
        for (uint32_t k = 0; k < s->local_disks[i].task_count; k++) {
            const struct snap_offload_task *t = &s->local_disks[i].tasks[k];
            cr_assert_eq(t->encoded_key.len, t->tenant.len + 1 + t->key.len);
            if (strncmp(t->key.data, "pending-offload-", 16) == 0)
                cr_assert_eq(t->size, 2048 + atoi(t->key.data + 16));
            else
                cr_assert_eq(t->size, listed_size(t));
        }
        struct snap_allocator a = *g->allocator;
        struct mcfs_alloc_node *nodes;
        uint32_t *free_nodes;
        struct mcfs_buf packed = MCFS_BUF_INIT;
        cr_assert_eq(snap_allocator_unpack(&a, &nodes, &free_nodes, &err), 0, "%s", err.msg);
        check_allocator(&a, nodes, free_nodes);
        /* Packed anew, it unpacks to the same. */
        cr_assert_eq(snap_allocator_pack(&a, nodes, free_nodes, &packed, &err), 0);
        struct mcfs_alloc_node *nodes2;
        uint32_t *free2;
        cr_assert_eq(snap_allocator_unpack(&a, &nodes2, &free2, &err), 0, "%s", err.msg);
        for (uint32_t k = 0; k < a.state.current_capacity; k++)
            cr_assert(nodes[k].data_offset == nodes2[k].data_offset &&
                      nodes[k].data_size == nodes2[k].data_size &&
                      nodes[k].used == nodes2[k].used && nodes[k].bin_next == nodes2[k].bin_next &&
                      nodes[k].bin_prev == nodes2[k].bin_prev &&
                      nodes[k].neighbour_next == nodes2[k].neighbour_next &&
                      nodes[k].neighbour_prev == nodes2[k].neighbour_prev &&
                      free_nodes[k] == free2[k]);
        free(nodes);
        free(nodes2);
        free(free_nodes);
        free(free2);
        mcfs_buf_free(&packed);
    }
    cr_assert_gt(tasks, 0u);
    cr_assert_eq(snap_segments_encode(s, &again, &err), 0);
    cr_assert(
        mcfs_slice_eq(mcfs_slice(content.data, content.len), mcfs_slice(again.data, again.len)));
    snap_segments_free(s);
    mcfs_buf_free(&content);
    mcfs_buf_free(&again);
}

/* ---- tasks ---- */

struct task_copy {
    struct snap_task v[16];
    uint32_t n;
};

static int copy_task(const struct snap_task *t, void *arg, struct mcfs_error *e)
{
    struct task_copy *c = arg;
    size_t i;
    json_t *want;
    (void)e;
    json_array_foreach(json_object_get(golden, "tasks"), i, want)
    {
        if (!same_text(t->id, want, "id"))
            continue;
        cr_assert(same_number(t->type, want, "type"));
        cr_assert(same_number(t->status, want, "status"));
        cr_assert(same_number((double)t->created_ms, want, "created_at_ms"));
        cr_assert(same_number((double)t->updated_ms, want, "last_updated_at_ms"));
        cr_assert(same_text(t->message, want, "message"));
        cr_assert(same_text(t->client, want, "assigned_client"));
        json_t *payload = json_loadb(t->payload.data, t->payload.len, 0, NULL);
        cr_assert(json_equal(json_object_get(payload, "key"), json_object_get(want, "key")));
        cr_assert(
            json_equal(json_object_get(payload, "tenant_id"), json_object_get(want, "tenant")));
        json_decref(payload);
        c->v[c->n++] = *t;
    }
    return 0;
}

Test(snapshot_golden, tasks)
{
    struct mcfs_buf content = MCFS_BUF_INIT, again = MCFS_BUF_INIT;
    struct task_copy c = {.n = 0};
    cr_assert_eq(snap_reader_tasks(reader, &content, &err), 0, "%s", err.msg);
    cr_assert_eq(snap_tasks_decode(mcfs_slice(content.data, content.len), copy_task, &c, &err), 0);
    cr_assert_eq(c.n, json_array_size(json_object_get(golden, "tasks")));
    snap_tasks_encode(c.v, c.n, &again);
    cr_assert(
        mcfs_slice_eq(mcfs_slice(content.data, content.len), mcfs_slice(again.data, again.len)));
    mcfs_buf_free(&content);
    mcfs_buf_free(&again);
}
