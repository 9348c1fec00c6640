/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot on its way into a store: shards stream through, and nothing is published before all of
 * it is durable. */
#include "snapshot/extra.h"
#include "snapshot/names.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/id.h"
#include "common/mp.h"
#include "snapshot/frame.h"

#include <inttypes.h>
#include <stdio.h>

/* One file that streams into the store, with what it has summed up to. */
struct stream {
    struct mcfs_object_store *store;
    struct mcfs_object_store_put *put;
    uint64_t size;
    uint32_t crc;
};

struct snap_writer {
    struct snap_writer_config config;
    struct stream metadata, extra;
    struct extra index; /* as it grows */
    uint32_t head_crc;
    bool seen[MCFS_SHARD_COUNT];
};

/* In the order in which they are published. */
static const char *const files[] = {"metadata", "segments",     "task_manager",
                                    EXTRA_FILE, "manifest.txt", "descriptor.txt"};

static int stream_open(struct stream *st, const struct snap_writer_config *c, const char *file,
                       struct mcfs_error *err)
{
    char path[SNAP_PATH_MAX];
    snap_path(path, sizeof(path), c->cluster, c->id, file);
    *st = (struct stream){.store = c->store};
    st->put = c->store->ops->put_begin(c->store, path, err);
    return st->put ? 0 : -1;
}

static int stream_write(struct stream *st, const void *data, size_t len, struct mcfs_error *err)
{
    st->crc = mcfs_crc32c(st->crc, data, len);
    st->size += len;
    return st->store->ops->put_write(st->put, data, len, err);
}

static int stream_write_buf(struct stream *st, const struct mcfs_buf *b, struct mcfs_error *err)
{
    return b->failed ? mcfs_fail_errno(err, ENOMEM, "snapshot")
                     : stream_write(st, b->data, b->len, err);
}

static int stream_commit(struct stream *st, struct mcfs_error *err)
{
    struct mcfs_object_store_put *put = st->put;
    st->put = NULL;
    return st->store->ops->put_commit(put, err);
}

static void stream_abort(struct stream *st)
{
    if (st->put)
        st->store->ops->put_abort(st->put);
    st->put = NULL;
}

/* ---- begin ---- */

static int refuse_published(const struct snap_writer_config *c, struct mcfs_error *err)
{
    char path[SNAP_PATH_MAX];
    struct mcfs_object_info info;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    snap_path(path, sizeof(path), c->cluster, c->id, "descriptor.txt");
    if (c->store->ops->stat(c->store, path, &info, &bad) == 0)
        return mcfs_fail_errno(err, EEXIST, "snapshot %s", c->id);
    if (bad.errnum == ENOENT)
        return 0;
    if (err)
        *err = bad;
    return -1;
}

static int write_heads(struct snap_writer *w, struct mcfs_error *err)
{
    const struct snap_writer_config *c = &w->config;
    _cleanup_buf_ struct mcfs_buf head = MCFS_BUF_INIT, extra = MCFS_BUF_INIT;
    mp_put_map(&head, 3);
    mp_put_cstr(&head, "shards");
    mp_put_map(&head, c->shard_count);
    extra_put_head(&c->info, c->nodes, c->node_count, c->shard_count, &extra);
    w->head_crc = extra_head_crc(&extra, c->shard_count);
    return stream_write_buf(&w->metadata, &head, err) || stream_write_buf(&w->extra, &extra, err)
               ? -1
               : 0;
}

struct snap_writer *snap_writer_begin(const struct snap_writer_config *config,
                                      struct mcfs_error *err)
{
    if (names_check(config->cluster, config->id, err) || refuse_published(config, err))
        return NULL;
    struct snap_writer *w = calloc(1, sizeof(*w));
    size_t shards = config->shard_count ? config->shard_count : 1;
    if (!w || !(w->index.shards = calloc(shards, sizeof(*w->index.shards)))) {
        free(w);
        mcfs_fail_errno(err, ENOMEM, "snapshot");
        return NULL;
    }
    w->config = *config;
    if (stream_open(&w->metadata, config, "metadata", err) ||
        stream_open(&w->extra, config, EXTRA_FILE, err) || write_heads(w, err)) {
        snap_writer_abort(w);
        return NULL;
    }
    return w;
}

/* ---- shards ---- */

static int write_shard(struct stream *st, uint32_t shard, struct mcfs_slice frame,
                       struct place *place, uint32_t *crc, struct mcfs_error *err)
{
    uint8_t room[32];
    struct mcfs_buf head = {room, 0, sizeof(room), false};
    if (frame.len == 0 || frame.len > SHARD_FRAME_MAX)
        return mcfs_fail_errno(err, EFBIG, "shard %u takes %zu bytes", shard, frame.len);
    mp_put_uint(&head, shard);
    mp_put_bin_header(&head, (uint32_t)frame.len);
    if (stream_write(st, head.data, head.len, err))
        return -1;
    *place = (struct place){st->size, shard, (uint32_t)frame.len};
    *crc = mcfs_crc32c(0, frame.data, frame.len);
    return stream_write(st, frame.data, frame.len, err);
}

int snap_writer_shard(struct snap_writer *w, uint32_t shard, struct mcfs_slice metadata,
                      struct mcfs_slice extra, struct mcfs_error *err)
{
    if (shard >= MCFS_SHARD_COUNT || w->seen[shard] ||
        w->index.shard_count >= w->config.shard_count)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "shard %u is not expected", shard);
    struct extra_shard *s = &w->index.shards[w->index.shard_count];
    if (write_shard(&w->metadata, shard, metadata, &s->metadata, &s->metadata_crc, err) ||
        write_shard(&w->extra, shard, extra, &s->extra, &s->extra_crc, err))
        return -1;
    w->seen[shard] = true;
    w->index.shard_count++;
    return 0;
}

/* ---- commit ---- */

/* A store whose clients are the nodes and that has no memory segments. */
static void put_segments_of_nodes(const struct snap_writer_config *c, struct mcfs_buf *b)
{
    mp_put_map(b, 5);
    mp_put_cstr(b, "ma");
    mp_put_int(b, 1); /* the offset allocator */
    mp_put_cstr(b, "an");
    mp_put_array(b, 0);
    mp_put_cstr(b, "ms");
    mp_put_map(b, 0);
    mp_put_cstr(b, "cs");
    mp_put_map(b, 0);
    mp_put_cstr(b, "ld");
    mp_put_map(b, c->node_count);
    for (uint32_t i = 0; i < c->node_count; i++) {
        char id[MCFS_ID_TEXT_MAX];
        mp_put_cstr(b, mcfs_id_format(c->nodes[i].id, id));
        mp_put_array(b, 3);
        mp_put_bool(b, true);
        mp_put_uint(b, 0);
        mp_put_uint(b, c->nodes[i].capacity_bytes);
    }
}

static int finish_metadata(struct snap_writer *w, struct mcfs_error *err)
{
    const struct snap_writer_config *c = &w->config;
    _cleanup_buf_ struct mcfs_buf rest = MCFS_BUF_INIT;
    if (w->index.shard_count != c->shard_count)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "snapshot %s: %u of %u shards", c->id,
                         w->index.shard_count, c->shard_count);
    mp_put_cstr(&rest, "discarded_replicas");
    if (c->discarded.len)
        mcfs_buf_append(&rest, c->discarded.data, c->discarded.len);
    else
        mp_put_array(&rest, 0);
    mp_put_cstr(&rest, "replica_next_id");
    mp_put_uint(&rest, c->info.replica_next_id);
    w->index.rest_at = w->metadata.size;
    if (stream_write_buf(&w->metadata, &rest, err))
        return -1;
    w->index.rest_crc = mcfs_crc32c(0, rest.data, rest.len);
    w->index.files[EXTRA_METADATA] = (struct extra_sum){w->metadata.size, w->metadata.crc};
    return stream_commit(&w->metadata, err);
}

/* A payload as one frame. */
static int put_packed(struct snap_writer *w, int which, const struct mcfs_buf *content,
                      struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf frame = MCFS_BUF_INIT;
    struct stream st;
    if (content->failed)
        return mcfs_fail_errno(err, ENOMEM, "snapshot");
    if (frame_pack(NULL, mcfs_slice(content->data, content->len), &frame, err) ||
        stream_open(&st, &w->config, extra_file_names[which], err))
        return -1;
    if (stream_write(&st, frame.data, frame.len, err)) {
        stream_abort(&st);
        return -1;
    }
    w->index.files[which] = (struct extra_sum){st.size, st.crc};
    return stream_commit(&st, err);
}

static int finish_packed(struct snap_writer *w, struct mcfs_error *err)
{
    const struct snap_writer_config *c = &w->config;
    _cleanup_buf_ struct mcfs_buf segments = MCFS_BUF_INIT, tasks = MCFS_BUF_INIT;
    if (c->segments.len)
        mcfs_buf_append(&segments, c->segments.data, c->segments.len);
    else
        put_segments_of_nodes(c, &segments);
    if (c->tasks.len)
        mcfs_buf_append(&tasks, c->tasks.data, c->tasks.len);
    else
        mp_put_array(&tasks, 0);
    return put_packed(w, EXTRA_SEGMENTS, &segments, err) || put_packed(w, EXTRA_TASKS, &tasks, err)
               ? -1
               : 0;
}

static int finish_extra(struct snap_writer *w, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf tail = MCFS_BUF_INIT;
    extra_put_tail(&w->index, w->head_crc, w->extra.size, &tail);
    return stream_write_buf(&w->extra, &tail, err) || stream_commit(&w->extra, err) ? -1 : 0;
}

static int put_text(struct snap_writer *w, const char *id, const char *file, const char *text,
                    struct mcfs_error *err)
{
    char path[SNAP_PATH_MAX];
    snap_path(path, sizeof(path), w->config.cluster, id, file);
    return value_write(w->config.store, path, mcfs_slice_str(text), err);
}

static int finish_texts(struct snap_writer *w, struct mcfs_error *err)
{
    const struct snap_writer_config *c = &w->config;
    char text[128];
    snprintf(text, sizeof(text), "messagepack|1.0.0|%s", c->id);
    if (put_text(w, c->id, "manifest.txt", text, err))
        return -1;
    snprintf(text, sizeof(text), "%" PRIu64 "|%" PRIu64 "|%" PRId64, c->info.last_included_seq,
             c->info.producer_view_version, c->info.created_ms);
    return put_text(w, c->id, "descriptor.txt", text, err);
}

static void writer_free(struct snap_writer *w)
{
    free(w->index.shards);
    free(w);
}

int snap_writer_commit(struct snap_writer *w, struct mcfs_error *err)
{
    if (finish_metadata(w, err) || finish_packed(w, err) || finish_extra(w, err) ||
        finish_texts(w, err)) {
        snap_writer_abort(w);
        return -1;
    }
    /* The snapshot is whole from here on, whether latest.txt can be made to name it or not. */
    int rc = put_text(w, NULL, "latest.txt", w->config.id, err);
    writer_free(w);
    return rc;
}

/* Takes back what is in the store already, last things first: without its descriptor it is no
 * snapshot. */
void snap_writer_abort(struct snap_writer *w)
{
    struct mcfs_object_store *store = w->config.store;
    char path[SNAP_PATH_MAX];
    stream_abort(&w->metadata);
    stream_abort(&w->extra);
    for (size_t i = MCFS_ARRAY_SIZE(files); i-- > 0;) {
        snap_path(path, sizeof(path), w->config.cluster, w->config.id, files[i]);
        store->ops->remove(store, path, NULL);
    }
    writer_free(w);
}
