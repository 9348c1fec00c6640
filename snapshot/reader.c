/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a snapshot without holding it: the containers `metadata` and `mooncakefs` are walked by
 * their heads alone, to learn where each shard's frame lies, and a shard is fetched and decoded
 * when it is asked for.
 */
#include "snapshot/snapshot.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/mp.h"
#include "snapshot/frame.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#define WINDOW (64u << 10)
#define SHARD_FRAME_MAX (512u << 20) /* bytes of one shard, packed */
#define VALUE_MAX (64u << 20)        /* bytes of anything else in a container */
#define SMALL_FILE_MAX (512u << 20)  /* segments and task_manager, packed */

struct place {
    uint32_t shard;
    uint64_t offset, length;
};

struct places {
    struct place *v;
    uint32_t count;
};

struct snap_reader {
    struct mcfs_object_store *store;
    char *cluster, id[SNAP_ID_SIZE];
    struct snap_info info;
    struct places metadata, extra;
    struct mcfs_buf discarded;
    bool has_extra;
    struct sum { /* of the other files, as `mooncakefs` has them */
        char name[32];
        uint64_t size;
        uint32_t crc;
    } sums[8];
    uint32_t sum_count;
};

/* ---- a container, read through a window ---- */

struct walk {
    struct snap_reader *r;
    const char *file;
    uint64_t at; /* of the window */
    struct mcfs_buf window;
    size_t pos; /* in it */
};

/* Makes at least `want` bytes available from the position on, or as many as the file has. */
static int fill(struct walk *w, size_t want, struct mcfs_error *err)
{
    if (w->window.len - w->pos >= want)
        return 0;
    w->at += w->pos;
    w->pos = 0;
    mcfs_buf_reset(&w->window);
    size_t size = MCFS_MAX(want, (size_t)WINDOW);
    uint8_t *to = mcfs_buf_reserve(&w->window, size);
    if (!to)
        return mcfs_fail_errno(err, ENOMEM, "%s", w->file);
    ssize_t n = snap_repo_read(w->r->store, w->r->cluster, w->r->id, w->file, w->at, to, size, err);
    if (n < 0)
        return -1;
    w->window.len = (size_t)n;
    return 0;
}

static int corrupt(struct walk *w, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/%s: cut short or of another form than expected",
                     w->r->id, w->file);
}

/* A reader at the next value, of which at least the head is there. */
static int at_head(struct walk *w, struct mp_reader *p, struct mcfs_error *err)
{
    if (fill(w, 512, err))
        return -1;
    *p = mp_reader(w->window.data + w->pos, w->window.len - w->pos);
    return 0;
}

static void advance(struct walk *w, const struct mp_reader *p)
{
    w->pos = (size_t)(p->p - w->window.data);
}

/* The head of a map or array, whose count may be more than what is in the window. */
static int read_count(struct walk *w, bool map, uint32_t *count, struct mcfs_error *err)
{
    struct mp_reader p;
    if (at_head(w, &p, err))
        return -1;
    size_t left = (size_t)(p.end - p.p);
    uint8_t b = left ? p.p[0] : 0;
    unsigned bytes = b == (map ? 0xde : 0xdc) ? 2 : b == (map ? 0xdf : 0xdd) ? 4 : 0;
    if (!left || left < 1 + bytes)
        return corrupt(w, err);
    *count = 0;
    if (bytes == 0 && (b & 0xf0) == (map ? 0x80 : 0x90))
        *count = b & 0x0f;
    else if (bytes == 0)
        return corrupt(w, err);
    for (unsigned i = 0; i < bytes; i++)
        *count = *count << 8 | p.p[1 + i];
    w->pos += 1 + bytes;
    return 0;
}

/* The head of a bin; its bytes begin at the position. */
static int read_bin_head(struct walk *w, uint32_t *len, struct mcfs_error *err)
{
    struct mp_reader p;
    if (at_head(w, &p, err))
        return -1;
    size_t left = (size_t)(p.end - p.p);
    unsigned bytes = left && p.p[0] >= 0xc4 && p.p[0] <= 0xc6 ? 1u << (p.p[0] - 0xc4) : 0;
    if (!bytes || left < 1 + bytes)
        return corrupt(w, err);
    *len = 0;
    for (unsigned i = 0; i < bytes; i++)
        *len = *len << 8 | p.p[1 + i];
    w->pos += 1 + bytes;
    return 0;
}

/* Moves past bytes that are not read. */
static void skip_bytes(struct walk *w, uint64_t n)
{
    uint64_t here = w->window.len - w->pos;
    if (n <= here) {
        w->pos += (size_t)n;
        return;
    }
    w->at += w->window.len + (n - here);
    w->pos = 0;
    mcfs_buf_reset(&w->window);
}

static int read_places(struct walk *w, struct places *out, struct mcfs_error *err)
{
    uint32_t count;
    if (read_count(w, true, &count, err))
        return -1;
    if (count > MCFS_SHARD_COUNT)
        return corrupt(w, err);
    out->v = calloc(count ? count : 1, sizeof(*out->v));
    if (!out->v)
        return mcfs_fail_errno(err, ENOMEM, "%s", w->file);
    for (uint32_t i = 0; i < count; i++) {
        struct mp_reader p;
        uint32_t shard, len = 0;
        if (at_head(w, &p, err))
            return -1;
        if (!mp_read_u32_max(&p, MCFS_SHARD_COUNT - 1, &shard))
            return corrupt(w, err);
        advance(w, &p);
        if (read_bin_head(w, &len, err))
            return -1;
        if (len == 0 || len > SHARD_FRAME_MAX)
            return corrupt(w, err);
        out->v[out->count++] = (struct place){shard, w->at + w->pos, len};
        skip_bytes(w, len);
    }
    return 0;
}

/* One value of any form that is not large; its encoded bytes are appended to out. */
static int read_value(struct walk *w, struct mcfs_buf *out, struct mcfs_error *err)
{
    struct mp_scan scan = {0};
    for (size_t want = 512;; want *= 2) {
        if (fill(w, want, err))
            return -1;
        size_t have = w->window.len - w->pos;
        scan = (struct mp_scan){0};
        int64_t n = mp_scan(&scan, w->window.data + w->pos, have, VALUE_MAX);
        if (n < 0 || (n == 0 && have < want))
            return corrupt(w, err);
        if (n == 0)
            continue;
        mcfs_buf_append(out, w->window.data + w->pos, (size_t)n);
        w->pos += (size_t)n;
        return out->failed ? mcfs_fail_errno(err, ENOMEM, "%s", w->file) : 0;
    }
}

static int read_metadata_field(struct walk *w, struct mcfs_slice name, bool *has_next,
                               struct mcfs_error *err)
{
    struct snap_reader *r = w->r;
    _cleanup_buf_ struct mcfs_buf value = MCFS_BUF_INIT;
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("shards")) && !r->metadata.v)
        return read_places(w, &r->metadata, err);
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("discarded_replicas")) && !r->discarded.len)
        return read_value(w, &r->discarded, err);
    if (read_value(w, &value, err))
        return -1;
    struct mp_reader p = mp_reader(value.data, value.len);
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("replica_next_id")))
        *has_next = mp_read_uint(&p, &r->info.replica_next_id);
    return 0;
}

static bool read_sums(struct snap_reader *r, struct mp_reader *p)
{
    uint32_t n;
    if (!mp_read_map(p, &n) || n > MCFS_ARRAY_SIZE(r->sums))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct sum *sum = &r->sums[i];
        struct mcfs_slice name;
        if (!mp_read_raw(p, &name) || name.len >= sizeof(sum->name) || !mp_read_array_of(p, 2) ||
            !mp_read_uint(p, &sum->size) || !mp_read_u32_max(p, UINT32_MAX, &sum->crc))
            return false;
        memcpy(sum->name, name.data, name.len);
        sum->name[name.len] = 0;
    }
    r->sum_count = n;
    return true;
}

static int read_extra_field(struct walk *w, struct mcfs_slice name, bool *good,
                            struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf value = MCFS_BUF_INIT;
    uint64_t format;
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("shards")) && !w->r->extra.v)
        return read_places(w, &w->r->extra, err);
    if (read_value(w, &value, err))
        return -1;
    struct mp_reader p = mp_reader(value.data, value.len);
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("format")))
        *good = mp_read_uint(&p, &format) && format == 1;
    else if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("files")) && !read_sums(w->r, &p))
        return corrupt(w, err);
    return 0;
}

static int walk_container(struct snap_reader *r, const char *file,
                          int (*field)(struct walk *w, struct mcfs_slice name, bool *flag,
                                       struct mcfs_error *err),
                          bool *flag, struct mcfs_error *err)
{
    struct walk w = {.r = r, .file = file};
    uint32_t fields = 0;
    int rc = read_count(&w, true, &fields, err);
    if (rc == 0 && fields > 16)
        rc = corrupt(&w, err);
    for (uint32_t i = 0; rc == 0 && i < fields; i++) {
        struct mp_reader p;
        struct mcfs_slice name;
        char copy[64];
        rc = at_head(&w, &p, err);
        if (rc == 0 && (!mp_read_raw(&p, &name) || name.len >= sizeof(copy)))
            rc = corrupt(&w, err);
        if (rc)
            break;
        memcpy(copy, name.data, name.len);
        advance(&w, &p);
        rc = field(&w, mcfs_slice(copy, name.len), flag, err);
    }
    /* The last shard's frame may have been skipped over past the end. */
    mcfs_buf_free(&w.window);
    return rc;
}

/* ---- opening ---- */

static int read_text(struct snap_reader *r, const char *file, char *out, size_t cap,
                     struct mcfs_error *err)
{
    ssize_t n = snap_repo_read(r->store, r->cluster, r->id, file, 0, out, cap - 1, err);
    if (n < 0)
        return -1;
    out[n] = 0;
    return 0;
}

static int check_texts(struct snap_reader *r, struct mcfs_error *err)
{
    char text[256], *save;
    if (read_text(r, "manifest.txt", text, sizeof(text), err))
        return -1;
    char *protocol = strtok_r(text, "|", &save), *version = strtok_r(NULL, "|", &save),
         *id = strtok_r(NULL, "|", &save);
    if (!protocol || !version || !id)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/manifest.txt: not a manifest", r->id);
    if (strcmp(protocol, "messagepack") != 0 || strcmp(version, "1.0.0") != 0)
        return mcfs_fail(err, MCFS_INVALID_VERSION, "%s/manifest.txt: %s %s is not supported",
                         r->id, protocol, version);
    if (read_text(r, "descriptor.txt", text, sizeof(text), err))
        return -1;
    if (sscanf(text, "%" SCNu64 "|%" SCNu64 "|%" SCNd64, &r->info.last_included_seq,
               &r->info.producer_view_version, &r->info.created_ms) != 3)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/descriptor.txt: not a descriptor", r->id);
    return 0;
}

/* Holds a file against the checksum that was taken when it was written. */
static int check_sum(struct snap_reader *r, const struct sum *sum, struct mcfs_error *err)
{
    size_t chunk = 1 << 20;
    _cleanup_free_ char *buf = malloc(chunk);
    uint64_t size = 0;
    uint32_t crc = 0;
    ssize_t n;
    if (!buf)
        return mcfs_fail_errno(err, ENOMEM, "%s/%s", r->id, sum->name);
    do {
        n = snap_repo_read(r->store, r->cluster, r->id, sum->name, size, buf, chunk, err);
        if (n < 0)
            return -1;
        crc = mcfs_crc32c(crc, buf, (size_t)n);
        size += (size_t)n;
    } while (n > 0 && size <= sum->size);
    if (size != sum->size)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL,
                         "%s/%s: %" PRIu64 " bytes where %" PRIu64 " were written", r->id,
                         sum->name, size, sum->size);
    if (crc != sum->crc)
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s/%s: the checksum is wrong", r->id,
                         sum->name);
    return 0;
}

struct snap_reader *snap_reader_open(struct mcfs_object_store *store, const char *cluster,
                                     const char *id, struct mcfs_error *err)
{
    struct snap_reader *r = calloc(1, sizeof(*r));
    if (!r || !(r->cluster = strdup(cluster))) {
        free(r);
        mcfs_fail_errno(err, ENOMEM, "snapshot %s", id);
        return NULL;
    }
    r->store = store;
    snprintf(r->id, sizeof(r->id), "%s", id);
    bool has_next = false, good = false;
    struct mcfs_error extra = MCFS_ERROR_INIT;
    int rc = check_texts(r, err);
    if (rc == 0)
        rc = walk_container(r, "metadata", read_metadata_field, &has_next, err);
    if (rc == 0 && (!r->metadata.v || !has_next))
        rc = mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/metadata: not a directory's metadata", id);
    if (rc == 0) {
        rc = walk_container(r, "mooncakefs", read_extra_field, &good, &extra);
        r->has_extra = rc == 0 && good && r->extra.v;
        if (rc && extra.errnum != ENOENT && err)
            *err = extra;
        if (extra.errnum == ENOENT) /* Mooncake's own snapshots have none */
            rc = 0;
        else if (rc == 0 && !r->has_extra)
            rc =
                mcfs_fail(err, MCFS_INVALID_VERSION, "%s/mooncakefs: of a form not known here", id);
    }
    for (uint32_t i = 0; rc == 0 && i < r->sum_count; i++)
        rc = check_sum(r, &r->sums[i], err);
    if (rc == 0)
        return r;
    snap_reader_close(r);
    return NULL;
}

void snap_reader_close(struct snap_reader *r)
{
    if (!r)
        return;
    free(r->metadata.v);
    free(r->extra.v);
    mcfs_buf_free(&r->discarded);
    free(r->cluster);
    free(r);
}

const struct snap_info *snap_reader_info(const struct snap_reader *r)
{
    return &r->info;
}

uint32_t snap_reader_shards(const struct snap_reader *r)
{
    return r->metadata.count;
}

struct mcfs_slice snap_reader_discarded(const struct snap_reader *r)
{
    return mcfs_slice(r->discarded.data, r->discarded.len);
}

/* ---- shards ---- */

static int fetch(struct snap_reader *r, const char *file, uint64_t off, uint64_t len,
                 struct mcfs_buf *out, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf packed = MCFS_BUF_INIT;
    /* Read in pieces: a length that the file does not back costs nothing. */
    while (packed.len < len) {
        size_t want = (size_t)MCFS_MIN(len - packed.len, 4u << 20);
        uint8_t *to = mcfs_buf_reserve(&packed, want);
        if (!to)
            return mcfs_fail_errno(err, ENOMEM, "%s/%s", r->id, file);
        ssize_t n =
            snap_repo_read(r->store, r->cluster, r->id, file, off + packed.len, to, want, err);
        if (n < 0)
            return -1;
        if (n == 0)
            return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/%s: cut short", r->id, file);
        packed.len += (size_t)n;
    }
    if (frame_unpack(mcfs_slice(packed.data, packed.len), out, err))
        return mcfs_error_prefix(err, "%s/%s", r->id, file);
    return 0;
}

static const struct place *extra_of(const struct snap_reader *r, uint32_t shard)
{
    for (uint32_t i = 0; i < r->extra.count; i++)
        if (r->extra.v[i].shard == shard)
            return &r->extra.v[i];
    return NULL;
}

int snap_reader_shard(struct snap_reader *r, uint32_t place,
                      int (*fn)(const struct snap_object *o, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err)
{
    const struct place *p = &r->metadata.v[place], *x = extra_of(r, p->shard);
    _cleanup_buf_ struct mcfs_buf metadata = MCFS_BUF_INIT, extra = MCFS_BUF_INIT;
    if (fetch(r, "metadata", p->offset, p->length, &metadata, err))
        return -1;
    if (r->has_extra && !x)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/mooncakefs: shard %u is missing", r->id,
                         p->shard);
    if (r->has_extra && fetch(r, "mooncakefs", x->offset, x->length, &extra, err))
        return -1;
    struct mcfs_error decode = MCFS_ERROR_INIT;
    if (snap_decode_shard(mcfs_slice(metadata.data, metadata.len),
                          mcfs_slice(extra.data, extra.len), fn, arg, &decode)) {
        if (err)
            *err = decode;
        return mcfs_error_prefix(err, "%s/metadata, shard %u", r->id, p->shard);
    }
    return 0;
}

static int read_packed_file(struct snap_reader *r, const char *file, struct mcfs_buf *out,
                            struct mcfs_error *err)
{
    struct mcfs_object_info info;
    struct mcfs_error stat = MCFS_ERROR_INIT;
    char path[PATH_MAX];
    snap_path(path, sizeof(path), r->cluster, r->id, file);
    if (r->store->ops->stat(r->store, path, &info, &stat)) {
        if (err)
            *err = stat;
        return -1;
    }
    if (info.size > SMALL_FILE_MAX)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/%s: %" PRIu64 " bytes", r->id, file,
                         info.size);
    if (fetch(r, file, 0, info.size, out, err))
        return -1;
    struct mp_reader p = mp_reader(out->data, out->len);
    if (!mp_skip(&p, NULL) || !mp_done(&p))
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/%s: not MessagePack", r->id, file);
    return 0;
}

int snap_reader_segments(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err)
{
    if (read_packed_file(r, "segments", out, err))
        return -1;
    struct mp_reader p = mp_reader(out->data, out->len);
    return mp_peek(&p) == MP_MAP
               ? 0
               : mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/segments: not a map", r->id);
}

int snap_reader_tasks(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err)
{
    if (read_packed_file(r, "task_manager", out, err))
        return -1;
    struct mp_reader p = mp_reader(out->data, out->len);
    return mp_peek(&p) == MP_ARRAY
               ? 0
               : mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/task_manager: not an array", r->id);
}
