/* SPDX-License-Identifier: Apache-2.0 */
/* The bucket store's entries: what is kept of keys and attributes, however they change. */
#include "backends/bucket/bucket_entry.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const struct mcfs_attr plain_attr = {0644, 0, 0, 0}, timed = {0600, 7, 8, -12345678901};

static void begin(void)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(entry_arena_init(&err), 0, "%s", err.msg);
    /* Their owners get numbers before there are none left, whatever the order of the tests. */
    entry_free(entry_new(MCFS_SLICE_LITERAL("x"), &plain_attr, false));
    entry_free(entry_new(MCFS_SLICE_LITERAL("x"), &timed, false));
}

TestSuite(entry, .init = begin);

/* One out of very many, so that its owner gets no number. */
static struct mcfs_attr unnumbered(void)
{
    struct mcfs_attr a = {0640, 0, 99, 5};
    for (a.uid = 1; a.uid < 400; a.uid++)
        entry_free(entry_new(MCFS_SLICE_LITERAL("x"), &a, false));
    return a;
}

static bool has_attr(const struct entry *e, const struct mcfs_attr *a)
{
    struct mcfs_attr b = entry_attr(e);
    return a->mode == b.mode && a->uid == b.uid && a->gid == b.gid && a->mtime_ns == b.mtime_ns;
}

static int set_key(struct entry *e, struct mcfs_slice key)
{
    struct mcfs_attr attr = entry_attr(e);
    struct entry_room room;
    if (entry_make_room(e, &attr, key.len, &room))
        return -1;
    entry_change(e, &attr, key, &room);
    return 0;
}

static bool has_key(const struct entry *e, struct mcfs_slice key)
{
    return mcfs_slice_eq(entry_key(e), key);
}

Test(entry, is_small)
{
    struct mcfs_slice key = MCFS_SLICE_LITERAL("default-a/key/of/thirty-bytes.");
    struct entry *e = entry_new(key, &plain_attr, false), *t = entry_new(key, &timed, false);
    cr_assert_eq(entry_memory(e), 80u); /* 50 and the key, in units of 8 */
    cr_assert_eq(entry_memory(t), 88u);
    entry_free(e);
    entry_free(t);
}

/* All that it can be made of, and all that it can become. */
Test(entry, keeps_key_and_attributes)
{
    static char longest[20000];
    memset(longest, 'k', sizeof(longest));
    static const size_t lengths[] = {0, 1, 2, 9, 30, 31, 200, 4096, 4500, 8191, 8192, 20000};
    const struct mcfs_attr attrs[] = {plain_attr, timed, unnumbered()};
    enum { LENGTHS = sizeof(lengths) / sizeof(*lengths), ALL = LENGTHS * 3 };
    for (int i = 0; i < ALL * ALL * 2; i++) {
        int from = i / 2 / ALL, to = i / 2 % ALL;
        struct mcfs_slice a = mcfs_slice(longest, lengths[from / 3]),
                          b = mcfs_slice(longest, lengths[to / 3]);
        struct entry *e = entry_new(a, &attrs[from % 3], i % 2);
        cr_assert(e);
        cr_assert_eq(entry_link(e) != NULL, i % 2);
        cr_assert(has_key(e, a) && has_attr(e, &attrs[from % 3]));
        entry_set_offset(e, ENTRY_PLACE_MAX);
        entry_set_size(e, 1234567890123);
        e->version = 3;
        cr_assert_eq(set_key(e, b), 0);
        cr_assert(has_key(e, b) && has_attr(e, &attrs[from % 3]));
        cr_assert_eq(entry_set_attr(e, &attrs[to % 3]), 0);
        cr_assert(has_key(e, b) && has_attr(e, &attrs[to % 3]));
        cr_assert_eq(entry_set_attr(e, &attrs[from % 3]), 0);
        cr_assert_eq(set_key(e, a), 0);
        cr_assert(has_key(e, a) && has_attr(e, &attrs[from % 3]));
        cr_assert_eq(entry_offset(e), ENTRY_PLACE_MAX);
        cr_assert_eq(entry_size(e), 1234567890123u);
        cr_assert_eq(entry_offset(e) + entry_size(e), ENTRY_PLACE_MAX + 1234567890123u);
        cr_assert_eq(e->version, 3u);
        entry_free(e);
    }
}

Test(entry, stays_as_it_is_when_room_is_not_used)
{
    struct mcfs_slice key = MCFS_SLICE_LITERAL("default-key");
    struct entry *e = entry_new(key, &plain_attr, false);
    struct entry_room room;
    uint64_t bytes = entry_memory(e);
    cr_assert_eq(entry_make_room(e, &timed, 500, &room), 0);
    entry_room_free(&room);
    cr_assert(has_key(e, key) && has_attr(e, &plain_attr));
    cr_assert_eq(entry_memory(e), bytes);
    entry_free(e);
}

Test(entry, tells_its_place_in_the_order_of_eviction)
{
    struct entry *e = entry_new(MCFS_SLICE_LITERAL("default-key"), &timed, true);
    cr_assert_eq(entry_of_link(entry_link(e)), e);
    cr_assert_not(entry_is_leaving(e));
    entry_link(e)->leaving = 1;
    cr_assert(entry_is_leaving(e));
    cr_assert_eq(entry_at(entry_number(e)), e);
    cr_assert_eq(e->bucket, 0u);
    cr_assert_null(entry_after(e));
    entry_free(e);
}

static void *make_owners(void *arg)
{
    uint32_t gid = (uint32_t)(uintptr_t)arg;
    for (uint32_t uid = 0; uid < 300; uid++) {
        struct mcfs_attr a = {0644, uid, gid, uid};
        struct entry *e = entry_new(MCFS_SLICE_LITERAL("default-key"), &a, false);
        cr_assert(has_attr(e, &a));
        entry_free(e);
    }
    return NULL;
}

Test(entry, numbers_owners_for_threads)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, make_owners, (void *)(i / 2)), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}
