/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mp.h"

/* Appends a type byte and a big-endian number of `width` bytes. */
static void put_head(struct mcfs_buf *b, uint8_t type, uint64_t v, unsigned width)
{
    uint8_t *p = mcfs_buf_reserve(b, 1 + 8);
    if (!p)
        return;
    p[0] = type;
    for (unsigned i = 0; i < width; i++)
        p[1 + i] = (uint8_t)(v >> (8 * (width - 1 - i)));
    b->len += 1 + width;
}

void mp_put_nil(struct mcfs_buf *b)
{
    put_head(b, 0xc0, 0, 0);
}

void mp_put_bool(struct mcfs_buf *b, bool v)
{
    put_head(b, v ? 0xc3 : 0xc2, 0, 0);
}

void mp_put_uint(struct mcfs_buf *b, uint64_t v)
{
    if (v < 0x80)
        put_head(b, (uint8_t)v, 0, 0);
    else if (v <= UINT8_MAX)
        put_head(b, 0xcc, v, 1);
    else if (v <= UINT16_MAX)
        put_head(b, 0xcd, v, 2);
    else if (v <= UINT32_MAX)
        put_head(b, 0xce, v, 4);
    else
        put_head(b, 0xcf, v, 8);
}

void mp_put_int(struct mcfs_buf *b, int64_t v)
{
    if (v >= 0)
        mp_put_uint(b, (uint64_t)v);
    else if (v >= -32)
        put_head(b, (uint8_t)v, 0, 0);
    else if (v >= INT8_MIN)
        put_head(b, 0xd0, (uint64_t)v, 1);
    else if (v >= INT16_MIN)
        put_head(b, 0xd1, (uint64_t)v, 2);
    else if (v >= INT32_MIN)
        put_head(b, 0xd2, (uint64_t)v, 4);
    else
        put_head(b, 0xd3, (uint64_t)v, 8);
}

void mp_put_double(struct mcfs_buf *b, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof(bits));
    put_head(b, 0xcb, bits, 8);
}

void mp_put_str(struct mcfs_buf *b, struct mcfs_slice v)
{
    if (v.len < 32)
        put_head(b, (uint8_t)(0xa0 | v.len), 0, 0);
    else if (v.len <= UINT8_MAX)
        put_head(b, 0xd9, v.len, 1);
    else if (v.len <= UINT16_MAX)
        put_head(b, 0xda, v.len, 2);
    else
        put_head(b, 0xdb, v.len, 4);
    mcfs_buf_append(b, v.data, v.len);
}

void mp_put_cstr(struct mcfs_buf *b, const char *v)
{
    mp_put_str(b, mcfs_slice_str(v));
}

void mp_put_bin_header(struct mcfs_buf *b, uint32_t len)
{
    if (len <= UINT8_MAX)
        put_head(b, 0xc4, len, 1);
    else if (len <= UINT16_MAX)
        put_head(b, 0xc5, len, 2);
    else
        put_head(b, 0xc6, len, 4);
}

void mp_put_bin(struct mcfs_buf *b, const void *data, size_t len)
{
    if (len > UINT32_MAX) {
        b->failed = true;
        return;
    }
    mp_put_bin_header(b, (uint32_t)len);
    mcfs_buf_append(b, data, len);
}

void mp_put_array(struct mcfs_buf *b, uint32_t n)
{
    if (n < 16)
        put_head(b, (uint8_t)(0x90 | n), 0, 0);
    else if (n <= UINT16_MAX)
        put_head(b, 0xdc, n, 2);
    else
        put_head(b, 0xdd, n, 4);
}

void mp_put_map(struct mcfs_buf *b, uint32_t n)
{
    if (n < 16)
        put_head(b, (uint8_t)(0x80 | n), 0, 0);
    else if (n <= UINT16_MAX)
        put_head(b, 0xde, n, 2);
    else
        put_head(b, 0xdf, n, 4);
}

size_t mp_begin_array(struct mcfs_buf *b)
{
    size_t at = b->len;
    put_head(b, 0xdd, 0, 4);
    return at;
}

void mp_end_array(struct mcfs_buf *b, size_t at, uint32_t n)
{
    if (b->failed)
        return;
    for (unsigned i = 0; i < 4; i++)
        b->data[at + 1 + i] = (uint8_t)(n >> (8 * (3 - i)));
}
