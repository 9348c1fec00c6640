/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mp.h"

#include <criterion/criterion.h>
#include <msgpack.h>
#include <stdlib.h>

static uint64_t state = 88172645463325252ULL;

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Appends a random value, nested at most `depth` deep, with our writer and with msgpack-c's. */
static void put_random(struct mcfs_buf *b, msgpack_packer *pk, int depth)
{
    char text[300];
    uint64_t r = next_random();
    size_t len = r % 7 == 0 ? 200 : r % 40;
    memset(text, 'a' + (int)(r % 26), sizeof(text));
    switch (r % (depth > 0 ? 9 : 7)) {
    case 0:
        mp_put_nil(b);
        msgpack_pack_nil(pk);
        break;
    case 1:
        mp_put_bool(b, r & 64);
        if (r & 64)
            msgpack_pack_true(pk);
        else
            msgpack_pack_false(pk);
        break;
    case 2:
        r = next_random() >> (next_random() % 64);
        mp_put_uint(b, r);
        msgpack_pack_uint64(pk, r);
        break;
    case 3: {
        int64_t v = -(int64_t)(next_random() >> (1 + next_random() % 63));
        mp_put_int(b, v);
        msgpack_pack_int64(pk, v);
        break;
    }
    case 4:
        mp_put_double(b, (double)r);
        msgpack_pack_double(pk, (double)r);
        break;
    case 5:
        mp_put_str(b, mcfs_slice(text, len));
        msgpack_pack_str(pk, len);
        msgpack_pack_str_body(pk, text, len);
        break;
    case 6:
        mp_put_bin(b, text, len);
        msgpack_pack_bin(pk, len);
        msgpack_pack_bin_body(pk, text, len);
        break;
    default: {
        uint32_t n = (uint32_t)(r >> 32) % 20;
        bool map = r % 9 == 8;
        if (map) {
            mp_put_map(b, n);
            msgpack_pack_map(pk, n);
        } else {
            mp_put_array(b, n);
            msgpack_pack_array(pk, n);
        }
        for (uint32_t i = 0; i < (map ? 2 * n : n); i++)
            put_random(b, pk, depth - 1);
    }
    }
}

Test(mp, writer_agrees_with_msgpack_c)
{
    for (int i = 0; i < 2000; i++) {
        struct mcfs_buf b = MCFS_BUF_INIT;
        msgpack_sbuffer sb;
        msgpack_packer pk;
        msgpack_sbuffer_init(&sb);
        msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
        put_random(&b, &pk, 4);
        cr_assert_eq(b.len, sb.size);
        cr_assert_arr_eq(b.data, sb.data, b.len);
        struct mp_reader r = mp_reader(b.data, b.len);
        cr_assert(mp_skip(&r, NULL) && mp_done(&r));
        mcfs_buf_free(&b);
        msgpack_sbuffer_destroy(&sb);
    }
}

Test(mp, scan_finds_the_end_in_pieces_and_every_prefix_is_incomplete)
{
    for (int i = 0; i < 300; i++) {
        struct mcfs_buf b = MCFS_BUF_INIT;
        msgpack_sbuffer sb;
        msgpack_packer pk;
        msgpack_sbuffer_init(&sb);
        msgpack_packer_init(&pk, &sb, msgpack_sbuffer_write);
        put_random(&b, &pk, 3);
        struct mp_scan scan = {0};
        for (size_t have = 0; have < b.len; have++)
            cr_assert_eq(mp_scan(&scan, b.data, have, 1 << 20), 0);
        cr_assert_eq(mp_scan(&scan, b.data, b.len, 1 << 20), (int64_t)b.len);
        for (size_t have = 0; have < b.len; have++) {
            struct mp_reader r = mp_reader(b.data, have);
            cr_assert_not(mp_skip(&r, NULL));
        }
        mcfs_buf_free(&b);
        msgpack_sbuffer_destroy(&sb);
    }
}

Test(mp, lengths_beyond_the_input_are_refused_at_once)
{
    static const char *const bad[] = {"\xdb\xff\xff\xff\xff", "\xc6\xff\xff\xff\xff",
                                      "\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff",
                                      "\xc9\xff\xff\xff\xff", "\xc1\x00\x00\x00\x00"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mp_scan scan = {0};
        struct mp_reader r = mp_reader(bad[i], 5);
        uint32_t n;
        struct mcfs_slice s;
        cr_assert_eq(mp_scan(&scan, (const uint8_t *)bad[i], 5, 1 << 20), -1);
        cr_assert_not(mp_read_array(&r, &n));
        r = mp_reader(bad[i], 5);
        cr_assert_not(mp_read_raw(&r, &s));
        r = mp_reader(bad[i], 5);
        cr_assert_not(mp_skip(&r, NULL));
    }
}

Test(mp, deep_nesting_needs_no_stack)
{
    size_t depth = 1000000;
    char *deep = malloc(depth + 1);
    memset(deep, '\x91', depth);
    deep[depth] = '\xc0';
    struct mp_reader r = mp_reader(deep, depth + 1);
    cr_assert(mp_skip(&r, NULL) && mp_done(&r));
    free(deep);
}

Test(mp, numbers_are_read_back_whatever_their_width)
{
    for (int shift = 0; shift < 64; shift++) {
        for (int d = -1; d <= 1; d++) {
            uint64_t v = (1ull << shift) + (uint64_t)(int64_t)d, got;
            int64_t s = -(int64_t)(v >> 1), got_s;
            struct mcfs_buf b = MCFS_BUF_INIT;
            mp_put_uint(&b, v);
            mp_put_int(&b, s);
            struct mp_reader r = mp_reader(b.data, b.len);
            cr_assert(mp_read_uint(&r, &got) && got == v);
            cr_assert(mp_read_int(&r, &got_s) && got_s == s);
            cr_assert(mp_done(&r));
            mcfs_buf_free(&b);
        }
    }
}
