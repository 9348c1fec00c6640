/* SPDX-License-Identifier: Apache-2.0 */
/* What a node writes down of its evictions, and how it keeps look-ups of victims from being cached.
 */
#include "fs/node/evict_log.h"
#include "fs/node/known.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define S(s) MCFS_SLICE_LITERAL(s)

static char path[64];

static void setup(void)
{
    strcpy(path, "/tmp/mcfs-evict-log-XXXXXX");
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
}

static void teardown(void)
{
    unlink(path);
}

TestSuite(evict_log, .init = setup, .fini = teardown);

static struct evict_log *reopen(struct evict_log *l)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    evict_log_free(l);
    l = evict_log_open(path, &err);
    cr_assert_not_null(l, "%s", err.msg);
    return l;
}

static void append(struct evict_log *l, const char *key, uint64_t version)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    evict_record_put(&b, &(struct evict_name){TENANT, mcfs_slice_str(key), version});
    cr_assert_eq(evict_log_append(l, &b, NULL), 0);
    mcfs_buf_free(&b);
}

Test(evict_log, what_is_written_down_is_found_by_the_next_process)
{
    struct evict_log *l = reopen(NULL);
    for (uint64_t v = 100; v > 0; v--)
        append(l, v % 2 ? "odd" : "even", v);
    cr_assert_eq(evict_log_left(l), 0);
    cr_assert_not(evict_log_has(l, TENANT, S("odd"), 1), "this process knows what it does");
    l = reopen(l);
    cr_assert_eq(evict_log_left(l), 100);
    for (uint64_t v = 1; v <= 100; v++) {
        cr_assert(evict_log_has(l, TENANT, v % 2 ? S("odd") : S("even"), v));
        cr_assert_not(evict_log_has(l, TENANT, v % 2 ? S("even") : S("odd"), v));
    }
    cr_assert_not(evict_log_has(l, S("other"), S("odd"), 1));
    cr_assert_not(evict_log_has(l, TENANT, S("odd"), 101));
    cr_assert_eq(evict_log_clear(l, NULL), 0);
    cr_assert_not(evict_log_has(l, TENANT, S("odd"), 1));
    l = reopen(l);
    cr_assert_eq(evict_log_left(l), 0);
    evict_log_free(l);
}

Test(evict_log, the_end_that_is_not_whole_does_not_count)
{
    struct evict_log *l = reopen(NULL);
    append(l, "a", 1);
    uint64_t whole = evict_log_bytes(l);
    append(l, "b", 2);
    uint64_t all = evict_log_bytes(l);
    for (uint64_t len = all - 1; len >= whole; len--) {
        cr_assert_eq(truncate(path, (off_t)len), 0);
        l = reopen(l);
        cr_assert(evict_log_has(l, TENANT, S("a"), 1));
        cr_assert_not(evict_log_has(l, TENANT, S("b"), 2));
    }
    cr_assert_eq(truncate(path, 5), 0);
    l = reopen(l);
    cr_assert_eq(evict_log_left(l), 0);
    evict_log_free(l);
}

Test(evict_log, names_are_kept_as_they_were_until_it_is_cleared)
{
    struct evict_log *l = reopen(NULL);
    char key[] = "key";
    struct evict_name names[2] = {{TENANT, mcfs_slice_str(key), 7}, {TENANT, S(""), 3}};
    cr_assert_eq(evict_log_keep(l, names, 2), 0);
    key[0] = 'x';
    append(l, "more", 9);
    cr_assert(evict_log_has(l, TENANT, S("key"), 7));
    cr_assert(evict_log_has(l, TENANT, S(""), 3));
    cr_assert_not(evict_log_has(l, TENANT, S("more"), 9));
    cr_assert_eq(evict_log_left(l), 2);
    cr_assert_eq(evict_log_clear(l, NULL), 0);
    cr_assert_eq(evict_log_left(l), 0);
    evict_log_free(l);
}

static struct node_lease lease_of(struct known *k, const struct known_mark *mark)
{
    return known_lease(k, mark, TENANT, S("d/a"), 60000);
}

Test(known_block, nothing_is_leased_from_the_block_on_until_it_was_asked_for_after_it)
{
    struct known *k = known_new();
    struct known_mark before, within, after;
    struct mcfs_master_neighbour a = {.name = S("a"), .version = 5, .size = 7, .lease_ms = 60000};
    struct mcfs_master_object o;
    struct node_lease lease;
    known_begin(k, &before);
    known_add(k, &before, TENANT, S("d/"), &a);
    struct node_lease early = lease_of(k, &before);
    cr_assert(known_lease_holds(k, TENANT, S("d/a"), &early));

    known_block(k, TENANT, S("d/a"));
    cr_assert_not(known_lease_holds(k, TENANT, S("d/a"), &early));
    cr_assert_not(known_find(k, TENANT, S("d/a"), &o, &lease));
    known_begin(k, &within);
    known_add(k, &within, TENANT, S("d/"), &a);
    cr_assert_not(known_find(k, TENANT, S("d/a"), &o, &lease), "nor taken in");
    struct node_lease meanwhile = lease_of(k, &within);
    cr_assert_not(known_lease_holds(k, TENANT, S("d/a"), &meanwhile));
    known_block(k, TENANT, S("d/a")); /* two keys may share a stripe */
    known_unblock(k, TENANT, S("d/a"));
    cr_assert_not(known_lease_holds(k, TENANT, S("d/a"), &meanwhile));
    known_unblock(k, TENANT, S("d/a"));
    cr_assert_not(known_lease_holds(k, TENANT, S("d/a"), &meanwhile),
                  "the answer may be of before it went");
    known_add(k, &within, TENANT, S("d/"), &a);
    cr_assert_not(known_find(k, TENANT, S("d/a"), &o, &lease));

    known_begin(k, &after);
    struct node_lease late = lease_of(k, &after);
    cr_assert(known_lease_holds(k, TENANT, S("d/a"), &late));
    known_add(k, &after, TENANT, S("d/"), &a);
    cr_assert(known_find(k, TENANT, S("d/a"), &o, &lease));
    known_free(k);
}

/* What the master would say: the key is there until it is evicted. */
static struct known *shared;
static atomic_bool there, gone_for_good, stop;

static void *look(void *arg)
{
    (void)arg;
    while (!atomic_load(&stop)) {
        struct known_mark mark;
        known_begin(shared, &mark);
        bool found = atomic_load(&there); /* the answer, which may be under way for a while */
        sched_yield();
        bool gone = atomic_load(&gone_for_good);
        struct node_lease lease = lease_of(shared, &mark);
        bool cached = found && known_lease_holds(shared, TENANT, S("d/a"), &lease);
        cr_assert_not(gone && cached);
    }
    return NULL;
}

Test(known_block, look_ups_beside_an_eviction)
{
    pthread_t thread;
    shared = known_new();
    atomic_store(&stop, false);
    for (int i = 0; i < 200; i++) {
        atomic_store(&there, true);
        atomic_store(&gone_for_good, false);
        atomic_store(&stop, false);
        cr_assert_eq(pthread_create(&thread, NULL, look, NULL), 0);
        known_block(shared, TENANT, S("d/a"));
        atomic_store(&there, false);
        known_unblock(shared, TENANT, S("d/a"));
        atomic_store(&gone_for_good, true);
        usleep(200);
        atomic_store(&stop, true);
        pthread_join(thread, NULL);
    }
    known_free(shared);
}
