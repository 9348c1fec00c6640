/* SPDX-License-Identifier: Apache-2.0 */
/* The directory's half of a node's eviction: what may go, what may not, and what a node reports
 * that died in the middle. */
#include "master/directory.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define S(s) MCFS_SLICE_LITERAL(s)

static unsigned recalls[16]; /* by node */

static void on_recall(void *arg, uint32_t node, struct mcfs_slice t, struct mcfs_slice k,
                      uint64_t v)
{
    (void)arg, (void)t, (void)k, (void)v;
    recalls[node % 16]++;
}

static bool not_known(void *arg)
{
    (void)arg;
    return false;
}

static struct directory *make_with(bool leases_known)
{
    struct directory_config config = directory_alone("unix:/x");
    config.lease_ms = 60000;
    config.put_discard_ms = 30000;
    config.recall = on_recall;
    if (!leases_known)
        config.leases_known = not_known;
    struct directory *d = directory_new(&config, NULL);
    cr_assert_not_null(d);
    memset(recalls, 0, sizeof(recalls));
    for (uint64_t i = 1; i <= 3; i++)
        directory_client(d, (struct mcfs_id){i, i});
    return d;
}

static struct directory *make(void)
{
    return make_with(true);
}

/* Node 1 puts; returns the version. */
static uint64_t put(struct directory *d, const char *key, struct put_start start)
{
    uint64_t version;
    struct put_result out;
    start.tenant = TENANT;
    start.key = mcfs_slice_str(key);
    start.client = 1;
    start.upsert = true;
    cr_assert_eq(directory_put_start(d, &start, &version, NULL), 0);
    struct put_end e = {
        .tenant = TENANT, .key = start.key, .version = version, .client = 1, .size = 5};
    cr_assert_eq(directory_put_end(d, &e, &out, NULL), 0);
    return version;
}

static int evict(struct directory *d, const char *key, uint64_t version, uint32_t node, bool soft)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    int rc = directory_evict_disk(d, TENANT, mcfs_slice_str(key), version, node, soft, &err);
    cr_assert_eq(rc, err.code ? -1 : 0);
    cr_assert(!rc || err.msg[0]);
    return err.code;
}

/* Replicas of an object, or -1 when there is none. */
static int replicas(struct directory *d, const char *key)
{
    struct object_view v;
    return directory_get(d, TENANT, mcfs_slice_str(key), 0, &v, NULL) ? -1 : (int)v.replica_count;
}

static int report(struct directory *d, uint32_t node, const char *key, uint64_t version,
                  bool leaving)
{
    struct mcfs_object o = {
        .tenant = TENANT, .key = mcfs_slice_str(key), .version = version, .size = 5};
    uint8_t generation = directory_inventory_generation(d, node);
    return (leaving ? directory_inventory_leaving : directory_inventory_item)(d, node, generation,
                                                                              &o, NULL);
}

Test(evict, an_object_goes_with_its_only_replica_and_is_counted)
{
    struct directory *d = make();
    struct directory_stats s;
    uint64_t v = put(d, "a/b", (struct put_start){0});
    cr_assert_eq(evict(d, "a/b", v, 1, false), 0);
    cr_assert_eq(replicas(d, "a/b"), -1);
    cr_assert_not(directory_is_dir(d, TENANT, S("a"), &(int64_t){0}));
    directory_stats(d, &s);
    cr_assert_eq(s.evicted_replicas, 1);
    cr_assert_eq(s.evicted_bytes, 5);
    cr_assert_eq(s.objects, 0);
    cr_assert_eq(s.object_bytes, 0);
    cr_assert_eq(directory_node_objects(d, 1), 0);
    cr_assert_eq(evict(d, "a/b", v, 1, false), MCFS_REPLICA_IS_GONE, "asked again, it is gone");
    directory_free(d);
}

Test(evict, a_replica_goes_and_the_object_stays_with_another_node)
{
    struct directory *d = make();
    uint64_t v = put(d, "a", (struct put_start){0});
    for (uint32_t node = 2; node <= 3; node++) {
        directory_inventory_begin(d, node);
        cr_assert_eq(report(d, node, "a", v, false), 1);
    }
    cr_assert_eq(replicas(d, "a"), 3);
    cr_assert_eq(evict(d, "a", v, 2, false), MCFS_OBJECT_HAS_LEASE, "node 1's, as it has put it");
    directory_lease_returned(d, TENANT, S("a"), v, 1);
    cr_assert_eq(evict(d, "a", v, 2, false), 0); /* beside the inline one */
    cr_assert_eq(evict(d, "a", v, 1, false), 0); /* the inline one */
    struct object_view view;
    cr_assert_eq(directory_get(d, TENANT, S("a"), 0, &view, NULL), 0);
    unsigned complete = 0;
    for (uint32_t i = 0; i < view.replica_count; i++)
        complete += view.replicas[i].status == MCFS_REPLICA_COMPLETE && view.replicas[i].node == 3;
    cr_assert_eq(complete, 1);
    cr_assert_eq(directory_node_objects(d, 1) + directory_node_objects(d, 2), 0);
    cr_assert_eq(evict(d, "a", v, 2, false), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(evict(d, "a", v, 3, false), 0);
    cr_assert_eq(replicas(d, "a"), -1);
    directory_free(d);
}

Test(evict, versions_that_are_not_the_nodes_are_left_alone)
{
    struct directory *d = make();
    uint64_t old = put(d, "a", (struct put_start){0}), v = put(d, "a", (struct put_start){0});
    cr_assert_eq(evict(d, "a", old, 1, true), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(evict(d, "a", v + 100, 1, true), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(evict(d, "a", v, 2, true), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(evict(d, "b", v, 1, true), MCFS_REPLICA_IS_GONE);
    cr_assert_eq(replicas(d, "a"), 1);
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(directory_evict_disk(d, S("nobody"), S("a"), v, 1, true, &err), -1);
    cr_assert_eq(err.code, MCFS_REPLICA_IS_GONE);
    cr_assert_eq(directory_evict_disk(d, TENANT, S(""), v, 1, true, &err), -1);
    directory_free(d);
}

Test(evict, what_is_being_put_is_not_nobodys)
{
    struct directory *d = make();
    uint64_t version;
    struct put_start start = {.tenant = TENANT, .key = S("a"), .client = 1};
    cr_assert_eq(directory_put_start(d, &start, &version, NULL), 0);
    cr_assert_eq(evict(d, "a", version, 1, true), MCFS_OBJECT_REPLICA_BUSY);
    cr_assert_eq(evict(d, "a", version, 2, true), MCFS_REPLICA_IS_GONE);
    directory_free(d);
}

Test(evict, pins_hold)
{
    struct directory *d = make();
    uint64_t v = put(d, "a", (struct put_start){.hard_pin = true}), none = 0;
    cr_assert_eq(evict(d, "a", v, 1, true), MCFS_ILLEGAL_CLIENT);
    cr_assert_eq(replicas(d, "a"), 1);
    cr_assert_eq(directory_set_hard_pin(d, TENANT, S("a"), false, NULL), 0);
    cr_assert_eq(evict(d, "a", v, 1, false), 0);

    v = put(d, "b", (struct put_start){.has_soft_pin = true, .soft_pin_ms = 60000});
    cr_assert_eq(evict(d, "b", v, 1, false), MCFS_OBJECT_REPLICA_BUSY);
    cr_assert_eq(evict(d, "b", v, 1, true), 0, "when nothing else is left");
    v = put(d, "c", (struct put_start){.has_soft_pin = true, .soft_pin_ms = 60000});
    cr_assert_eq(directory_set_soft_pin(d, TENANT, S("c"), &none, NULL), 0);
    cr_assert_eq(evict(d, "c", v, 1, false), 0);
    v = put(d, "d", (struct put_start){.has_soft_pin = true, .soft_pin_ms = 20});
    usleep(50000);
    cr_assert_eq(evict(d, "d", v, 1, false), 0, "its time is over");
    directory_free(d);
}

Test(evict, leases_of_others_are_recalled_and_waited_for)
{
    struct directory *d = make();
    struct object_view view;
    uint64_t v = put(d, "a", (struct put_start){0});
    cr_assert_eq(directory_get(d, TENANT, S("a"), 1, &view, NULL), 0);
    cr_assert_eq(directory_get(d, TENANT, S("a"), 2, &view, NULL), 0);
    cr_assert_eq(evict(d, "a", v, 1, true), MCFS_OBJECT_HAS_LEASE);
    cr_assert_eq(evict(d, "a", v, 1, true), MCFS_OBJECT_HAS_LEASE);
    cr_assert_eq(recalls[1], 0, "its own is no hindrance");
    cr_assert_eq(recalls[2], 1, "once");
    cr_assert_eq(replicas(d, "a"), 1);
    directory_lease_returned(d, TENANT, S("a"), v, 2);
    directory_lease_returned(d, TENANT, S("a"), v, 3);
    cr_assert_eq(evict(d, "a", v, 1, true), 0);

    v = put(d, "b", (struct put_start){0});
    cr_assert_eq(directory_get(d, TENANT, S("b"), 1, &view, NULL), 0);
    cr_assert_gt(view.lease_ms, 0);
    cr_assert_eq(evict(d, "b", v, 1, false), 0, "its own lease");
    /* The slot is used again, and the old lease is not the new object's. */
    v = put(d, "c", (struct put_start){0});
    cr_assert_eq(evict(d, "c", v, 1, false), 0);
    directory_free(d);
}

Test(evict, a_groups_lease_holds_all_of_it)
{
    struct directory *d = make();
    struct object_view view;
    struct put_start group = {.has_group = true, .group = S("g")};
    uint64_t a = put(d, "a", group), b = put(d, "b", group);
    cr_assert_eq(directory_get(d, TENANT, S("a"), 2, &view, NULL), 0);
    cr_assert_eq(evict(d, "b", b, 1, false), MCFS_OBJECT_HAS_LEASE);
    cr_assert_eq(evict(d, "a", a, 1, false), MCFS_OBJECT_HAS_LEASE);
    directory_free(d);
}

Test(evict, a_new_master_waits_for_leases_it_does_not_know)
{
    struct directory *d = make_with(false);
    directory_inventory_begin(d, 1);
    cr_assert_eq(report(d, 1, "old", 77, false), 1);
    cr_assert_eq(evict(d, "old", 77, 1, true), MCFS_OBJECT_HAS_LEASE);
    uint64_t v = put(d, "new", (struct put_start){0});
    cr_assert_eq(evict(d, "new", v, 1, true), 0);
    directory_free(d);
}

Test(evict, what_a_dead_node_was_evicting_comes_back_only_when_it_may_not_go)
{
    struct directory *d = make();
    struct object_view view;
    uint64_t dropped;
    uint64_t plain = put(d, "plain", (struct put_start){0}),
             pinned = put(d, "pinned", (struct put_start){.hard_pin = true}),
             leased = put(d, "leased", (struct put_start){0});
    cr_assert_eq(directory_get(d, TENANT, S("leased"), 2, &view, NULL), 0);
    uint8_t generation = directory_inventory_begin(d, 1);
    cr_assert_eq(report(d, 1, "acknowledged", 5, true), 0, "the master does not know it any more");
    cr_assert_eq(report(d, 1, "plain", plain, true), 0);
    cr_assert_eq(report(d, 1, "pinned", pinned, true), 1);
    cr_assert_eq(report(d, 1, "leased", leased, true), 1);
    cr_assert_eq(report(d, 1, "pinned", pinned - 1, true), 0, "another version of it");
    directory_inventory_end(d, 1, generation, &dropped);
    cr_assert_eq(dropped, 1);
    cr_assert_eq(replicas(d, "acknowledged"), -1);
    cr_assert_eq(replicas(d, "plain"), -1);
    cr_assert_eq(replicas(d, "pinned"), 1);
    cr_assert_eq(replicas(d, "leased"), 1);
    directory_free(d);
}

static struct directory *shared;
static atomic_bool stop;

/* Looks up what is put and evicted all the time: found whole, or not at all. */
static void *look(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop))
        for (int i = 0; i < 20; i++) {
            char key[16];
            struct object_view v;
            snprintf(key, sizeof(key), "k%d", i);
            if (directory_get(shared, TENANT, mcfs_slice_str(key), 0, &v, NULL) == 0)
                cr_assert(v.size == 5 && v.replica_count == 1);
        }
    return NULL;
}

Test(evict, beside_look_ups_and_puts)
{
    shared = make();
    pthread_t thread;
    atomic_store(&stop, false);
    cr_assert_eq(pthread_create(&thread, NULL, look, NULL), 0);
    for (int i = 0; i < 4000; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i % 20);
        uint64_t v = put(shared, key, (struct put_start){0});
        cr_assert_eq(evict(shared, key, v, 1, false), 0);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    cr_assert_eq(directory_node_objects(shared, 1), 0);
    directory_free(shared);
}
