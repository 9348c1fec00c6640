/* SPDX-License-Identifier: Apache-2.0 */
#include "snapshot/extra.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/id.h"
#include "common/mp.h"

#define FIELDS 9
#define TRAILER 18 /* "index_at" as a fixstr and a uint64 of full width */
#define TAIL_MAX (1u << 20)
#define NODES_MAX (1u << 20)

static const char trailer_mark[] = "\xa8index_at\xcf";

const char *const extra_file_names[EXTRA_FILES] = {"metadata", "segments", "task_manager"};

/* ---- writing ---- */

static void put_shards_head(uint32_t shard_count, struct mcfs_buf *out)
{
    mp_put_cstr(out, "shards");
    mp_put_map(out, shard_count);
}

void extra_put_head(const struct snap_info *info, const struct snap_node *nodes,
                    uint32_t node_count, uint32_t shard_count, struct mcfs_buf *out)
{
    mp_put_map(out, FIELDS);
    mp_put_cstr(out, "format");
    mp_put_uint(out, EXTRA_FORMAT);
    mp_put_cstr(out, "info");
    mp_put_array(out, 4);
    mp_put_uint(out, info->last_included_seq);
    mp_put_uint(out, info->producer_view_version);
    mp_put_int(out, info->created_ms);
    mp_put_uint(out, info->replica_next_id);
    mp_put_cstr(out, "nodes");
    mp_put_array(out, node_count);
    for (uint32_t i = 0; i < node_count; i++) {
        char id[MCFS_ID_TEXT_MAX];
        mp_put_array(out, 4);
        mp_put_cstr(out, mcfs_id_format(nodes[i].id, id));
        mp_put_str(out, nodes[i].name);
        mp_put_str(out, nodes[i].endpoint);
        mp_put_uint(out, nodes[i].capacity_bytes);
    }
    put_shards_head(shard_count, out);
}

uint32_t extra_head_crc(const struct mcfs_buf *head, uint32_t shard_count)
{
    _cleanup_buf_ struct mcfs_buf shards = MCFS_BUF_INIT;
    put_shards_head(shard_count, &shards);
    return head->len < shards.len ? 0 : mcfs_crc32c(0, head->data, head->len - shards.len);
}

static void put_place(const struct place *p, uint32_t crc, struct mcfs_buf *out)
{
    mp_put_uint(out, p->offset);
    mp_put_uint(out, p->length);
    mp_put_uint(out, crc);
}

void extra_put_tail(const struct extra *x, uint32_t head_crc, uint64_t at, struct mcfs_buf *out)
{
    size_t start = out->len;
    mp_put_cstr(out, "files");
    mp_put_map(out, EXTRA_FILES);
    for (int i = 0; i < EXTRA_FILES; i++) {
        mp_put_cstr(out, extra_file_names[i]);
        mp_put_array(out, 2);
        mp_put_uint(out, x->files[i].size);
        mp_put_uint(out, x->files[i].crc);
    }
    mp_put_cstr(out, "index");
    mp_put_array(out, x->shard_count);
    for (uint32_t i = 0; i < x->shard_count; i++) {
        const struct extra_shard *s = &x->shards[i];
        mp_put_array(out, 7);
        mp_put_uint(out, s->metadata.shard);
        put_place(&s->metadata, s->metadata_crc, out);
        put_place(&s->extra, s->extra_crc, out);
    }
    mp_put_cstr(out, "rest");
    mp_put_array(out, 2);
    mp_put_uint(out, x->rest_at);
    mp_put_uint(out, x->rest_crc);
    mp_put_cstr(out, "crc");
    if (!out->failed)
        mp_put_uint(out, mcfs_crc32c(head_crc, out->data + start, out->len - start));
    mcfs_buf_append(out, trailer_mark, sizeof(trailer_mark) - 1);
    for (int shift = 56; shift >= 0; shift -= 8) {
        uint8_t byte = (uint8_t)(at >> shift);
        mcfs_buf_append(out, &byte, 1);
    }
}

/* ---- reading ---- */

void extra_free(struct extra *x)
{
    free(x->nodes);
    free(x->shards);
    mcfs_buf_free(&x->head);
    *x = (struct extra){0};
}

static bool read_info(struct mp_reader *p, struct snap_info *info)
{
    return mp_read_array_of(p, 4) && mp_read_uint(p, &info->last_included_seq) &&
           mp_read_uint(p, &info->producer_view_version) && mp_read_int(p, &info->created_ms) &&
           mp_read_uint(p, &info->replica_next_id) && mp_done(p);
}

static bool read_nodes(struct mp_reader *p, struct extra *x)
{
    uint32_t n;
    if (!mp_read_array(p, &n) || n > NODES_MAX || n > (size_t)(p->end - p->p) / 5)
        return false;
    x->nodes = calloc(n ? n : 1, sizeof(*x->nodes));
    for (; x->nodes && x->node_count < n; x->node_count++) {
        struct snap_node *node = &x->nodes[x->node_count];
        struct mcfs_slice id;
        if (!mp_read_array_of(p, 4) || !mp_read_raw(p, &id) || mcfs_id_parse(id, &node->id) ||
            !mp_read_raw(p, &node->name) || !mp_read_raw(p, &node->endpoint) ||
            !mp_read_uint(p, &node->capacity_bytes))
            return false;
    }
    return x->nodes && mp_done(p);
}

/* format, info and nodes, in this order, up to the name `shards`, whose offset is returned. */
static int read_head(struct walk *w, struct extra *x, uint64_t *shards_at, struct mcfs_error *err)
{
    static const char *const expected[] = {"format", "info", "nodes", "shards"};
    _cleanup_buf_ struct mcfs_buf value = MCFS_BUF_INIT;
    char name[32];
    uint32_t fields;
    if (walk_map(w, &fields, err))
        return -1;
    for (int i = 0;; i++) {
        *shards_at = walk_position(w);
        if (walk_name(w, name, sizeof(name), err))
            return -1;
        if (strcmp(name, expected[i]) != 0)
            return walk_corrupt(w, err);
        if (i == 3)
            return fields == FIELDS ? 0 : walk_corrupt(w, err);
        struct mcfs_buf *to = i == 2 ? &x->head : &value;
        mcfs_buf_reset(to);
        if (walk_value(w, to, err))
            return -1;
        struct mp_reader p = mp_reader(to->data, to->len);
        uint64_t format;
        if (i == 0 && mp_read_uint(&p, &format) && format != EXTRA_FORMAT)
            return mcfs_fail(err, MCFS_INVALID_VERSION, "%s: format %llu is not known here",
                             w->name, (unsigned long long)format);
        if ((i == 0 && p.failed) || (i == 1 && !read_info(&p, &x->info)) ||
            (i == 2 && !read_nodes(&p, x)))
            return walk_corrupt(w, err);
    }
}

static bool read_name(struct mp_reader *p, const char *expected)
{
    struct mcfs_slice name;
    return mp_read_raw(p, &name) && mcfs_slice_eq(name, mcfs_slice_str(expected));
}

static bool read_files(struct mp_reader *p, struct extra *x)
{
    uint32_t n;
    if (!read_name(p, "files") || !mp_read_map(p, &n) || n != EXTRA_FILES)
        return false;
    for (int i = 0; i < EXTRA_FILES; i++)
        if (!read_name(p, extra_file_names[i]) || !mp_read_array_of(p, 2) ||
            !mp_read_uint(p, &x->files[i].size) ||
            !mp_read_u32_max(p, UINT32_MAX, &x->files[i].crc))
            return false;
    return true;
}

static bool read_place(struct mp_reader *p, uint32_t shard, uint64_t file_size, struct place *out,
                       uint32_t *crc)
{
    out->shard = shard;
    return mp_read_uint(p, &out->offset) && mp_read_u32_max(p, SHARD_FRAME_MAX, &out->length) &&
           mp_read_u32_max(p, UINT32_MAX, crc) && out->length > 0 && out->offset <= file_size &&
           out->length <= file_size - out->offset;
}

static bool read_index(struct mp_reader *p, uint64_t size, struct extra *x)
{
    bool seen[MCFS_SHARD_COUNT] = {false};
    uint32_t n, shard;
    if (!read_name(p, "index") || !mp_read_array(p, &n) || n > MCFS_SHARD_COUNT)
        return false;
    x->shards = calloc(n ? n : 1, sizeof(*x->shards));
    for (; x->shards && x->shard_count < n; x->shard_count++) {
        struct extra_shard *s = &x->shards[x->shard_count];
        if (!mp_read_array_of(p, 7) || !mp_read_u32_max(p, MCFS_SHARD_COUNT - 1, &shard) ||
            seen[shard] ||
            !read_place(p, shard, x->files[EXTRA_METADATA].size, &s->metadata, &s->metadata_crc) ||
            !read_place(p, shard, size, &s->extra, &s->extra_crc))
            return false;
        seen[shard] = true;
    }
    return x->shards != NULL;
}

static bool read_tail(struct mcfs_slice tail, uint64_t size, uint32_t head_crc, struct extra *x)
{
    struct mp_reader p = mp_reader(tail.data, tail.len);
    uint32_t crc;
    if (!read_files(&p, x) || !read_index(&p, size, x) || !read_name(&p, "rest") ||
        !mp_read_array_of(&p, 2) || !mp_read_uint(&p, &x->rest_at) ||
        !mp_read_u32_max(&p, UINT32_MAX, &x->rest_crc) || !read_name(&p, "crc"))
        return false;
    uint32_t found = mcfs_crc32c(head_crc, tail.data, (size_t)(p.p - (const uint8_t *)tail.data));
    return mp_read_u32_max(&p, UINT32_MAX, &crc) && crc == found && p.end - p.p == TRAILER &&
           x->rest_at <= x->files[EXTRA_METADATA].size;
}

int extra_read(struct mcfs_object_store *store, const char *path, const char *name, uint64_t size,
               struct extra *out, struct mcfs_error *err)
{
    struct walk w = {.store = store, .path = path, .name = name};
    _cleanup_buf_ struct mcfs_buf head = MCFS_BUF_INIT, trailer = MCFS_BUF_INIT;
    _cleanup_buf_ struct mcfs_buf tail = MCFS_BUF_INIT;
    uint64_t shards_at, at = 0;
    *out = (struct extra){0};
    int rc = read_head(&w, out, &shards_at, err);
    walk_free(&w);
    if (rc || read_range(store, path, name, 0, shards_at, &head, err))
        return -1;
    if (size < TRAILER + shards_at)
        return walk_corrupt(&w, err);
    if (read_range(store, path, name, size - TRAILER, TRAILER, &trailer, err))
        return -1;
    for (size_t i = TRAILER - 8; i < TRAILER; i++)
        at = at << 8 | trailer.data[i];
    if (memcmp(trailer.data, trailer_mark, TRAILER - 8) != 0 || at < shards_at ||
        at > size - TRAILER || size - at > TAIL_MAX)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: cut short", name);
    if (read_range(store, path, name, at, size - at, &tail, err))
        return -1;
    if (!read_tail(mcfs_slice(tail.data, tail.len), size, mcfs_crc32c(0, head.data, head.len), out))
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH,
                         "%s: damaged, or of another form than expected", name);
    return 0;
}

int extra_walk_shards(struct mcfs_object_store *store, const char *path, const char *name,
                      struct places *out, struct mcfs_error *err)
{
    struct walk w = {.store = store, .path = path, .name = name};
    struct extra x = {0};
    uint64_t shards_at;
    int rc = read_head(&w, &x, &shards_at, err);
    if (rc == 0)
        rc = walk_places(&w, out, err);
    walk_free(&w);
    extra_free(&x);
    return rc;
}
