/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/known.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define DIR MCFS_SLICE_LITERAL("d/")

static struct mcfs_master_neighbour neighbour(const char *name, uint64_t version, uint32_t lease_ms)
{
    return (struct mcfs_master_neighbour){
        .name = mcfs_slice_str(name), .version = version, .size = 7, .lease_ms = lease_ms};
}

static bool find(struct known *k, const char *key, uint64_t *version, struct node_lease *lease)
{
    struct mcfs_master_object o = {0};
    bool found = known_find(k, TENANT, mcfs_slice_str(key), &o, lease);
    *version = o.version;
    return found;
}

/* What was described is found until it is forgotten or its lease has ended. */
Test(known, found_while_leased)
{
    struct known *k = known_new();
    struct known_mark mark;
    struct node_lease lease;
    uint64_t version;
    known_begin(k, &mark);
    struct mcfs_master_neighbour a = neighbour("a", 5, 60000), b = neighbour("b", 6, 0),
                                 c = neighbour("c", 7, 60000);
    known_add(k, &mark, TENANT, DIR, &a);
    known_add(k, &mark, TENANT, DIR, &b);
    cr_assert(find(k, "d/a", &version, &lease) && version == 5);
    cr_assert(known_lease_holds(k, TENANT, mcfs_slice_str("d/a"), &lease));
    cr_assert_not(find(k, "d/b", &version, &lease), "no lease, nothing to serve");
    cr_assert_not(find(k, "a", &version, &lease));
    known_forget(k, TENANT, mcfs_slice_str("d/a"));
    cr_assert_not(find(k, "d/a", &version, &lease));
    known_begin(k, &mark);
    mark.asked_ms -= 70000;
    known_add(k, &mark, TENANT, DIR, &c);
    cr_assert_not(find(k, "d/c", &version, &lease), "its lease ended ten seconds ago");
    known_free(k);
}

/* An answer that was under way while the key was recalled is not believed. */
Test(known, recalled_while_asking)
{
    struct known *k = known_new();
    struct known_mark mark;
    struct node_lease lease;
    uint64_t version;
    struct mcfs_slice key = mcfs_slice_str("d/a");
    struct mcfs_master_neighbour a = neighbour("a", 5, 60000);
    known_begin(k, &mark);
    known_forget(k, TENANT, key);
    known_add(k, &mark, TENANT, DIR, &a);
    cr_assert_not(find(k, "d/a", &version, &lease));
    lease = known_lease(k, &mark, TENANT, key, 60000);
    cr_assert_not(known_lease_holds(k, TENANT, key, &lease));
    known_begin(k, &mark);
    lease = known_lease(k, &mark, TENANT, key, 60000);
    known_add(k, &mark, TENANT, DIR, &a);
    cr_assert(known_lease_holds(k, TENANT, key, &lease));
    known_forget_all(k);
    cr_assert_not(known_lease_holds(k, TENANT, key, &lease));
    cr_assert_not(find(k, "d/a", &version, &lease));
    known_free(k);
}

/* Look-ahead grows while it is used, and stops where it is not, with a try now and then. */
Test(known, learns_how_far_to_look)
{
    struct known *k = known_new();
    struct known_mark mark;
    struct node_lease lease;
    uint64_t version;
    char name[32], key[32];
    uint32_t ahead = 0, next = 0;
    for (int round = 0; round < 12; round++) {
        ahead = known_ahead(k, TENANT, DIR);
        known_begin(k, &mark);
        for (uint32_t i = 0; i < ahead; i++, next++) {
            snprintf(name, sizeof(name), "%u", next);
            snprintf(key, sizeof(key), "d/%u", next);
            struct mcfs_master_neighbour n = neighbour(name, next + 1, 60000);
            known_add(k, &mark, TENANT, DIR, &n);
            cr_assert(find(k, key, &version, &lease) && version == next + 1);
        }
    }
    cr_assert_geq(ahead, 64);
    unsigned tries = 0;
    for (int round = 0; round < 200; round++) {
        ahead = known_ahead(k, TENANT, DIR);
        tries += ahead > 0;
        known_begin(k, &mark);
        for (uint32_t i = 0; i < ahead; i++, next++) {
            snprintf(name, sizeof(name), "%u", next);
            struct mcfs_master_neighbour n = neighbour(name, next + 1, 60000);
            known_add(k, &mark, TENANT, DIR, &n);
        }
    }
    cr_assert(tries > 4 && tries < 60, "%u tries", tries);
    known_free(k);
}

/* Thousands of names keep within the memory that there is for them. */
Test(known, is_bounded)
{
    struct known *k = known_new();
    struct known_mark mark;
    struct node_lease lease;
    char name[32], key[32];
    uint64_t version;
    known_begin(k, &mark);
    for (uint32_t i = 0; i < 100000; i++) {
        snprintf(name, sizeof(name), "%u", i);
        struct mcfs_master_neighbour n = neighbour(name, i + 1, 60000);
        known_add(k, &mark, TENANT, DIR, &n);
    }
    uint32_t found = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        snprintf(key, sizeof(key), "d/%u", i);
        found += find(k, key, &version, &lease) && version == i + 1;
    }
    cr_assert(found > 5000 && found <= 20000, "%u found", found);
    known_free(k);
}
