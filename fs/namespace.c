/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/namespace.h"

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The escapes that encoding produces, in either case of hex digits; any other is malformed, so that
 * no two names mean one key. */
static bool decode_escape(const char *p, size_t left, size_t whole_len, char *byte)
{
    if (left < 3 || hex(p[1]) < 0 || hex(p[2]) < 0)
        return false;
    *byte = (char)((unsigned)hex(p[1]) << 4 | (unsigned)hex(p[2]));
    if (*byte == '%' || *byte == 0)
        return true;
    /* %2E stands for a dot only where the plain dots would be "." or "..". */
    return *byte == '.' && (whole_len == 3 || whole_len == 6);
}

static bool only_escaped_dots(struct mcfs_slice name)
{
    for (size_t i = 0; i < name.len; i += 3)
        if (name.len - i < 3 || name.data[i] != '%' || name.data[i + 1] != '2' ||
            (name.data[i + 2] | 0x20) != 'e')
            return false;
    return true;
}

enum name_kind namespace_decode(struct mcfs_slice name, struct mcfs_buf *out)
{
    enum name_kind kind = NAME_PLAIN;
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("%=")))
        return NAME_SELF;
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("%-")))
        return NAME_PLAIN;
    if (name.len >= 2 && name.data[name.len - 2] == '%' && name.data[name.len - 1] == '+') {
        kind = NAME_PIECE;
        name.len -= 2;
    }
    for (size_t i = 0; i < name.len;) {
        char byte;
        if (name.data[i] != '%') {
            mcfs_buf_append(out, &name.data[i++], 1);
            continue;
        }
        if (!decode_escape(name.data + i, name.len - i, name.len, &byte) ||
            (byte == '.' && !only_escaped_dots(name)))
            return NAME_BAD;
        mcfs_buf_append(out, &byte, 1);
        i += 3;
    }
    return kind;
}

/* Bytes that a raw byte takes when encoded. */
static size_t width(char c)
{
    return c == '%' || c == 0 ? 3 : 1;
}

static void encode_byte(char c, struct mcfs_buf *out)
{
    if (c == '%')
        mcfs_buf_append(out, "%25", 3);
    else if (c == 0)
        mcfs_buf_append(out, "%00", 3);
    else
        mcfs_buf_append(out, &c, 1);
}

/* Names that are shown as they are: nearly all. */
static bool is_plain(struct mcfs_slice raw)
{
    return raw.len > 2 && !memchr(raw.data, '%', raw.len) && !memchr(raw.data, 0, raw.len);
}

void namespace_encode(struct mcfs_slice raw, struct mcfs_buf *out)
{
    if (is_plain(raw)) {
        mcfs_buf_append(out, raw.data, raw.len);
    } else if (raw.len == 0) {
        mcfs_buf_append(out, "%-", 2);
    } else if (mcfs_slice_eq(raw, MCFS_SLICE_LITERAL("."))) {
        mcfs_buf_append(out, "%2E", 3);
    } else if (mcfs_slice_eq(raw, MCFS_SLICE_LITERAL(".."))) {
        mcfs_buf_append(out, "%2E%2E", 6);
    } else {
        for (size_t i = 0; i < raw.len; i++)
            encode_byte(raw.data[i], out);
    }
}

size_t namespace_encode_piece(struct mcfs_slice raw, size_t from, struct mcfs_buf *out)
{
    size_t bytes = 0, fits = from;
    if (from == 0 && (raw.len <= 2 || (raw.len <= NAME_PIECE_MAX && is_plain(raw)))) {
        namespace_encode(raw, out);
        return raw.len;
    }
    for (size_t i = from; i < raw.len; i++)
        bytes += width(raw.data[i]);
    if (bytes <= NAME_PIECE_MAX) {
        fits = raw.len;
    } else {
        for (bytes = 0; bytes + width(raw.data[fits]) <= NAME_PIECE_MAX - 2; fits++)
            bytes += width(raw.data[fits]);
    }
    for (size_t i = from; i < fits; i++)
        encode_byte(raw.data[i], out);
    if (fits < raw.len)
        mcfs_buf_append(out, "%+", 2);
    return fits - from;
}

void namespace_path(struct mcfs_slice key, bool is_shadowed, struct mcfs_buf *out)
{
    size_t start = 0;
    for (size_t i = 0; i <= key.len; i++) {
        if (i < key.len && key.data[i] != '/')
            continue;
        struct mcfs_slice component = mcfs_slice(key.data + start, i - start);
        size_t done = 0;
        if (start > 0)
            mcfs_buf_append(out, "/", 1);
        for (;;) {
            done += namespace_encode_piece(component, done, out);
            if (done >= component.len)
                break;
            mcfs_buf_append(out, "/", 1);
        }
        start = i + 1;
    }
    if (is_shadowed)
        mcfs_buf_append(out, "/%=", 3);
}

bool namespace_key(struct mcfs_slice path, struct mcfs_buf *out)
{
    bool joined = true; /* the next component needs no '/' before it */
    while (path.len > 0) {
        const char *slash = memchr(path.data, '/', path.len);
        size_t len = slash ? (size_t)(slash - path.data) : path.len;
        struct mcfs_slice name = mcfs_slice(path.data, len);
        size_t skip = len + (slash ? 1 : 0);
        path = mcfs_slice(path.data + skip, path.len - skip);
        if (len == 0)
            continue; /* doubled or trailing slashes of the path, as the kernel does */
        if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("%=")))
            return path.len == 0;
        if (!joined)
            mcfs_buf_append(out, "/", 1);
        enum name_kind kind = namespace_decode(name, out);
        if (kind == NAME_BAD)
            return false;
        joined = kind == NAME_PIECE;
    }
    return !out->failed;
}
