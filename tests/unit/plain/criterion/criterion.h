/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PLAIN_CRITERION_H
#define PLAIN_CRITERION_H

/*
 * The part of Criterion that our tests use, in one process: Criterion's own runner, which forks and
 * maps memory of its own, does not start under the thread sanitizer.
 */

#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct plain_test {
    const char *suite, *name;
    void (*fn)(void);
    struct plain_test *next;
};

struct plain_suite {
    const char *name;
    void (*init)(void), (*fini)(void);
    int timeout;
    struct plain_suite *next;
};

static struct plain_test *plain_tests;
static struct plain_suite *plain_suites;

#define Test(suite_, name_, ...)                                                                   \
    static void test_##suite_##_##name_(void);                                                     \
    __attribute__((constructor)) static void add_##suite_##_##name_(void)                          \
    {                                                                                              \
        static struct plain_test t = {#suite_, #name_, test_##suite_##_##name_, NULL};             \
        t.next = plain_tests;                                                                      \
        plain_tests = &t;                                                                          \
    }                                                                                              \
    static void test_##suite_##_##name_(void)

#define TestSuite(suite_, ...)                                                                     \
    __attribute__((constructor)) static void add_suite_##suite_(void)                              \
    {                                                                                              \
        static struct plain_suite s = {.name = #suite_, __VA_ARGS__};                              \
        s.next = plain_suites;                                                                     \
        plain_suites = &s;                                                                         \
    }                                                                                              \
    struct plain_suite

#define plain_fail(...)                                                                            \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: assertion failed\n", __FILE__, __LINE__);                          \
        abort();                                                                                   \
    } while (0)
#define cr_assert(c, ...) ((c) ? (void)0 : ({ plain_fail(); }))
#define cr_assert_not(c, ...) cr_assert(!(c))
#define cr_assert_null(p, ...) cr_assert((p) == NULL)
#define cr_assert_not_null(p, ...) cr_assert((p) != NULL)
#define cr_assert_eq(a, b, ...) cr_assert((a) == (b))
#define cr_assert_neq(a, b, ...) cr_assert((a) != (b))
#define cr_assert_lt(a, b, ...) cr_assert((a) < (b))
#define cr_assert_gt(a, b, ...) cr_assert((a) > (b))
#define cr_assert_geq(a, b, ...) cr_assert((a) >= (b))
#define cr_assert_str_eq(a, b, ...) cr_assert(strcmp(a, b) == 0)
#define cr_assert_arr_eq(a, b, n, ...) cr_assert((n) == 0 || memcmp(a, b, n) == 0)

int main(void)
{
    for (struct plain_test *t = plain_tests; t; t = t->next) {
        struct plain_suite *s = plain_suites;
        while (s && strcmp(s->name, t->suite) != 0)
            s = s->next;
        if (s && s->init)
            s->init();
        t->fn();
        if (s && s->fini)
            s->fini();
        printf("ok %s::%s\n", t->suite, t->name);
    }
    return 0;
}

#endif
