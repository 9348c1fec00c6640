/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_CURSOR_H
#define MCFS_COMMON_CURSOR_H

/*
 * Reads little-endian integers and byte runs from memory that may hold anything.  Nothing reads
 * past the end: the first read that would sets `failed`, and every read from then on yields zero.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct mcfs_cursor {
    const uint8_t *p, *end;
    bool failed;
};

static inline struct mcfs_cursor mcfs_cursor(const void *data, size_t len)
{
    return (struct mcfs_cursor){data, (const uint8_t *)data + len, false};
}

static inline size_t mcfs_cursor_left(const struct mcfs_cursor *c)
{
    return c->failed ? 0 : (size_t)(c->end - c->p);
}

/* The next n bytes, borrowed; NULL when there are fewer. */
static inline const uint8_t *mcfs_cursor_bytes(struct mcfs_cursor *c, uint64_t n)
{
    if (c->failed || n > (uint64_t)(c->end - c->p)) {
        c->failed = true;
        return NULL;
    }
    const uint8_t *at = c->p;
    c->p += n;
    return at;
}

static inline uint8_t mcfs_cursor_u8(struct mcfs_cursor *c)
{
    const uint8_t *b = mcfs_cursor_bytes(c, 1);
    return b ? *b : 0;
}

static inline uint32_t mcfs_cursor_u32(struct mcfs_cursor *c)
{
    uint32_t v = 0;
    const uint8_t *b = mcfs_cursor_bytes(c, sizeof(v));
    if (b)
        memcpy(&v, b, sizeof(v));
    return v;
}

static inline uint64_t mcfs_cursor_u64(struct mcfs_cursor *c)
{
    uint64_t v = 0;
    const uint8_t *b = mcfs_cursor_bytes(c, sizeof(v));
    if (b)
        memcpy(&v, b, sizeof(v));
    return v;
}

/* A protobuf varint of at most 10 bytes. */
static inline uint64_t mcfs_cursor_varint(struct mcfs_cursor *c)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        uint8_t b = mcfs_cursor_u8(c);
        if (c->failed)
            return 0;
        if (shift < 64)
            v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80))
            return v;
    }
    c->failed = true;
    return 0;
}

#endif
