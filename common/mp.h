/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_MP_H
#define MCFS_COMMON_MP_H

/*
 * MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) without a tree: a pull
 * reader over bytes that may hold anything, and a writer that appends to a buffer.
 *
 * Why not a library: snapshots of ten million objects and batches of look-ups are decoded here, and
 * the usual libraries build a tree of 24-byte nodes first.  The reader returns strings as slices of
 * its input, keeps no state but two pointers, and needs no recursion, so nesting depth and lengths
 * cannot hurt it: an array or map that claims more elements than bytes are left is refused at once.
 *
 * Every mp_read_* returns false, and sets `failed`, when the next value is of another type or runs
 * past the end; once failed, always failed.
 */

#include "common/buf.h"
#include <mooncakefs/object.h>

enum mp_type {
    MP_NONE, /* end of input, or the byte 0xc1 */
    MP_NIL,
    MP_BOOL,
    MP_UINT, /* non-negative integer */
    MP_NEGINT,
    MP_FLOAT,
    MP_STR,
    MP_BIN,
    MP_ARRAY,
    MP_MAP,
    MP_EXT,
};

struct mp_reader {
    const uint8_t *p, *end;
    bool failed;
};

static inline struct mp_reader mp_reader(const void *data, size_t len)
{
    return (struct mp_reader){data, (const uint8_t *)data + len, false};
}

/* Type of the next value, without taking it. */
enum mp_type mp_peek(const struct mp_reader *r);

bool mp_read_nil(struct mp_reader *r);
bool mp_read_bool(struct mp_reader *r, bool *v);
bool mp_read_uint(struct mp_reader *r, uint64_t *v); /* any non-negative integer */
bool mp_read_int(struct mp_reader *r, int64_t *v);   /* any integer that fits */
bool mp_read_double(struct mp_reader *r, double *v); /* float or integer */
bool mp_read_str(struct mp_reader *r, struct mcfs_slice *v);
bool mp_read_bin(struct mp_reader *r, struct mcfs_slice *v);
bool mp_read_raw(struct mp_reader *r, struct mcfs_slice *v); /* str or bin */
bool mp_read_array(struct mp_reader *r, uint32_t *n);
bool mp_read_map(struct mp_reader *r, uint32_t *n); /* n pairs */

/* An array of exactly n elements. */
bool mp_read_array_of(struct mp_reader *r, uint32_t n);

/* Reads an unsigned integer not greater than max. */
bool mp_read_u32_max(struct mp_reader *r, uint32_t max, uint32_t *v);

/* Skips one whole value, however deep.  When v is not NULL it gets the value's encoded bytes. */
bool mp_skip(struct mp_reader *r, struct mcfs_slice *v);

static inline bool mp_done(const struct mp_reader *r)
{
    return !r->failed && r->p == r->end;
}

/*
 * Finds the end of one value in a stream that arrives in pieces.  Feed it the buffer from the
 * value's first byte, grown by whatever has arrived; it goes on where it stopped.  Zero it before
 * each value.
 */
struct mp_scan {
    size_t offset;      /* bytes looked at so far */
    uint64_t remaining; /* values still to come; 0 before the first call */
    bool started;
};

/* Returns the value's length once all of it is there, 0 when more bytes are needed, -1 when it is
 * malformed or would exceed max bytes (known as soon as a length says so). */
int64_t mp_scan(struct mp_scan *s, const uint8_t *data, size_t len, size_t max);

void mp_put_nil(struct mcfs_buf *b);
void mp_put_bool(struct mcfs_buf *b, bool v);
void mp_put_uint(struct mcfs_buf *b, uint64_t v);
void mp_put_int(struct mcfs_buf *b, int64_t v);
void mp_put_double(struct mcfs_buf *b, double v);
void mp_put_str(struct mcfs_buf *b, struct mcfs_slice v);
void mp_put_cstr(struct mcfs_buf *b, const char *v);
void mp_put_bin(struct mcfs_buf *b, const void *data, size_t len);
void mp_put_bin_header(struct mcfs_buf *b, uint32_t len); /* the len bytes follow by other means */
void mp_put_array(struct mcfs_buf *b, uint32_t n);
void mp_put_map(struct mcfs_buf *b, uint32_t n);

/* For an array whose length is known only later: writes a 5-byte header and returns its offset. */
size_t mp_begin_array(struct mcfs_buf *b);
void mp_end_array(struct mcfs_buf *b, size_t at, uint32_t n);

#endif
