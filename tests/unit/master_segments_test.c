/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory segments: where replicas go, that no two that live ever share a byte (random runs against
 * a plain list, and many threads), what an eviction takes and in which order.
 */
#include "master/evict.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NODE 1

static struct directory *make(uint32_t lease_ms)
{
    struct directory_config config = directory_alone("n:1");
    config.lease_ms = lease_ms;
    config.soft_pin_ms = config.put_discard_ms = config.put_release_ms = 3600000;
    struct directory *d = directory_new(&config, NULL);
    cr_assert_not_null(d);
    cr_assert_eq(directory_client(d, (struct mcfs_id){1, 1}), NODE);
    return d;
}

static struct segment_info described(uint32_t i, uint64_t size)
{
    struct segment_info g = {
        .node = NODE, .id = {7, i}, .base = (uint64_t)(i + 1) << 32, .size = size};
    g.name_len = (uint8_t)snprintf(g.name, sizeof(g.name), "s%u", i);
    g.endpoint_len = (uint8_t)snprintf(g.endpoint, sizeof(g.endpoint), "h:%u", i);
    return g;
}

static void mount(struct directory *d, uint32_t i, uint64_t size)
{
    struct segment_info g = described(i, size);
    struct mcfs_error err = MCFS_ERROR_INIT;
    bool gone;
    cr_assert_eq(segments_mount(directory_segments(d), &g, 0, &gone, &err), 0, "%s", err.msg);
}

static bool info_of(struct directory *d, uint32_t i, struct segment_info *out)
{
    struct segments *s = directory_segments(d);
    return segments_get(s, segments_find(s, (struct mcfs_id){7, i}), 0, out);
}

static uint64_t used(struct directory *d)
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

static int begin(struct directory *d, const char *key, uint64_t size, struct how how,
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

static int end(struct directory *d, const char *key, uint64_t version, uint64_t size)
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

static void put(struct directory *d, const char *key, uint64_t size, struct how how)
{
    struct memory_put m;
    uint64_t version;
    cr_assert_eq(begin(d, key, size, how, &version, &m), 0);
    cr_assert_eq(end(d, key, version, size), 0);
}

static bool look(struct directory *d, const char *key, struct object_view *v)
{
    return directory_get(d, mcfs_slice_str("t"), mcfs_slice_str(key), 0, v, NULL) == 0;
}

static bool there(struct directory *d, const char *key)
{
    struct object_view v;
    return look(d, key, &v);
}

static int drop(struct directory *d, const char *key, uint32_t client, bool force)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t removed;
    directory_remove(d, mcfs_slice_str("t"), mcfs_slice_str(key), 0, client, force, &removed, &err);
    return err.code;
}

/* ---- strategies ---- */

Test(segments, random_reaches_every_segment)
{
    struct directory *d = make(0);
    char key[32];
    unsigned hits[8] = {0};
    for (uint32_t i = 0; i < 8; i++)
        mount(d, i, 1 << 20);
    for (int i = 0; i < 800; i++) {
        struct memory_put m;
        uint64_t version;
        snprintf(key, sizeof(key), "k%d", i);
        cr_assert_eq(begin(d, key, 10, (struct how){0}, &version, &m), 0);
        hits[(m.replicas[0].range.address >> 32) - 1]++;
    }
    for (int i = 0; i < 8; i++) /* 100 each on average: a deviation of 9 times its root */
        cr_assert(hits[i] > 10 && hits[i] < 190, "segment %d: %u of 800", i, hits[i]);
    directory_free(d);
}

Test(segments, free_ratio_first_fills_by_share)
{
    struct directory *d = make(0);
    char key[32];
    mount(d, 0, 1000);
    mount(d, 1, 10000);
    mount(d, 2, 100000);
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(d, key, 100, (struct how){.strategy = SEGMENT_FREE_RATIO_FIRST});
        double low = 1, high = 0;
        for (uint32_t k = 0; k < 3; k++) {
            struct segment_info g;
            cr_assert(info_of(d, k, &g));
            double ratio = 1 - (double)g.used / (double)g.size;
            low = ratio < low ? ratio : low;
            high = ratio > high ? ratio : high;
        }
        cr_assert(high - low <= 0.1001, "after %d: %f to %f", i, low, high);
    }
    directory_free(d);
}

Test(segments, replicas_lie_on_different_names)
{
    struct directory *d = make(0);
    struct segment_info g = described(3, 1 << 20);
    bool gone;
    for (uint32_t i = 0; i < 3; i++)
        mount(d, i, 1 << 20);
    memcpy(g.name, "s0", 2); /* a second one of the first's name */
    cr_assert_eq(segments_mount(directory_segments(d), &g, 0, &gone, NULL), 0);
    for (int i = 0; i < 100; i++)
        for (uint32_t n = 1; n <= 4; n++) {
            struct memory_put m;
            uint64_t version;
            char key[32];
            snprintf(key, sizeof(key), "k%d.%u", i, n);
            cr_assert_eq(
                begin(d, key, 10, (struct how){.replicas = n, .strategy = i % 2}, &version, &m), 0);
            cr_assert_eq(m.count, n < 3 ? n : 3);
            unsigned names = 0;
            for (uint32_t k = 0; k < m.count; k++)
                names |= 1u << ((m.replicas[k].range.address >> 32) - 1) % 3;
            cr_assert_eq(__builtin_popcount(names), (int)m.count);
        }
    directory_free(d);
}

/* ---- against a list ---- */

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
        struct replicas r;
        int key;
    } begun[PENDING];
    int begun_count;
    bool mounted[SEGMENTS];
    bool leased; /* leases outlast the run: then nothing that was read comes again */
    struct range ever[EVER];
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

static void without(struct replicas *r, uint64_t segment)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->count; i++)
        if ((r->v[i].from >> 32) - 1 != segment)
            r->v[kept++] = r->v[i];
    r->count = kept;
}

uint64_t directory_sweep_segments(struct directory *d);

static void step_mount(struct model *m)
{
    uint32_t i = (uint32_t)pick(m, SEGMENTS);
    if (!m->mounted[i]) {
        /* Where readers may know addresses nothing is allocated for now: elsewhere, then. */
        if (!m->leased)
            mount(m->d, i, 2000);
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
        without(r, i);
        if (r->version && !r->count) {
            expect++;
            *r = (struct replicas){0};
        }
    }
    for (int k = 0; k < m->begun_count; k++)
        without(&m->begun[k].r, i);
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
        for (uint32_t i = 0; i < r->count; i++) {
            cr_assert_eq(v.replicas[i].type, MCFS_REPLICA_MEMORY);
            cr_assert_eq(v.replicas[i].address, r->v[i].from);
            bytes += r->v[i].to - r->v[i].from;
        }
    }
    for (int k = 0; k < m->begun_count; k++)
        for (uint32_t i = 0; i < m->begun[k].r.count; i++)
            bytes += m->begun[k].r.v[i].to - m->begun[k].r.v[i].from;
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
            static void (*const steps[])(struct model * m) = {step_start,  step_start, step_start,
                                                              step_end,    step_end,   step_end,
                                                              step_revoke, step_remove};
            int n = pick(m, 40);
            if (n < 38)
                steps[n % 8](m);
            else if (n == 38)
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

/* ---- many threads ---- */

#define THREADS 4
#define ROUNDS 1500
#define UNITS (1 << 16) /* of one segment; a byte each says whose it is */

static atomic_uchar owners[SEGMENTS][UNITS];
static struct directory *shared;

/* Takes or gives back a range; whoever meets another's mark has been given a byte twice. */
static void mark(const struct segment_range *r, unsigned char from, unsigned char to)
{
    for (uint64_t i = 0; i < r->size; i++) {
        unsigned char want = from;
        atomic_uchar *byte = &owners[(r->address >> 32) - 1][(r->address & UINT32_MAX) + i];
        cr_assert(atomic_compare_exchange_strong(byte, &want, to), "byte is %u's", want);
    }
}

static void *putter_main(void *arg)
{
    unsigned number = (unsigned)(uintptr_t)arg, seed = number;
    for (int i = 0; i < ROUNDS; i++) {
        struct memory_put m;
        uint64_t version, size = 1 + (uint64_t)(rand_r(&seed) >> 8) % 100;
        char key[32];
        snprintf(key, sizeof(key), "t%u/k%d", number, (rand_r(&seed) >> 8) % 40);
        unsigned slot = directory_enter(shared);
        if (begin(shared, key, size, (struct how){.upsert = true, .replicas = 2}, &version, &m) ==
            0) {
            /* A put that is under way is nobody else's. */
            for (uint32_t k = 0; k < m.count; k++)
                mark(&m.replicas[k].range, 0, (unsigned char)(number + 1));
            for (uint32_t k = 0; k < m.count; k++)
                mark(&m.replicas[k].range, (unsigned char)(number + 1), 0);
            if (i % 4 == 0)
                directory_put_revoke(shared, version, NODE, NULL);
            else
                end(shared, key, version, size);
        }
        if (i % 5 == 0)
            drop(shared, key, NODE, true);
        directory_leave(shared, slot);
        if (number == 0 && i % 100 == 99) {
            struct evict_counts c;
            directory_evict(shared, 0.1, true, &c);
        }
        if (number == 1 && i % 300 == 299) {
            struct segments *s = directory_segments(shared);
            slot = directory_enter(shared);
            segments_kill(s, segments_find(s, (struct mcfs_id){7, 3}));
            directory_sweep_segments(shared);
            mount(shared, 3, UNITS);
            segments_release_due(s);
            directory_leave(shared, slot);
        }
    }
    return NULL;
}

Test(segments, many_threads)
{
    pthread_t threads[THREADS];
    shared = make(0);
    for (uint32_t i = 0; i < SEGMENTS; i++)
        mount(shared, i, i == 3 ? UNITS : 8192);
    for (unsigned i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, putter_main, (void *)(uintptr_t)i), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    /* Everything that is used is some object's, and once these have gone nothing is. */
    uint64_t bytes = 0;
    for (unsigned t = 0; t < THREADS; t++)
        for (int k = 0; k < 40; k++) {
            struct object_view v;
            char key[32];
            snprintf(key, sizeof(key), "t%u/k%d", t, k);
            if (!look(shared, key, &v))
                continue;
            for (uint32_t i = 0; i < v.replica_count; i++)
                bytes += v.replicas[i].size;
            drop(shared, key, NODE, true);
        }
    cr_assert_gt(bytes, 0);
    cr_assert_eq(used(shared), 0);
    directory_free(shared);
}

/* ---- eviction ---- */

static void evict(struct directory *d, double share, bool soft, uint64_t objects)
{
    struct evict_counts c;
    cr_assert_eq(directory_evict(d, share, soft, &c), 0);
    cr_assert_eq(c.objects, objects, "%lu", c.objects);
}

Test(evict, the_longest_unread_go_first)
{
    struct directory *d = make(0);
    struct object_view v;
    char key[32];
    mount(d, 0, 1 << 20);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(d, key, 10, (struct how){0});
        usleep(40000); /* more than a lease's unit of time */
    }
    /* A read makes the oldest the newest. */
    cr_assert_eq(directory_get(d, mcfs_slice_str("t"), mcfs_slice_str("k0"), NODE, &v, NULL), 0);
    evict(d, 0.3, true, 3);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        cr_assert_eq(there(d, key), i < 1 || i > 3, "%s", key);
    }
    cr_assert_eq(used(d), 70);
    evict(d, 1, true, 7);
    cr_assert_eq(used(d), 0);
    directory_free(d);
}

Test(evict, leased_and_hard_pinned_stay_and_soft_pins_go_last)
{
    struct directory *d = make(0);
    mount(d, 0, 1 << 20);
    put(d, "soft", 10, (struct how){.soft = true});
    put(d, "hard", 10, (struct how){.hard = true});
    usleep(40000);
    put(d, "plain", 10, (struct how){0});
    evict(d, 0.01, true, 1); /* the youngest, for it is not pinned */
    cr_assert(!there(d, "plain") && there(d, "soft") && there(d, "hard"));
    evict(d, 1, false, 0);
    evict(d, 1, true, 1);
    cr_assert(!there(d, "soft") && there(d, "hard"));
    directory_free(d);

    d = make(3600000); /* PutEnd grants the writer a lease */
    mount(d, 0, 1 << 20);
    put(d, "leased", 10, (struct how){0});
    evict(d, 1, true, 0);
    cr_assert(there(d, "leased"));
    directory_free(d);
}

Test(evict, groups_go_together)
{
    struct directory *d = make(0);
    char key[32];
    mount(d, 0, 1 << 20);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "g%d", i);
        put(d, key, 10, (struct how){.group = "group"});
    }
    usleep(40000);
    for (int i = 0; i < 10; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        put(d, key, 10, (struct how){0});
    }
    evict(d, 0.1, true, 10); /* two would do, and they are of the group */
    cr_assert(!there(d, "g0") && !there(d, "g9") && there(d, "k0") && there(d, "k9"));
    directory_free(d);

    d = make(0);
    mount(d, 0, 1 << 20);
    put(d, "g1", 10, (struct how){.group = "group"});
    put(d, "g2", 10, (struct how){.group = "group", .hard = true});
    evict(d, 1, true, 0); /* one that may not go holds the others */
    directory_free(d);
}

Test(evict, other_replicas_stay)
{
    struct directory *d = make(0);
    struct object_view v;
    mount(d, 0, 1 << 20);
    put(d, "k", 10, (struct how){0});
    cr_assert(look(d, "k", &v));
    struct mcfs_object o = {.tenant = mcfs_slice_str("t"),
                            .key = mcfs_slice_str("k"),
                            .version = v.version,
                            .size = 10};
    uint8_t generation = directory_inventory_begin(d, NODE);
    cr_assert_eq(directory_inventory_item(d, NODE, generation, &o, NULL), 1);
    cr_assert(look(d, "k", &v) && v.replica_count == 2);
    evict(d, 1, true, 1);
    cr_assert(look(d, "k", &v) && v.replica_count == 1);
    cr_assert_eq(v.replicas[0].type, MCFS_REPLICA_LOCAL_DISK);
    cr_assert_eq(used(d), 0);
    evict(d, 1, true, 0);
    directory_free(d);
}
