/* SPDX-License-Identifier: Apache-2.0 */
#include "common/mp.h"

#include <endian.h>
#include <string.h>

/* A number of n bytes at p, where `left` bytes are. */
static uint64_t big_endian(const uint8_t *p, unsigned n, size_t left)
{
    uint64_t v = 0;
    if (n && left >= 8) {
        memcpy(&v, p, 8);
        return be64toh(v) >> (64 - 8 * n);
    }
    for (unsigned i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

/* A value's first bytes, taken apart: what it is, how many bytes its head has, the number in the
 * head (the value of an integer, the length of a string, the count of an array). */
struct head {
    enum mp_type type;
    unsigned size;     /* bytes of the head: type byte and number */
    uint64_t number;   /* integers: two's complement */
    uint64_t body;     /* bytes that follow the head, not counting elements */
    uint64_t elements; /* values that follow */
};

/* Numbers of bytes behind the type byte, for 0xc0..0xdf. */
static const struct {
    uint8_t type, width, extra; /* extra: bytes of an ext type before the body */
} wide[32] = {
    [0x00] = {MP_NIL, 0, 0},    [0x02] = {MP_BOOL, 0, 0},   [0x03] = {MP_BOOL, 0, 0},
    [0x04] = {MP_BIN, 1, 0},    [0x05] = {MP_BIN, 2, 0},    [0x06] = {MP_BIN, 4, 0},
    [0x07] = {MP_EXT, 1, 1},    [0x08] = {MP_EXT, 2, 1},    [0x09] = {MP_EXT, 4, 1},
    [0x0a] = {MP_FLOAT, 4, 0},  [0x0b] = {MP_FLOAT, 8, 0},  [0x0c] = {MP_UINT, 1, 0},
    [0x0d] = {MP_UINT, 2, 0},   [0x0e] = {MP_UINT, 4, 0},   [0x0f] = {MP_UINT, 8, 0},
    [0x10] = {MP_NEGINT, 1, 0}, [0x11] = {MP_NEGINT, 2, 0}, [0x12] = {MP_NEGINT, 4, 0},
    [0x13] = {MP_NEGINT, 8, 0}, [0x14] = {MP_EXT, 0, 1},    [0x15] = {MP_EXT, 0, 1},
    [0x16] = {MP_EXT, 0, 1},    [0x17] = {MP_EXT, 0, 1},    [0x18] = {MP_EXT, 0, 1},
    [0x19] = {MP_STR, 1, 0},    [0x1a] = {MP_STR, 2, 0},    [0x1b] = {MP_STR, 4, 0},
    [0x1c] = {MP_ARRAY, 2, 0},  [0x1d] = {MP_ARRAY, 4, 0},  [0x1e] = {MP_MAP, 2, 0},
    [0x1f] = {MP_MAP, 4, 0},
};

enum head_result { HEAD_OK, HEAD_SHORT, HEAD_BAD };

static enum head_result wide_head(const uint8_t *p, size_t len, struct head *h)
{
    unsigned i = p[0] - 0xc0u;
    if (wide[i].type == MP_NONE)
        return HEAD_BAD;
    h->type = wide[i].type;
    h->size = 1u + wide[i].width;
    if (len < h->size)
        return HEAD_SHORT;
    h->number = big_endian(p + 1, wide[i].width, len - 1);
    switch (h->type) {
    case MP_BOOL:
        h->number = p[0] == 0xc3;
        break;
    case MP_NEGINT: {
        unsigned shift = (64 - 8u * wide[i].width) & 63;
        int64_t v = (int64_t)(h->number << shift) >> shift;
        h->number = (uint64_t)v;
        if (v >= 0)
            h->type = MP_UINT;
        break;
    }
    case MP_STR:
    case MP_BIN:
        h->body = h->number;
        break;
    case MP_EXT:
        h->body = wide[i].extra + (wide[i].width ? h->number : 1u << (p[0] - 0xd4));
        break;
    case MP_ARRAY:
        h->elements = h->number;
        break;
    case MP_MAP:
        h->elements = h->number * 2;
        break;
    default:
        break;
    }
    return HEAD_OK;
}

/* Inlined, so that who looks for one type pays for that alone. */
static inline __attribute__((always_inline)) enum head_result read_head(const uint8_t *p,
                                                                        size_t len, struct head *h)
{
    if (len == 0)
        return HEAD_SHORT;
    uint8_t b = p[0];
    *h = (struct head){.size = 1};
    if (b < 0x80) {
        h->type = MP_UINT;
        h->number = b;
    } else if (b >= 0xe0) {
        h->type = MP_NEGINT;
        h->number = (uint64_t)(int64_t)(int8_t)b;
    } else if (b < 0x90) {
        h->type = MP_MAP;
        h->number = b & 0x0f;
        h->elements = h->number * 2;
    } else if (b < 0xa0) {
        h->type = MP_ARRAY;
        h->number = h->elements = b & 0x0f;
    } else if (b < 0xc0) {
        h->type = MP_STR;
        h->number = h->body = b & 0x1f;
    } else {
        return wide_head(p, len, h);
    }
    return HEAD_OK;
}

/* Takes the head of the next value when it is of type a or b and what it announces can be there. */
static bool take(struct mp_reader *r, enum mp_type a, enum mp_type b, struct head *h)
{
    size_t left = (size_t)(r->end - r->p);
    if (r->failed || read_head(r->p, left, h) != HEAD_OK || (h->type != a && h->type != b) ||
        h->body > left - h->size || h->elements > left - h->size) {
        r->failed = true;
        return false;
    }
    r->p += h->size;
    return true;
}

enum mp_type mp_peek(const struct mp_reader *r)
{
    struct head h;
    if (r->failed || read_head(r->p, (size_t)(r->end - r->p), &h) != HEAD_OK)
        return MP_NONE;
    return h.type;
}

bool mp_read_nil(struct mp_reader *r)
{
    struct head h;
    return take(r, MP_NIL, MP_NIL, &h);
}

bool mp_read_bool(struct mp_reader *r, bool *v)
{
    struct head h;
    bool ok = take(r, MP_BOOL, MP_BOOL, &h);
    *v = ok && h.number;
    return ok;
}

bool mp_read_uint(struct mp_reader *r, uint64_t *v)
{
    struct head h;
    bool ok = take(r, MP_UINT, MP_UINT, &h);
    *v = ok ? h.number : 0;
    return ok;
}

bool mp_read_int(struct mp_reader *r, int64_t *v)
{
    struct head h;
    bool ok = take(r, MP_UINT, MP_NEGINT, &h);
    if (ok && h.type == MP_UINT && h.number > INT64_MAX)
        ok = !(r->failed = true);
    *v = ok ? (int64_t)h.number : 0;
    return ok;
}

bool mp_read_double(struct mp_reader *r, double *v)
{
    struct head h;
    *v = 0;
    if (mp_peek(r) != MP_FLOAT) {
        int64_t i;
        bool ok = mp_read_int(r, &i);
        *v = (double)i;
        return ok;
    }
    if (!take(r, MP_FLOAT, MP_FLOAT, &h))
        return false;
    if (h.size == 5) {
        uint32_t bits = (uint32_t)h.number;
        float f;
        memcpy(&f, &bits, sizeof(f));
        *v = (double)f;
    } else {
        memcpy(v, &h.number, sizeof(*v));
    }
    return true;
}

static bool read_bytes(struct mp_reader *r, enum mp_type a, enum mp_type b, struct mcfs_slice *v)
{
    struct head h;
    *v = (struct mcfs_slice){NULL, 0};
    if (!take(r, a, b, &h))
        return false;
    *v = mcfs_slice(r->p, h.body);
    r->p += h.body;
    return true;
}

bool mp_read_str(struct mp_reader *r, struct mcfs_slice *v)
{
    return read_bytes(r, MP_STR, MP_STR, v);
}

bool mp_read_bin(struct mp_reader *r, struct mcfs_slice *v)
{
    return read_bytes(r, MP_BIN, MP_BIN, v);
}

bool mp_read_raw(struct mp_reader *r, struct mcfs_slice *v)
{
    return read_bytes(r, MP_STR, MP_BIN, v);
}

bool mp_read_array(struct mp_reader *r, uint32_t *n)
{
    struct head h;
    bool ok = take(r, MP_ARRAY, MP_ARRAY, &h);
    *n = ok ? (uint32_t)h.number : 0;
    return ok;
}

bool mp_read_map(struct mp_reader *r, uint32_t *n)
{
    struct head h;
    bool ok = take(r, MP_MAP, MP_MAP, &h);
    *n = ok ? (uint32_t)h.number : 0;
    return ok;
}

bool mp_read_array_of(struct mp_reader *r, uint32_t n)
{
    uint32_t got;
    if (mp_read_array(r, &got) && got != n)
        r->failed = true;
    return !r->failed;
}

bool mp_read_u32_max(struct mp_reader *r, uint32_t max, uint32_t *v)
{
    uint64_t wide_value;
    if (mp_read_uint(r, &wide_value) && wide_value > max)
        r->failed = true;
    *v = r->failed ? 0 : (uint32_t)wide_value;
    return !r->failed;
}

bool mp_skip(struct mp_reader *r, struct mcfs_slice *v)
{
    struct mp_scan scan = {0};
    size_t left = (size_t)(r->end - r->p);
    int64_t n = r->failed ? -1 : mp_scan(&scan, r->p, left, left);
    if (n <= 0) {
        r->failed = true;
        return false;
    }
    if (v)
        *v = mcfs_slice(r->p, (size_t)n);
    r->p += n;
    return true;
}

int64_t mp_scan(struct mp_scan *s, const uint8_t *data, size_t len, size_t max)
{
    if (!s->started) {
        s->started = true;
        s->remaining = 1;
    }
    while (s->remaining > 0) {
        struct head h;
        if (s->offset >= len)
            return s->offset >= max ? -1 : 0;
        switch (read_head(data + s->offset, len - s->offset, &h)) {
        case HEAD_SHORT:
            return len >= max ? -1 : 0;
        case HEAD_BAD:
            return -1;
        case HEAD_OK:
            break;
        }
        /* Each value still to come has at least one byte, so counts are bounded as lengths are. */
        uint64_t used = s->offset + h.size + h.body;
        uint64_t coming = s->remaining - 1 + h.elements;
        if (used > max || coming > max - used)
            return -1;
        s->offset = used;
        s->remaining = coming;
    }
    return s->offset <= len ? (int64_t)s->offset : 0;
}
