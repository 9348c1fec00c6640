/* SPDX-License-Identifier: Apache-2.0 */
/* Pins, groups, unfinished puts, and patterns over keys. */
#include "master/directory.h"
#include "master/pattern.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
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

static struct directory *make(uint32_t discard_ms, uint32_t release_ms)
{
    struct directory_config config = directory_alone("unix:/x");
    config.lease_ms = 60000;
    config.soft_pin_ms = 50000;
    config.put_discard_ms = discard_ms;
    config.put_release_ms = release_ms;
    config.recall = on_recall;
    struct directory *d = directory_new(&config, NULL);
    cr_assert_not_null(d);
    memset(recalls, 0, sizeof(recalls));
    directory_client(d, (struct mcfs_id){1, 1});
    directory_client(d, (struct mcfs_id){2, 2});
    directory_client(d, (struct mcfs_id){3, 3});
    return d;
}

static int end(struct directory *d, struct mcfs_slice key, uint64_t version, struct mcfs_error *err)
{
    struct put_result out;
    struct put_end e = {.tenant = TENANT, .key = key, .version = version, .client = 1, .size = 5};
    return directory_put_end(d, &e, &out, err);
}

static void put(struct directory *d, struct put_start start)
{
    uint64_t version;
    struct mcfs_error err = MCFS_ERROR_INIT;
    start.tenant = TENANT;
    start.client = 1;
    start.upsert = true;
    cr_assert_eq(directory_put_start(d, &start, &version, &err), 0, "%s", err.msg);
    cr_assert_eq(end(d, start.key, version, &err), 0, "%s", err.msg);
}

static struct object_view view(struct directory *d, struct mcfs_slice key, uint32_t node)
{
    struct object_view v;
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(directory_get(d, TENANT, key, node, &v, &err), 0, "%s", err.msg);
    return v;
}

static int removal(struct directory *d, struct mcfs_slice key, uint32_t client, bool force)
{
    uint64_t removed;
    struct mcfs_error err = MCFS_ERROR_INIT;
    directory_remove(d, TENANT, key, 0, client, force, &removed, &err);
    return err.code;
}

Test(semantics, a_put_says_pins_and_group_and_what_it_does_not_say_stays)
{
    struct directory *d = make(30000, 600000);
    put(d, (struct put_start){.key = S("a"),
                              .hard_pin = true,
                              .has_soft_pin = true,
                              .soft_pin_ms = SOFT_PIN_DEFAULT,
                              .has_group = true,
                              .group = S("prompt 1")});
    struct object_view v = view(d, S("a"), 0);
    cr_assert(v.hard_pin);
    cr_assert(v.soft_pin_ms > 40000 && v.soft_pin_ms <= 50000);
    cr_assert_eq(v.group_len, 8);
    cr_assert_eq(memcmp(v.group, "prompt 1", 8), 0);

    put(d, (struct put_start){.key = S("a")});
    v = view(d, S("a"), 0);
    cr_assert(v.hard_pin && v.soft_pin_ms && v.group_len == 8);
    put(d, (struct put_start){.key = S("a"), .has_soft_pin = true, .has_group = true});
    v = view(d, S("a"), 0);
    cr_assert(!v.soft_pin_ms && !v.group_len, "said: none");

    put(d, (struct put_start){.key = S("b")});
    v = view(d, S("b"), 0);
    cr_assert(!v.hard_pin && !v.soft_pin_ms && !v.group_len);
    directory_free(d);
}

Test(semantics, a_soft_pin_ends_with_its_time_and_does_not_pass_to_another_object)
{
    struct directory *d = make(30000, 600000);
    uint64_t ms = 30;
    put(d, (struct put_start){.key = S("a")});
    cr_assert_eq(directory_set_soft_pin(d, TENANT, S("a"), &ms, NULL), 0);
    cr_assert(view(d, S("a"), 0).soft_pin_ms > 0);
    usleep(60000);
    cr_assert_eq(view(d, S("a"), 0).soft_pin_ms, 0);
    ms = SOFT_PIN_DEFAULT;
    cr_assert_eq(directory_set_soft_pin(d, TENANT, S("a"), &ms, NULL), 0);
    cr_assert_eq(ms, 50000);
    cr_assert_eq(removal(d, S("a"), 1, false), 0);
    for (int i = 0; i < 300; i++) { /* some of them in the slot that was freed */
        char key[16];
        snprintf(key, sizeof(key), "n%d", i);
        put(d, (struct put_start){.key = mcfs_slice_str(key)});
        cr_assert_eq(view(d, mcfs_slice_str(key), 0).soft_pin_ms, 0);
    }
    ms = 0;
    cr_assert_neq(directory_set_soft_pin(d, TENANT, S("gone"), &ms, NULL), 0);
    ms = SOFT_PIN_MAX_MS + 1;
    cr_assert_neq(directory_set_soft_pin(d, TENANT, S("n1"), &ms, NULL), 0);
    directory_free(d);
}

Test(semantics, a_rename_takes_pins_and_group_along)
{
    struct directory *d = make(30000, 600000);
    put(d, (struct put_start){.key = S("from"),
                              .has_soft_pin = true,
                              .soft_pin_ms = 40000,
                              .has_group = true,
                              .group = S("g")});
    struct put_start start = {.tenant = TENANT, .key = S("to"), .client = 1, .upsert = true};
    struct put_result out;
    uint64_t version;
    cr_assert_eq(directory_put_start(d, &start, &version, NULL), 0);
    struct put_end e = {.tenant = TENANT,
                        .key = S("to"),
                        .version = version,
                        .client = 1,
                        .from = S("from"),
                        .from_version = view(d, S("from"), 0).version};
    cr_assert_eq(directory_put_end(d, &e, &out, NULL), 0);
    struct object_view v = view(d, S("to"), 0);
    cr_assert(v.soft_pin_ms > 0 && v.group_len == 1);
    directory_free(d);
}

Test(semantics, a_lease_on_one_of_a_group_is_one_on_all)
{
    struct directory *d = make(30000, 600000);
    const char *keys[] = {"g/1", "g/2", "g/3"};
    for (int i = 0; i < 3; i++)
        put(d,
            (struct put_start){.key = mcfs_slice_str(keys[i]), .has_group = true, .group = S("g")});
    put(d, (struct put_start){.key = S("other"), .has_group = true, .group = S("h")});
    view(d, S("g/1"), 2);
    /* What node 2 has not looked at is not removed before it has answered. */
    cr_assert_eq(removal(d, S("g/2"), 1, false), MCFS_OBJECT_HAS_LEASE);
    cr_assert_eq(recalls[2], 1);
    cr_assert_eq(removal(d, S("other"), 1, false), 0, "another group");
    uint64_t version = view(d, S("g/2"), 0).version;
    directory_lease_returned(d, TENANT, S("g/2"), version, 2);
    /* With the putter's own lease there are several holders, so everybody is asked. */
    cr_assert_eq(removal(d, S("g/2"), 1, false), MCFS_OBJECT_HAS_LEASE);
    directory_lease_returned(d, TENANT, S("g/2"), version, 3);
    /* Meanwhile others of the group are read again and again: the remover does not starve. */
    view(d, S("g/1"), 2);
    view(d, S("g/3"), 3);
    cr_assert_eq(removal(d, S("g/2"), 1, false), 0);
    /* Whose lease it is may change the group. */
    cr_assert_eq(removal(d, S("g/1"), 2, false), MCFS_OBJECT_HAS_LEASE, "node 3 has one, too");
    cr_assert_eq(removal(d, S("g/1"), 2, true), 0);
    directory_free(d);
}

Test(semantics, the_holder_of_a_groups_lease_changes_the_group)
{
    struct directory *d = make(30000, 600000);
    put(d, (struct put_start){.key = S("g/1"), .has_group = true, .group = S("g")});
    put(d, (struct put_start){.key = S("g/2"), .has_group = true, .group = S("g")});
    view(d, S("g/1"), 1);
    cr_assert_eq(removal(d, S("g/2"), 1, false), 0);
    directory_free(d);
}

Test(semantics, forced_removal_tells_the_holders_and_waits_for_nobody)
{
    struct directory *d = make(30000, 600000);
    put(d, (struct put_start){.key = S("a"), .hard_pin = true});
    view(d, S("a"), 2);
    cr_assert_eq(removal(d, S("a"), 1, false), MCFS_ILLEGAL_CLIENT);
    cr_assert_eq(recalls[2], 0);
    cr_assert_eq(removal(d, S("a"), 1, true), 0);
    cr_assert_eq(recalls[2], 1);
    directory_free(d);
}

Test(semantics, an_old_put_is_given_up_and_then_forgotten)
{
    struct directory *d = make(500, 1000);
    struct put_start first = {.tenant = TENANT, .key = S("a"), .client = 1}, second = first;
    struct directory_stats stats;
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint64_t slow, quick;
    second.client = 2;
    cr_assert_eq(directory_put_start(d, &first, &slow, NULL), 0);
    cr_assert_neq(directory_put_start(d, &second, &quick, &err), 0);
    cr_assert_eq(err.code, MCFS_OBJECT_ALREADY_EXISTS);
    usleep(550000);
    directory_discard_puts(d);
    directory_stats(d, &stats);
    cr_assert_eq(stats.pending_puts, 0);
    cr_assert_eq(stats.discarded_puts, 1);
    cr_assert_eq(directory_put_start(d, &second, &quick, NULL), 0);
    cr_assert_neq(end(d, S("a"), slow, &err), 0, "it was given up");
    cr_assert_eq(err.code, MCFS_OBJECT_NOT_FOUND);
    usleep(1100000);
    cr_assert_geq(directory_discard_puts(d), 1);
    directory_stats(d, &stats);
    cr_assert_eq(stats.discarded_puts + stats.pending_puts, 0);
    directory_free(d);
}

struct image {
    unsigned objects, in_group;
};

static int look(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct image *i = arg;
    (void)err;
    i->objects++;
    i->in_group += mcfs_slice_eq(o->group, S("g"));
    return 0;
}

Test(semantics, groups_are_in_the_image_and_come_back)
{
    struct directory *d = make(30000, 600000);
    struct image i = {0, 0};
    put(d, (struct put_start){.key = S("a"), .has_group = true, .group = S("g")});
    put(d, (struct put_start){.key = S("b")});
    for (uint32_t s = 0; s < MCFS_SHARD_COUNT; s++)
        cr_assert_eq(directory_visit_shard(d, s, look, &i, NULL), 0);
    cr_assert_eq(i.objects, 2);
    cr_assert_eq(i.in_group, 1);
    directory_free(d);
}

static int match(const char *pattern, const char *key, struct mcfs_error *err)
{
    struct pattern *p = pattern_new(mcfs_slice_str(pattern), err);
    int rc = p ? pattern_match(p, mcfs_slice_str(key), err) : -2;
    pattern_free(p);
    return rc;
}

Test(semantics, patterns)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(match("b", "abc", &err), 1);
    cr_assert_eq(match("^b", "abc", &err), 0);
    cr_assert_eq(match("^a.*(x|c)$", "abc", &err), 1);
    cr_assert_eq(match("[[:digit:]]{2}", "a12", &err), 1);
    cr_assert_eq(match("a.b$", "a\nb", &err), 1);
    cr_assert_eq(match("b$", "b\n", &err), 0);
    cr_assert_eq(match("(", "x", &err), -2);
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
    cr_assert_not_null(strstr(err.msg, "byte 1"));
    cr_assert_eq(match("", "x", &err), -2);
    char longer[PATTERN_MAX + 2];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    cr_assert_eq(match(longer, "x", &err), -2);
    /* What would take longer than the universe has been there is given up. */
    cr_assert_eq(
        match("^(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", &err), -1);
    cr_assert_eq(err.code, MCFS_INVALID_PARAMS);
    cr_assert_not_null(strstr(err.msg, "costs too much"));
}

/* Gives a and b each other's names, as client 1. */
static int exchange(struct directory *d, const uint64_t v[2], const uint64_t new_v[2])
{
    uint32_t lease_ms;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct exchange x = {.tenant = TENANT,
                         .client = 1,
                         .side = {{S("a"), v[0], new_v[0]}, {S("b"), v[1], new_v[1]}}};
    directory_exchange(d, &x, &lease_ms, &err);
    return err.code;
}

static uint64_t start_put(struct directory *d, struct mcfs_slice key)
{
    uint64_t version;
    struct put_start start = {.tenant = TENANT, .key = key, .client = 1, .upsert = true};
    cr_assert_eq(directory_put_start(d, &start, &version, NULL), 0);
    return version;
}

Test(semantics, an_exchange_swaps_content_pins_and_groups_in_one_step)
{
    struct directory *d = make(30000, 600000);
    put(d,
        (struct put_start){.key = S("a"), .hard_pin = true, .has_group = true, .group = S("ga")});
    put(d, (struct put_start){.key = S("b"), .has_soft_pin = true, .soft_pin_ms = 40000});
    uint64_t v[2] = {view(d, S("a"), 1).version, view(d, S("b"), 1).version};
    uint64_t new_v[2] = {start_put(d, S("a")), start_put(d, S("b"))};
    uint64_t stale[2] = {v[0] + 1, v[1]}, unknown[2] = {new_v[0], new_v[1] + 1000};
    cr_assert_eq(exchange(d, stale, new_v), MCFS_OBJECT_NOT_FOUND);
    cr_assert_eq(exchange(d, v, unknown), MCFS_OBJECT_NOT_FOUND);

    view(d, S("b"), 2); /* leased by another node: asked, and waited for */
    cr_assert_eq(exchange(d, v, new_v), MCFS_OBJECT_HAS_LEASE);
    cr_assert(recalls[2] == 1 && recalls[3] == 1); /* several hold it: whoever may is asked */
    directory_lease_returned(d, TENANT, S("b"), v[1], 2);
    cr_assert_eq(exchange(d, v, new_v), MCFS_OBJECT_HAS_LEASE);
    directory_lease_returned(d, TENANT, S("b"), v[1], 3);
    for (int again = 0; again < 2; again++) { /* the answer may have been lost */
        cr_assert_eq(exchange(d, v, new_v), MCFS_OK);
        struct object_view a = view(d, S("a"), 1), b = view(d, S("b"), 1);
        cr_assert(a.version == new_v[0] && b.version == new_v[1]);
        cr_assert(!a.hard_pin && b.hard_pin);
        cr_assert(a.soft_pin_ms > 30000 && b.soft_pin_ms == 0);
        cr_assert(a.group_len == 0 && b.group_len == 2 && memcmp(b.group, "ga", 2) == 0);
    }
    cr_assert_eq(removal(d, S("b"), 1, false), MCFS_ILLEGAL_CLIENT);
    cr_assert_eq(removal(d, S("a"), 1, false), MCFS_OK);
    cr_assert_eq(exchange(d, new_v, v), MCFS_OBJECT_NOT_FOUND);
    directory_free(d);
}
