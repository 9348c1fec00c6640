/* SPDX-License-Identifier: Apache-2.0 */
#include "common/crc32c.h"
#include "common/file.h"
#include "common/flags.h"
#include "common/hash.h"
#include "common/id.h"
#include "common/table.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct number {
    uint64_t v;
};

static uint64_t number_hash(const void *e)
{
    return ((const struct number *)e)->v * 7 % 64; /* many collisions */
}

static bool number_eq(const void *e, const void *key)
{
    return ((const struct number *)e)->v == *(const uint64_t *)key;
}

Test(table, agrees_with_a_plain_array)
{
    struct mcfs_table t = MCFS_TABLE_INIT(number_hash);
    struct number numbers[500];
    bool there[500] = {false};
    srand(1);
    for (uint64_t i = 0; i < 500; i++)
        numbers[i].v = i;
    for (int step = 0; step < 20000; step++) {
        uint64_t i = (uint64_t)rand() % 500;
        struct number probe = {i};
        if (there[i])
            cr_assert(mcfs_table_del(&t, &numbers[i]));
        else
            cr_assert_eq(mcfs_table_add(&t, &numbers[i]), 0);
        there[i] = !there[i];
        i = (uint64_t)rand() % 500;
        probe.v = i;
        cr_assert_eq(mcfs_table_find(&t, number_hash(&probe), number_eq, &i),
                     there[i] ? &numbers[i] : NULL);
    }
    mcfs_table_free(&t);
}

Test(crc32c, known_values)
{
    cr_assert_eq(mcfs_crc32c(0, "123456789", 9), 0xe3069283u);
    cr_assert_eq(mcfs_crc32c(mcfs_crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
    cr_assert_eq(mcfs_crc32c(0, "", 0), 0u);
    static const char text[] = "what has been summed once is not read again to be summed";
    for (size_t i = 0; i < sizeof(text); i++)
        cr_assert_eq(mcfs_crc32c_combine(mcfs_crc32c(0, text, i),
                                         mcfs_crc32c(0, text + i, sizeof(text) - i),
                                         sizeof(text) - i),
                     mcfs_crc32c(0, text, sizeof(text)));
}

Test(hash, places_keys_as_libstdcxx_does)
{
    /* std::hash<std::string> of 64-bit libstdc++, computed with a C++ program. */
    cr_assert_eq(mcfs_hash_libstdcxx("", 0), 6142509188972423790ULL);
    cr_assert_eq(mcfs_hash_libstdcxx("a", 1), 4993892634952068459ULL);
    cr_assert_eq(mcfs_hash_libstdcxx("hello world!", 12), 6594337730806245023ULL);
}

struct options {
    bool on;
    uint32_t count;
    uint64_t size, ms;
    char *text;
};

static const struct mcfs_flag table[] = {
    {"on_switch", MCFS_FLAG_BOOL, offsetof(struct options, on), "false", NULL, "", 0},
    {"count", MCFS_FLAG_U32, offsetof(struct options, count), "3", NULL, "", 0},
    {"size", MCFS_FLAG_SIZE, offsetof(struct options, size), "1K", NULL, "", 0},
    {"ttl", MCFS_FLAG_DURATION, offsetof(struct options, ms), "10", NULL, "", 1000},
    {"text", MCFS_FLAG_STRING, offsetof(struct options, text), NULL, "MCFS_TEST_TEXT", "", 0},
    MCFS_FLAG_END};

Test(flags, forms_and_units)
{
    struct options o = {0};
    char *argv[] = {"prog",        "--on-switch", "--count", "7",  "word",   "--size=2M",
                    "--ttl=500ms", "--text",      "a b",     "--", "--rest", NULL};
    int argc = 11;
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(mcfs_flags_init(table, &o, &err), 0);
    cr_assert(o.count == 3 && o.size == 1024 && o.ms == 10000 && !o.on);
    cr_assert_eq(mcfs_flags_parse_argv(table, &o, &argc, argv, &err), 0, "%s", err.msg);
    cr_assert(o.on && o.count == 7 && o.size == 2 << 20 && o.ms == 500);
    cr_assert_str_eq(o.text, "a b");
    cr_assert_eq(argc, 3);
    cr_assert_str_eq(argv[1], "word");
    cr_assert_str_eq(argv[2], "--rest");
    mcfs_flags_free(table, &o);
}

Test(flags, errors_name_the_option)
{
    struct options o = {0};
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert_eq(mcfs_flags_set(table, &o, "cuont", 5, "1", &err), -1);
    cr_assert(strstr(err.msg, "did you mean 'count'"));
    static const char *const bad[][2] = {
        {"count", "x"}, {"count", "-1"}, {"count", "4294967296"}, {"size", "1X"},
        {"size", ""},   {"ttl", "soon"}, {"on_switch", "maybe"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cr_assert_eq(mcfs_flags_set(table, &o, bad[i][0], strlen(bad[i][0]), bad[i][1], &err), -1);
        cr_assert(strstr(err.msg, bad[i][0]));
    }
    cr_assert_eq(mcfs_flags_set(table, &o, "count", 5, NULL, &err), -1);
}

Test(id, text_and_back)
{
    char text[MCFS_ID_TEXT_MAX];
    struct mcfs_id id = {UINT64_MAX, 7}, got;
    cr_assert_str_eq(mcfs_id_format(id, text), "18446744073709551615-7");
    cr_assert_eq(mcfs_id_parse(mcfs_slice_str(text), &got), 0);
    cr_assert(mcfs_id_eq(id, got));
    static const char *const bad[] = {"",   "-", "1-", "-1", "1-2-3", "18446744073709551616-1",
                                      "a-b"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(mcfs_id_parse(mcfs_slice_str(bad[i]), &got), -1, "%s", bad[i]);
}

Test(file, a_directory_has_one_owner_whose_pid_is_named)
{
    char dir[] = "/tmp/mcfs-own-XXXXXX", expected[64], command[64];
    struct mcfs_error err = MCFS_ERROR_INIT;
    cr_assert(mkdtemp(dir) != NULL);
    int fd = mcfs_own_dir(dir, &err);
    cr_assert_geq(fd, 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(mcfs_own_dir(dir, &err) < 0 && err.code == MCFS_FILE_LOCK_FAIL ? 0 : 1);
    int status;
    waitpid(pid, &status, 0);
    cr_assert_eq(status, 0);
    cr_assert_eq(mcfs_own_dir(dir, &err), -1);
    snprintf(expected, sizeof(expected), "process %d", (int)getpid());
    cr_assert(strstr(err.msg, expected));
    close(fd);
    cr_assert_geq(fd = mcfs_own_dir(dir, &err), 0);
    close(fd);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}
