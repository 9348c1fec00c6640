/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/container.h"

#include "common/cleanup.h"
#include "common/mp.h"

/* Large enough that a store far away is not asked once per shard, small enough to be read for
 * nothing. */
#define WINDOW (256u << 10)
#define HEAD_MAX 512          /* bytes of any head or name */
#define VALUE_MAX (64u << 20) /* bytes of anything but shards */
#define READ_PIECE (4u << 20)

void walk_free(struct walk *w)
{
    mcfs_buf_free(&w->window);
}

void walk_seek(struct walk *w, uint64_t to)
{
    if (to >= w->at && to - w->at <= w->window.len) {
        w->pos = (size_t)(to - w->at);
        return;
    }
    w->at = to;
    w->pos = 0;
    mcfs_buf_reset(&w->window);
}

int walk_corrupt(const struct walk *w, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_FILE_READ_FAIL,
                     "%s: cut short or of another form than expected (near byte %llu)", w->name,
                     (unsigned long long)walk_position(w));
}

/* Makes at least `want` bytes available from the position on, or as many as the file has. */
static int fill(struct walk *w, size_t want, struct mcfs_error *err)
{
    if (w->window.len - w->pos >= want)
        return 0;
    w->at += w->pos;
    w->pos = 0;
    mcfs_buf_reset(&w->window);
    size_t size = MCFS_MAX(want, MCFS_MAX((size_t)WINDOW, w->store->ops->read_ahead_bytes));
    uint8_t *to = mcfs_buf_reserve(&w->window, size);
    if (!to)
        return mcfs_fail_errno(err, ENOMEM, "%s", w->name);
    ssize_t n = w->store->ops->read(w->store, w->path, w->at, to, size, err);
    if (n < 0)
        return -1;
    w->window.len = (size_t)n;
    return 0;
}

/* A reader at the next value, of which at least the head is there. */
static int at_head(struct walk *w, struct mp_reader *p, struct mcfs_error *err)
{
    if (fill(w, HEAD_MAX, err))
        return -1;
    *p = mp_reader(w->window.data + w->pos, w->window.len - w->pos);
    return 0;
}

static void advance(struct walk *w, const struct mp_reader *p)
{
    w->pos = (size_t)(p->p - w->window.data);
}

/* A head that announces more than is in the window, which mp_read_* would refuse: one type byte
 * (base, base + 1, base + 2 for numbers of 1, 2, 4 bytes) and the number. */
static int read_wide_head(struct walk *w, uint8_t base, unsigned first_width, uint8_t fixed,
                          uint32_t *number, struct mcfs_error *err)
{
    struct mp_reader p;
    if (at_head(w, &p, err))
        return -1;
    size_t left = (size_t)(p.end - p.p);
    if (left == 0)
        return walk_corrupt(w, err);
    uint8_t b = p.p[0];
    unsigned width = b < base || b > base + 2 ? 0 : first_width << (b - base);
    *number = 0;
    if (width == 0 && fixed && (b & 0xf0) == fixed)
        *number = b & 0x0f;
    else if (width == 0 || width > 4 || left < 1 + width)
        return walk_corrupt(w, err);
    for (unsigned i = 0; i < width; i++)
        *number = *number << 8 | p.p[1 + i];
    w->pos += 1 + width;
    return 0;
}

int walk_map(struct walk *w, uint32_t *count, struct mcfs_error *err)
{
    return read_wide_head(w, 0xde, 2, 0x80, count, err);
}

int walk_name(struct walk *w, char *name, size_t cap, struct mcfs_error *err)
{
    struct mp_reader p;
    struct mcfs_slice v;
    if (at_head(w, &p, err))
        return -1;
    if (!mp_read_raw(&p, &v) || v.len >= cap)
        return walk_corrupt(w, err);
    memcpy(name, v.data, v.len);
    name[v.len] = 0;
    advance(w, &p);
    return 0;
}

int walk_value(struct walk *w, struct mcfs_buf *out, struct mcfs_error *err)
{
    for (size_t want = HEAD_MAX;; want *= 2) {
        if (fill(w, want, err))
            return -1;
        struct mp_scan scan = {0};
        size_t have = w->window.len - w->pos;
        int64_t n = mp_scan(&scan, w->window.data + w->pos, have, VALUE_MAX);
        if (n < 0 || (n == 0 && have < want))
            return walk_corrupt(w, err);
        if (n == 0)
            continue;
        mcfs_buf_append(out, w->window.data + w->pos, (size_t)n);
        w->pos += (size_t)n;
        return out->failed ? mcfs_fail_errno(err, ENOMEM, "%s", w->name) : 0;
    }
}

static int read_place(struct walk *w, struct place *out, struct mcfs_error *err)
{
    struct mp_reader p;
    uint32_t shard, length = 0;
    if (at_head(w, &p, err))
        return -1;
    if (!mp_read_u32_max(&p, MCFS_SHARD_COUNT - 1, &shard))
        return walk_corrupt(w, err);
    advance(w, &p);
    if (read_wide_head(w, 0xc4, 1, 0, &length, err))
        return -1;
    if (length == 0 || length > SHARD_FRAME_MAX)
        return walk_corrupt(w, err);
    *out = (struct place){walk_position(w), shard, length};
    walk_seek(w, walk_position(w) + length);
    return 0;
}

int walk_places(struct walk *w, struct places *out, struct mcfs_error *err)
{
    bool seen[MCFS_SHARD_COUNT] = {false};
    uint32_t count = 0;
    if (walk_map(w, &count, err))
        return -1;
    if (count > MCFS_SHARD_COUNT)
        return walk_corrupt(w, err);
    out->v = calloc(count ? count : 1, sizeof(*out->v));
    if (!out->v)
        return mcfs_fail_errno(err, ENOMEM, "%s", w->name);
    for (; out->count < count; out->count++) {
        struct place *p = &out->v[out->count];
        if (read_place(w, p, err))
            return -1;
        if (seen[p->shard])
            return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: shard %u is there twice", w->name,
                             p->shard);
        seen[p->shard] = true;
    }
    return 0;
}

int walk_end(struct walk *w, struct mcfs_error *err)
{
    if (fill(w, 1, err))
        return -1;
    return w->window.len == w->pos ? 0 : walk_corrupt(w, err);
}

int read_range(struct mcfs_object_store *store, const char *path, const char *name, uint64_t off,
               uint64_t len, struct mcfs_buf *out, struct mcfs_error *err)
{
    while (len > 0) {
        size_t want = (size_t)MCFS_MIN(len, READ_PIECE);
        uint8_t *to = mcfs_buf_reserve(out, want);
        if (!to)
            return mcfs_fail_errno(err, ENOMEM, "%s", name);
        ssize_t n = store->ops->read(store, path, off, to, want, err);
        if (n < 0)
            return -1;
        if (n == 0)
            return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: cut short", name);
        out->len += (size_t)n;
        off += (size_t)n;
        len -= (uint64_t)n;
    }
    return 0;
}
