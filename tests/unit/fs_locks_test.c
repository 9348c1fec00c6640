/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/locks.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#define TENANT MCFS_SLICE_LITERAL("default")
#define KEY(s) mcfs_slice_str(s)

struct asked {
    struct lock_wait wait;
    int told; /* -1: not yet */
};

static void tell(struct lock_wait *w, int errnum)
{
    ((struct asked *)w)->told = errnum;
}

static int ask(struct lock_file *f, struct asked *a, enum lock_kind kind, short type,
               uint64_t start, uint64_t end, uint64_t owner, bool sleep)
{
    *a = (struct asked){
        .wait = {.want = {kind, type, start, end, owner, NULL, (pid_t)owner}, .done = tell},
        .told = -1};
    return locks_set(f, &a->wait, sleep);
}

static int posix(struct lock_file *f, short type, uint64_t start, uint64_t end, uint64_t owner)
{
    struct asked a;
    return ask(f, &a, LOCK_KIND_POSIX, type, start, end, owner, false);
}

/* Ranges are split, merged and changed as an array with one entry for each byte says. */
Test(locks, random_against_bytes)
{
    enum { BYTES = 40, OWNERS = 4 };
    short bytes[OWNERS][BYTES];
    struct locks *l = locks_new();
    struct lock_file *f = lock_file_get(l, TENANT, KEY("k"), true);
    for (int o = 0; o < OWNERS; o++)
        for (int b = 0; b < BYTES; b++)
            bytes[o][b] = F_UNLCK;
    srand(7);
    for (int round = 0; round < 100000; round++) {
        static const short types[] = {F_RDLCK, F_WRLCK, F_UNLCK};
        int start = rand() % BYTES, end = start + rand() % (BYTES - start), o = rand() % OWNERS;
        short type = types[rand() % 3];
        bool blocked = false;
        for (int other = 0; other < OWNERS; other++)
            for (int b = start; b <= end; b++)
                blocked |= other != o && type != F_UNLCK && bytes[other][b] != F_UNLCK &&
                           (type == F_WRLCK || bytes[other][b] == F_WRLCK);
        /* The last byte stands for all that follow. */
        uint64_t last = end == BYTES - 1 ? UINT64_MAX : (uint64_t)end;
        struct lock_range r = {LOCK_KIND_POSIX, type, (uint64_t)start, last, (uint64_t)o, NULL, 0};
        if (type != F_UNLCK) {
            locks_test(f, &r);
            cr_assert_eq(r.type != F_UNLCK, blocked);
        }
        cr_assert_eq(posix(f, type, (uint64_t)start, last, (uint64_t)o), blocked ? EAGAIN : 0);
        for (int b = start; b <= end && !blocked; b++)
            bytes[o][b] = type;
        if (round % 50 == 0) {
            locks_drop_owner(f, LOCK_KIND_POSIX, (uint64_t)o);
            for (int b = 0; b < BYTES; b++)
                bytes[o][b] = F_UNLCK;
        }
    }
    lock_file_unref(f);
    locks_free(l);
}

Test(locks, waits_are_granted_in_order)
{
    struct locks *l = locks_new();
    struct lock_file *f = lock_file_get(l, TENANT, KEY("k"), true);
    struct asked a, b, c;
    cr_assert_eq(ask(f, &a, LOCK_KIND_FLOCK, F_WRLCK, 0, UINT64_MAX, 1, true), 0);
    cr_assert_eq(ask(f, &b, LOCK_KIND_FLOCK, F_WRLCK, 0, UINT64_MAX, 2, true), EINPROGRESS);
    cr_assert_eq(ask(f, &c, LOCK_KIND_FLOCK, F_WRLCK, 0, UINT64_MAX, 3, true), EINPROGRESS);
    /* fcntl's locks are others. */
    cr_assert_eq(posix(f, F_WRLCK, 0, 9, 4), 0);
    locks_drop_owner(f, LOCK_KIND_FLOCK, 1);
    cr_assert_eq(b.told, 0);
    cr_assert_eq(c.told, -1);
    cr_assert(locks_cancel(l, &c.wait));
    cr_assert_not(locks_cancel(l, &c.wait));
    locks_drop_owner(f, LOCK_KIND_FLOCK, 2);
    cr_assert_eq(c.told, -1);
    /* An interrupt may come before the request is queued. */
    struct asked d = {.wait = {.want = a.wait.want, .done = tell}};
    cr_assert_not(locks_cancel(l, &d.wait));
    cr_assert_eq(locks_set(f, &d.wait, true), EINTR);
    cr_assert_eq(ask(f, &a, LOCK_KIND_FLOCK, F_RDLCK, 0, UINT64_MAX, 5, false), 0);
    cr_assert_eq(ask(f, &b, LOCK_KIND_FLOCK, F_WRLCK, 0, UINT64_MAX, 6, true), EINPROGRESS);
    locks_end_waits(l);
    cr_assert_eq(b.told, EINTR);
    lock_file_unref(f);
    locks_free(l);
}

/* A circle of waits is refused to the one who would close it, over any number of files. */
Test(locks, deadlock)
{
    struct locks *l = locks_new();
    struct lock_file *f[3];
    struct asked w[3];
    for (uint64_t i = 0; i < 3; i++) {
        f[i] = lock_file_get(l, TENANT, KEY(i == 0 ? "a" : i == 1 ? "b" : "c"), true);
        cr_assert_eq(posix(f[i], F_WRLCK, 0, 9, i), 0);
    }
    cr_assert_eq(ask(f[1], &w[0], LOCK_KIND_POSIX, F_WRLCK, 5, 5, 0, true), EINPROGRESS);
    cr_assert_eq(ask(f[2], &w[1], LOCK_KIND_POSIX, F_WRLCK, 5, 5, 1, true), EINPROGRESS);
    cr_assert_eq(ask(f[0], &w[2], LOCK_KIND_POSIX, F_WRLCK, 5, 5, 2, true), EDEADLK);
    locks_drop_owner(f[2], LOCK_KIND_POSIX, 2);
    cr_assert_eq(w[1].told, 0);
    locks_drop_owner(f[1], LOCK_KIND_POSIX, 1);
    cr_assert_eq(w[0].told, 0);
    for (int i = 0; i < 3; i++)
        lock_file_unref(f[i]);
    locks_free(l);
}

/* Locks go with a renamed key; those of what was replaced or unlinked have no name any more. */
Test(locks, names)
{
    struct locks *l = locks_new();
    struct lock_file *a = lock_file_get(l, TENANT, KEY("a"), true),
                     *b = lock_file_get(l, TENANT, KEY("b"), true), *again;
    locks_rename(l, TENANT, KEY("a"), KEY("b"));
    again = lock_file_get(l, TENANT, KEY("b"), true);
    cr_assert_eq(again, a);
    lock_file_unref(again);
    lock_file_unref(b);
    b = lock_file_get(l, TENANT, KEY("a"), true);
    cr_assert_neq(b, a);
    locks_exchange(l, TENANT, KEY("a"), KEY("b"));
    again = lock_file_get(l, TENANT, KEY("a"), true);
    cr_assert_eq(again, a);
    lock_file_unref(again);
    locks_unlink(l, TENANT, KEY("a"));
    again = lock_file_get(l, TENANT, KEY("a"), true);
    cr_assert_neq(again, a);
    lock_file_unref(again);
    again = lock_file_get(l, TENANT, KEY("a"), false);
    struct lock_file *other = lock_file_get(l, TENANT, KEY("a"), false);
    cr_assert_neq(again, other);
    lock_file_unref(again);
    lock_file_unref(other);
    lock_file_unref(a);
    lock_file_unref(b);
    locks_free(l);
}
