/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_BUF_H
#define MCFS_COMMON_BUF_H

/*
 * A growing byte buffer.  Running out of memory sets `failed` and drops what is appended from then
 * on, so that a long row of appends needs one check at its end.
 */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct mcfs_buf {
    uint8_t *data;
    size_t len, cap;
    bool failed;
};

#define MCFS_BUF_INIT                                                                              \
    {                                                                                              \
        NULL, 0, 0, false                                                                          \
    }

/* Makes room for n more bytes; returns where they go, or NULL. */
uint8_t *mcfs_buf_grow(struct mcfs_buf *b, size_t n);

static inline uint8_t *mcfs_buf_reserve(struct mcfs_buf *b, size_t n)
{
    if (__builtin_expect(b->cap - b->len >= n && !b->failed, 1))
        return b->data + b->len;
    return mcfs_buf_grow(b, n);
}

static inline void mcfs_buf_append(struct mcfs_buf *b, const void *p, size_t n)
{
    uint8_t *to = mcfs_buf_reserve(b, n);
    if (to && n) {
        memcpy(to, p, n);
        b->len += n;
    }
}

static inline void mcfs_buf_append_str(struct mcfs_buf *b, const char *s)
{
    mcfs_buf_append(b, s, strlen(s));
}

/* Integers as mcfs_cursor reads them: little-endian, as every machine that this runs on. */
static inline void mcfs_buf_u8(struct mcfs_buf *b, uint8_t v)
{
    mcfs_buf_append(b, &v, sizeof(v));
}

static inline void mcfs_buf_u32(struct mcfs_buf *b, uint32_t v)
{
    mcfs_buf_append(b, &v, sizeof(v));
}

static inline void mcfs_buf_u64(struct mcfs_buf *b, uint64_t v)
{
    mcfs_buf_append(b, &v, sizeof(v));
}

void mcfs_buf_printf(struct mcfs_buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static inline void mcfs_buf_reset(struct mcfs_buf *b)
{
    b->len = 0;
    b->failed = false;
}

static inline void mcfs_buf_free(struct mcfs_buf *b)
{
    free(b->data);
    *b = (struct mcfs_buf)MCFS_BUF_INIT;
}

#define _cleanup_buf_ __attribute__((cleanup(mcfs_buf_free)))

#endif
