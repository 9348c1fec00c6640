/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/namespace.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A random key that likes the bytes which matter. */
static size_t random_key(char *key, size_t max)
{
    static const char special[] = "%/.\0=+-2E5\xff a";
    size_t len = 1 + (size_t)rand() % max;
    for (size_t i = 0; i < len; i++)
        key[i] = rand() % 3 ? special[(size_t)rand() % (sizeof(special) - 1)] : (char)rand();
    return len;
}

Test(namespace, every_key_comes_back_from_its_path)
{
    char key[3000];
    srand(5);
    for (int i = 0; i < 20000; i++) {
        size_t len = random_key(key, i % 50 ? 30 : sizeof(key));
        struct mcfs_buf path = MCFS_BUF_INIT, back = MCFS_BUF_INIT;
        namespace_path(mcfs_slice(key, len), false, &path);
        cr_assert(namespace_key(mcfs_slice(path.data, path.len), &back));
        cr_assert_eq(back.len, len);
        cr_assert_arr_eq(back.data, key, len);
        /* What the kernel would not carry is not there. */
        cr_assert_null(memchr(path.data, 0, path.len));
        for (size_t at = 0; at < path.len;) {
            const char *start = (const char *)path.data + at;
            const char *slash = memchr(start, '/', path.len - at);
            size_t n = slash ? (size_t)(slash - start) : path.len - at;
            cr_assert(n > 0 && n <= NAME_PIECE_MAX);
            cr_assert_not((n == 1 && start[0] == '.') || (n == 2 && memcmp(start, "..", 2) == 0));
            at += n + 1;
        }
        mcfs_buf_free(&path);
        mcfs_buf_free(&back);
    }
}

Test(namespace, different_keys_have_different_paths)
{
    char a[16], b[16];
    srand(6);
    for (int i = 0; i < 50000; i++) {
        size_t m = random_key(a, 6), n = random_key(b, 6);
        struct mcfs_buf p = MCFS_BUF_INIT, q = MCFS_BUF_INIT;
        namespace_path(mcfs_slice(a, m), false, &p);
        namespace_path(mcfs_slice(b, n), false, &q);
        cr_assert_eq(mcfs_slice_eq(mcfs_slice(a, m), mcfs_slice(b, n)),
                     mcfs_slice_eq(mcfs_slice(p.data, p.len), mcfs_slice(q.data, q.len)));
        mcfs_buf_free(&p);
        mcfs_buf_free(&q);
    }
}

Test(namespace, shadowed_object_is_the_directorys_self)
{
    struct mcfs_buf path = MCFS_BUF_INIT, key = MCFS_BUF_INIT;
    namespace_path(mcfs_slice_str("a/b"), true, &path);
    cr_assert(mcfs_slice_eq(mcfs_slice(path.data, path.len), mcfs_slice_str("a/b/%=")));
    cr_assert(namespace_key(mcfs_slice(path.data, path.len), &key));
    cr_assert(mcfs_slice_eq(mcfs_slice(key.data, key.len), mcfs_slice_str("a/b")));
    mcfs_buf_free(&path);
    mcfs_buf_free(&key);
}

Test(namespace, malformed_escapes_are_told)
{
    static const char *const bad[] = {"%",    "%2",           "%zz",  "%41",
                                      "a%2E", "%2E%2E%2E%2E", "%2Ex", "%ff"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mcfs_buf out = MCFS_BUF_INIT;
        cr_assert_eq(namespace_decode(mcfs_slice_str(bad[i]), &out), NAME_BAD, "%s", bad[i]);
        mcfs_buf_free(&out);
    }
}
