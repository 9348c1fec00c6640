/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory segments in random runs against a plain list: that no two replicas that live ever share a
 * byte, that none is lost, and that renames and exchanges take them along.
 */
#include "tests/unit/master_memory.h"

#include <stdlib.h>

#define KEYS 12
#define SEGMENTS 4
#define PENDING 10
#define EVER 4096

struct range {
    uint64_t from, to;
};

struct replicas {
    uint64_t version, size; /* version 0: none */
    uint32_t count;
    struct range v[SEGMENT_REPLICAS_MAX];
};

struct model {
    struct directory *d;
    unsigned seed;
    struct replicas objects[KEYS];
    struct {
        struct replicas r, lost; /* those in segments that are there, and that are gone */
        int key;
    } begun[PENDING];
    int begun_count;
    bool mounted[SEGMENTS];
    bool leased;             /* leases outlast the run: then nothing that was read comes again */
    struct range ever[EVER]; /* what is not to be handed out again in this run */
    int ever_count;
};

static int pick(struct model *m, int n)
{
    return (int)(rand_r(&m->seed) >> 8) % n;
}

static const char *name_of(int key)
{
    static char names[KEYS][16];
    snprintf(names[key], sizeof(names[key]), "d%d/k%d", key % 3, key);
    return names[key];
}

static void apart(const struct range *a, const struct range *b)
{
    cr_assert(a->from >= b->to || b->from >= a->to, "%lx-%lx and %lx-%lx", a->from, a->to, b->from,
              b->to);
}

static void apart_from_all(const struct model *m, const struct range *r)
{
    for (int k = 0; k < KEYS; k++)
        for (uint32_t i = 0; i < m->objects[k].count; i++)
            apart(r, &m->objects[k].v[i]);
    for (int k = 0; k < m->begun_count; k++)
        for (uint32_t i = 0; i < m->begun[k].r.count; i++)
            apart(r, &m->begun[k].r.v[i]);
    for (int k = 0; k < m->ever_count; k++)
        apart(r, &m->ever[k]);
}

/* The object is no more; with leases its place stays taken. */
static void retire(struct model *m, struct replicas *r)
{
    for (uint32_t i = 0; i < r->count && m->leased && m->ever_count < EVER; i++)
        m->ever[m->ever_count++] = r->v[i];
    *r = (struct replicas){0};
}

static void step_start(struct model *m)
{
    int key = pick(m, KEYS);
    uint64_t size = (uint64_t)pick(m, 300), version;
    struct memory_put p;
    struct how how = {.upsert = true, .replicas = 1 + (uint32_t)pick(m, 3), .strategy = pick(m, 2)};
    if (m->begun_count == PENDING)
        return;
    int code = begin(m->d, name_of(key), size, how, &version, &p);
    if (code) {
        cr_assert_eq(code, MCFS_NO_AVAILABLE_HANDLE);
        return;
    }
    struct replicas r = {.version = version, .size = size, .count = p.count};
    for (uint32_t i = 0; i < p.count; i++) {
        const struct segment_range *g = &p.replicas[i].range;
        r.v[i] = (struct range){g->address, g->address + (g->size ? g->size : 1)};
        uint64_t n = (g->address >> 32) - 1;
        cr_assert(n < SEGMENTS && m->mounted[n] && (r.v[i].to & UINT32_MAX) <= 2000);
        for (uint32_t k = 0; k < i; k++)
            apart(&r.v[i], &r.v[k]);
        apart_from_all(m, &r.v[i]);
    }
    m->begun[m->begun_count].lost = (struct replicas){0};
    m->begun[m->begun_count].key = key;
    m->begun[m->begun_count++].r = r;
}

static void step_end(struct model *m)
{
    if (!m->begun_count)
        return;
    int i = pick(m, m->begun_count), key = m->begun[i].key;
    struct replicas r = m->begun[i].r;
    int code = end(m->d, name_of(key), r.version, r.size);
    struct replicas *old = &m->objects[key];
    if (!r.count && (!old->version || old->version < r.version)) {
        cr_assert_eq(code, MCFS_SEGMENT_NOT_FOUND); /* all its segments are gone */
        cr_assert_eq(directory_put_revoke(m->d, r.version, NODE, NULL), 0);
    } else {
        cr_assert_eq(code, 0);
    }
    m->begun[i] = m->begun[--m->begun_count];
    if (code || (old->version && old->version > r.version))
        return;
    retire(m, old);
    *old = r;
}

static void step_revoke(struct model *m)
{
    if (!m->begun_count)
        return;
    int i = pick(m, m->begun_count);
    cr_assert_eq(directory_put_revoke(m->d, m->begun[i].r.version, NODE, NULL), 0);
    m->begun[i] = m->begun[--m->begun_count];
}

static void step_remove(struct model *m)
{
    int key = pick(m, KEYS);
    int code = drop(m->d, name_of(key), NODE, pick(m, 2));
    cr_assert_eq(code, m->objects[key].version ? 0 : MCFS_OBJECT_NOT_FOUND);
    retire(m, &m->objects[key]);
}

/* A put of nothing that names the version of what is renamed or exchanged. */
static uint64_t begin_move(struct model *m, int key)
{
    struct put_start p = {.tenant = mcfs_slice_str("t"),
                          .key = mcfs_slice_str(name_of(key)),
                          .client = NODE,
                          .upsert = true};
    uint64_t version;
    cr_assert_eq(directory_put_start(m->d, &p, &version, NULL), 0);
    return version;
}

static void step_rename(struct model *m)
{
    int to = pick(m, KEYS), from = pick(m, KEYS);
    struct replicas *old = &m->objects[to], *moved = &m->objects[from];
    if (to == from)
        return;
    struct put_end e = {.tenant = mcfs_slice_str("t"),
                        .key = mcfs_slice_str(name_of(to)),
                        .version = begin_move(m, to),
                        .client = NODE,
                        .size = moved->size,
                        .from = mcfs_slice_str(name_of(from)),
                        .from_version = moved->version ? moved->version : 1};
    struct put_result out;
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (moved->version && pick(m, 8) == 0) {
        e.size++;
        cr_assert_eq(directory_put_end(m->d, &e, &out, &err), -1);
        cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
        cr_assert_eq(directory_put_revoke(m->d, e.version, NODE, NULL), 0);
        return;
    }
    directory_put_end(m->d, &e, &out, &err);
    cr_assert_eq(err.code, moved->version ? 0 : MCFS_OBJECT_NOT_FOUND, "%s", err.msg);
    if (err.code) {
        cr_assert_eq(directory_put_revoke(m->d, e.version, NODE, NULL), 0);
        return;
    }
    cr_assert_eq(directory_put_end(m->d, &e, &out, NULL), 0); /* the answer was lost */
    retire(m, old);
    *old = *moved;
    old->version = e.version;
    *moved = (struct replicas){0};
}

static void step_exchange(struct model *m)
{
    int a = pick(m, KEYS), b = pick(m, KEYS);
    struct replicas *one = &m->objects[a], *two = &m->objects[b], was = *one;
    if (a == b || !one->version || !two->version)
        return;
    struct exchange x = {.tenant = mcfs_slice_str("t"),
                         .client = NODE,
                         .side = {{mcfs_slice_str(name_of(a)), one->version, begin_move(m, a)},
                                  {mcfs_slice_str(name_of(b)), two->version, begin_move(m, b)}}};
    uint32_t lease_ms;
    struct mcfs_error err = MCFS_ERROR_INIT;
    for (int again = 0; again < 2; again++)
        cr_assert_eq(directory_exchange(m->d, &x, &lease_ms, &err), 0, "%s", err.msg);
    *one = *two;
    *two = was;
    one->version = x.side[0].new_version;
    two->version = x.side[1].new_version;
}

static uint64_t segment_of(const struct range *r)
{
    return (r->from >> 32) - 1;
}

/* lost (or NULL) gets those that go. */
static void without(struct replicas *r, uint64_t segment, struct replicas *lost)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->count; i++)
        if (segment_of(&r->v[i]) != segment)
            r->v[kept++] = r->v[i];
        else if (lost)
            lost->v[lost->count++] = r->v[i];
    r->count = kept;
}

/* Where a put is under way that began in the segment as it was, nothing is put in the new one. */
static void keep_busy(struct model *m, uint64_t segment)
{
    for (int k = 0; k < m->begun_count; k++) {
        struct replicas busy = {0};
        without(&m->begun[k].lost, segment, &busy);
        for (uint32_t i = 0; i < busy.count && m->ever_count < EVER; i++)
            m->ever[m->ever_count++] = busy.v[i];
    }
}

static void step_mount(struct model *m)
{
    uint32_t i = (uint32_t)pick(m, SEGMENTS);
    if (!m->mounted[i]) {
        /* Where readers may know addresses nothing is allocated for now: elsewhere, then. */
        if (!m->leased) {
            mount(m->d, i, 2000);
            keep_busy(m, i);
        }
        m->mounted[i] = !m->leased;
        return;
    }
    if (pick(m, 3))
        return;
    segments_kill(directory_segments(m->d),
                  segments_find(directory_segments(m->d), (struct mcfs_id){7, i}));
    uint64_t expect = 0, gone;
    for (int k = 0; k < KEYS; k++) {
        struct replicas *r = &m->objects[k];
        without(r, i, NULL);
        if (r->version && !r->count) {
            expect++;
            *r = (struct replicas){0};
        }
    }
    for (int k = 0; k < m->begun_count; k++)
        without(&m->begun[k].r, i, &m->begun[k].lost);
    gone = directory_sweep_segments(m->d);
    cr_assert_eq(gone, expect);
    m->mounted[i] = false;
}

static void step_evict(struct model *m)
{
    struct evict_counts c;
    cr_assert_eq(directory_evict(m->d, 0.3, true, &c), 0);
    uint64_t gone = 0, objects = 0;
    for (int k = 0; k < KEYS; k++) {
        struct replicas *r = &m->objects[k];
        objects += r->version != 0;
        if (r->version && !there(m->d, name_of(k))) {
            gone++;
            *r = (struct replicas){0};
        }
    }
    cr_assert_eq(gone, c.objects);
    cr_assert_eq(gone, m->leased ? 0 : (objects * 3 + 9) / 10);
}

static void compare(struct model *m)
{
    uint64_t bytes = 0;
    for (int k = 0; k < KEYS; k++) {
        struct object_view v;
        const struct replicas *r = &m->objects[k];
        cr_assert_eq(look(m->d, name_of(k), &v), r->version != 0);
        if (!r->version)
            continue;
        cr_assert_eq(v.replica_count, r->count);
        cr_assert(v.version == r->version && v.size == r->size);
        for (uint32_t i = 0; i < r->count; i++) {
            cr_assert_eq(v.replicas[i].type, MCFS_REPLICA_MEMORY);
            cr_assert_eq(v.replicas[i].address, r->v[i].from);
            bytes += r->v[i].to - r->v[i].from;
        }
    }
    for (int k = 0; k < m->begun_count; k++)
        for (uint32_t i = 0; i < m->begun[k].r.count; i++)
            bytes += m->begun[k].r.v[i].to - m->begun[k].r.v[i].from;
    for (int k = 0; k < m->ever_count; k++)
        bytes += m->mounted[segment_of(&m->ever[k])] ? m->ever[k].to - m->ever[k].from : 0;
    if (!m->leased)
        cr_assert_eq(used(m->d), bytes);
}

static void run_model(bool leased, unsigned runs)
{
    struct model *m = calloc(1, sizeof(*m));
    for (unsigned run = 0; run < runs; run++) {
        struct directory *d = make(leased ? 3600000 : 0);
        *m = (struct model){.d = d, .seed = run * 7919 + 1, .leased = leased};
        for (uint32_t i = 0; i < SEGMENTS; i++) {
            mount(d, i, 2000);
            m->mounted[i] = true;
        }
        for (int step = 0; step < 300; step++) {
            static void (*const steps[])(struct model * m) = {
                step_start, step_start,  step_start,  step_end,    step_end,
                step_end,   step_revoke, step_remove, step_rename, step_exchange};
            int n = pick(m, 42);
            if (n < 40)
                steps[n % 10](m);
            else if (n == 40)
                step_evict(m);
            else
                step_mount(m);
            compare(m);
        }
        directory_free(d);
    }
    free(m);
}

Test(segments, no_two_that_live_share_a_byte)
{
    run_model(false, 60);
}

Test(segments, what_may_be_read_is_not_handed_out_again)
{
    run_model(true, 60);
}

/* ---- what goes along with a name, and what does not ---- */

static void inventory(struct directory *d, uint32_t node, const char *key, uint64_t version,
                      uint64_t size)
{
    struct mcfs_object o = {.tenant = mcfs_slice_str("t"),
                            .key = mcfs_slice_str(key),
                            .version = version,
                            .size = size};
    uint8_t generation = directory_inventory_begin(d, node);
    cr_assert_eq(directory_inventory_item(d, node, generation, &o, NULL), 1);
}

/* v: what there is under `from`. */
static int move_seen(struct directory *d, const char *key, const char *from, uint32_t client,
                     const struct object_view *v)
{
    struct put_start p = {.tenant = mcfs_slice_str("t"),
                          .key = mcfs_slice_str(key),
                          .client = client,
                          .upsert = true};
    struct put_end e = {.tenant = mcfs_slice_str("t"),
                        .key = mcfs_slice_str(key),
                        .client = client,
                        .size = v->size,
                        .from = mcfs_slice_str(from),
                        .from_version = v->version};
    struct put_result out;
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(directory_put_start(d, &p, &e.version, NULL), 0);
    directory_put_end(d, &e, &out, &err);
    return err.code;
}

static int move_to(struct directory *d, const char *key, const char *from, uint32_t client)
{
    struct object_view v;
    cr_assert(look(d, from, &v));
    return move_seen(d, key, from, client, &v);
}

Test(moves, a_rename_takes_memory_pins_and_group_along)
{
    struct directory *d = make(0);
    struct object_view before, after;
    struct tenant_usage usage;
    for (uint32_t i = 0; i < 3; i++)
        mount(d, i, 1 << 20);
    put(d, "from", 1000, (struct how){.hard = true, .soft = true, .group = "group", .replicas = 3});
    put(d, "to", 77, (struct how){.replicas = 2});
    cr_assert(look(d, "from", &before) && before.replica_count == 3);
    cr_assert_eq(move_to(d, "to", "from", NODE), 0);
    cr_assert(look(d, "to", &after) && !there(d, "from"));
    cr_assert(after.size == 1000 && after.hard_pin && after.soft_pin_ms && after.group_len == 5);
    cr_assert_eq(after.replica_count, 3);
    for (int i = 0; i < 3; i++)
        cr_assert(after.replicas[i].id == before.replicas[i].id &&
                  after.replicas[i].address == before.replicas[i].address &&
                  after.replicas[i].segment == before.replicas[i].segment);
    directory_tenant_usage(d, mcfs_slice_str("t"), &usage);
    cr_assert(usage.objects == 1 && usage.bytes == 1000 && usage.reserved_bytes == 0);
    cr_assert(used(d) == 3000 && directory_node_objects(d, NODE) == 0);
    cr_assert_eq(drop(d, "to", NODE, true), 0);
    cr_assert_eq(used(d), 0);
    directory_free(d);
}

Test(moves, a_range_is_held_for_the_leases_of_its_new_name)
{
    struct directory *d = make(3600000);
    mount(d, 0, 1 << 20);
    put(d, "from", 1000, (struct how){0});
    cr_assert_eq(move_to(d, "to", "from", NODE), 0);
    cr_assert_eq(used(d), 1000);
    cr_assert_eq(drop(d, "to", NODE, false), 0);
    cr_assert_eq(used(d), 1000, "the renamer may still be reading");
    directory_free(d);
}

Test(moves, replicas_in_stores_stay_only_at_who_renames)
{
    struct directory *d = make(0);
    struct object_view v;
    uint32_t other = directory_client(d, (struct mcfs_id){2, 2});
    mount(d, 0, 1 << 20);
    put(d, "k", 10, (struct how){0});
    cr_assert(look(d, "k", &v));
    inventory(d, NODE, "k", v.version, 10);
    inventory(d, other, "k", v.version, 10);
    cr_assert(look(d, "k", &v) && v.replica_count == 3);
    cr_assert_eq(move_to(d, "k2", "k", NODE), 0);
    cr_assert(look(d, "k2", &v) && v.replica_count == 2);
    cr_assert(directory_node_objects(d, NODE) == 1 && directory_node_objects(d, other) == 0);
    /* By somebody who has no store: what is in memory stays. */
    cr_assert_eq(move_to(d, "k3", "k2", other), 0);
    cr_assert(look(d, "k3", &v) && v.replica_count == 1);
    cr_assert_eq(v.replicas[0].type, MCFS_REPLICA_MEMORY);
    cr_assert(directory_node_objects(d, NODE) == 0 && directory_node_objects(d, other) == 0);
    directory_free(d);
}

Test(moves, what_is_in_a_segment_that_has_just_gone_is_left_behind)
{
    struct directory *d = make(0);
    struct object_view v, one;
    for (uint32_t i = 0; i < 2; i++)
        mount(d, i, 1 << 20);
    put(d, "both", 10, (struct how){.replicas = 2});
    put(d, "one", 10, (struct how){0});
    cr_assert(look(d, "one", &one));
    uint32_t gone = one.replicas[0].segment;
    segments_kill(directory_segments(d), gone); /* not swept yet */
    cr_assert_eq(move_to(d, "both2", "both", NODE), 0);
    cr_assert(look(d, "both2", &v) && v.replica_count == 1);
    cr_assert_neq(v.replicas[0].segment, gone);
    cr_assert_eq(move_seen(d, "one2", "one", NODE, &one), MCFS_SEGMENT_NOT_FOUND);
    cr_assert_eq(directory_sweep_segments(d), 1);
    cr_assert(there(d, "both2") && !there(d, "one") && !there(d, "one2"));
    cr_assert_eq(used(d), 10);
    directory_free(d);
}
