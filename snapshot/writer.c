/* SPDX-License-Identifier: Apache-2.0 */
/* A snapshot on its way into a store: shards stream through, and nothing is published before all of
 * it is durable. */
#include "snapshot/snapshot.h"

#include "common/crc32c.h"
#include "common/id.h"
#include "common/mp.h"
#include "snapshot/frame.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <zstd.h>

#define EXTRA_FORMAT 1

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
    uint64_t sizes[3]; /* metadata, segments, task_manager */
    uint32_t crcs[3];
};

static const char *const summed[3] = {"metadata", "segments", "task_manager"};

static int stream_open(struct stream *st, const struct snap_writer_config *c, const char *file,
                       struct mcfs_error *err)
{
    char path[PATH_MAX];
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

static int stream_write_buf(struct stream *st, struct mcfs_buf *b, struct mcfs_error *err)
{
    int rc = b->failed ? mcfs_fail_errno(err, ENOMEM, "snapshot")
                       : stream_write(st, b->data, b->len, err);
    mcfs_buf_free(b);
    return rc;
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

/* A whole small file. */
static int put_file(struct snap_writer *w, const char *file, struct mcfs_slice content,
                    int sum_index, struct mcfs_error *err)
{
    struct stream st;
    if (stream_open(&st, &w->config, file, err))
        return -1;
    if (stream_write(&st, content.data, content.len, err)) {
        stream_abort(&st);
        return -1;
    }
    if (sum_index >= 0) {
        w->sizes[sum_index] = st.size;
        w->crcs[sum_index] = st.crc;
    }
    return stream_commit(&st, err);
}

struct snap_writer *snap_writer_begin(const struct snap_writer_config *config,
                                      struct mcfs_error *err)
{
    struct snap_writer *w = calloc(1, sizeof(*w));
    if (!w) {
        mcfs_fail_errno(err, ENOMEM, "snapshot");
        return NULL;
    }
    w->config = *config;
    struct mcfs_buf head = MCFS_BUF_INIT, extra = MCFS_BUF_INIT;
    mp_put_map(&head, 3);
    mp_put_cstr(&head, "shards");
    mp_put_map(&head, config->shard_count);

    mp_put_map(&extra, 4);
    mp_put_cstr(&extra, "format");
    mp_put_uint(&extra, EXTRA_FORMAT);
    mp_put_cstr(&extra, "nodes");
    mp_put_array(&extra, config->node_count);
    for (uint32_t i = 0; i < config->node_count; i++) {
        const struct snap_node *n = &config->nodes[i];
        char id[MCFS_ID_TEXT_MAX];
        mp_put_array(&extra, 3);
        mp_put_cstr(&extra, mcfs_id_format(n->id, id));
        mp_put_str(&extra, n->name);
        mp_put_str(&extra, n->endpoint);
    }
    mp_put_cstr(&extra, "shards");
    mp_put_map(&extra, config->shard_count);
    if (stream_open(&w->metadata, config, "metadata", err) ||
        stream_open(&w->extra, config, "mooncakefs", err) ||
        stream_write_buf(&w->metadata, &head, err) || stream_write_buf(&w->extra, &extra, err)) {
        mcfs_buf_free(&head);
        mcfs_buf_free(&extra);
        snap_writer_abort(w);
        return NULL;
    }
    return w;
}

static int write_shard(struct stream *st, uint32_t shard, struct mcfs_slice frame,
                       struct mcfs_error *err)
{
    struct mcfs_buf head = MCFS_BUF_INIT;
    mp_put_uint(&head, shard);
    mp_put_bin_header(&head, (uint32_t)frame.len);
    return stream_write_buf(st, &head, err) || stream_write(st, frame.data, frame.len, err) ? -1
                                                                                            : 0;
}

int snap_writer_shard(struct snap_writer *w, uint32_t shard, struct mcfs_slice metadata,
                      struct mcfs_slice extra, struct mcfs_error *err)
{
    if (write_shard(&w->metadata, shard, metadata, err))
        return -1;
    return write_shard(&w->extra, shard, extra, err);
}

static void put_empty_segments(const struct snap_writer_config *c, struct mcfs_buf *b)
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

static int put_packed(struct snap_writer *w, const char *file, struct mcfs_buf *content,
                      int sum_index, struct mcfs_error *err)
{
    struct mcfs_buf frame = MCFS_BUF_INIT;
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    int rc = content->failed || !ctx ? mcfs_fail_errno(err, ENOMEM, "%s", file) : 0;
    if (rc == 0)
        rc = frame_pack(ctx, mcfs_slice(content->data, content->len), &frame, err);
    if (rc == 0)
        rc = put_file(w, file, mcfs_slice(frame.data, frame.len), sum_index, err);
    ZSTD_freeCCtx(ctx);
    mcfs_buf_free(&frame);
    mcfs_buf_free(content);
    return rc;
}

static int finish_metadata(struct snap_writer *w, struct mcfs_error *err)
{
    const struct snap_writer_config *c = &w->config;
    struct mcfs_buf tail = MCFS_BUF_INIT;
    mp_put_cstr(&tail, "discarded_replicas");
    if (c->discarded.len)
        mcfs_buf_append(&tail, c->discarded.data, c->discarded.len);
    else
        mp_put_array(&tail, 0);
    mp_put_cstr(&tail, "replica_next_id");
    mp_put_uint(&tail, c->info.replica_next_id);
    if (stream_write_buf(&w->metadata, &tail, err))
        return -1;
    w->sizes[0] = w->metadata.size;
    w->crcs[0] = w->metadata.crc;
    return stream_commit(&w->metadata, err);
}

static int finish_extra(struct snap_writer *w, struct mcfs_error *err)
{
    struct mcfs_buf tail = MCFS_BUF_INIT;
    mp_put_cstr(&tail, "files");
    mp_put_map(&tail, 3);
    for (int i = 0; i < 3; i++) {
        mp_put_cstr(&tail, summed[i]);
        mp_put_array(&tail, 2);
        mp_put_uint(&tail, w->sizes[i]);
        mp_put_uint(&tail, w->crcs[i]);
    }
    return stream_write_buf(&w->extra, &tail, err) || stream_commit(&w->extra, err) ? -1 : 0;
}

static int finish_texts(struct snap_writer *w, struct mcfs_error *err)
{
    const struct snap_writer_config *c = &w->config;
    char text[128], path[PATH_MAX];
    snprintf(text, sizeof(text), "messagepack|1.0.0|%s", c->id);
    if (put_file(w, "manifest.txt", mcfs_slice_str(text), -1, err))
        return -1;
    snprintf(text, sizeof(text), "%" PRIu64 "|%" PRIu64 "|%" PRId64, c->info.last_included_seq,
             c->info.producer_view_version, c->info.created_ms);
    if (put_file(w, "descriptor.txt", mcfs_slice_str(text), -1, err))
        return -1;
    snap_path(path, sizeof(path), c->cluster, NULL, "latest.txt");
    struct mcfs_object_store_put *p = c->store->ops->put_begin(c->store, path, err);
    if (!p)
        return -1;
    if (c->store->ops->put_write(p, c->id, strlen(c->id), err)) {
        c->store->ops->put_abort(p);
        return -1;
    }
    return c->store->ops->put_commit(p, err);
}

int snap_writer_commit(struct snap_writer *w, struct mcfs_error *err)
{
    const struct snap_writer_config *c = &w->config;
    struct mcfs_buf segments = MCFS_BUF_INIT, tasks = MCFS_BUF_INIT;
    int rc = finish_metadata(w, err);
    if (c->segments.len)
        mcfs_buf_append(&segments, c->segments.data, c->segments.len);
    else
        put_empty_segments(c, &segments);
    if (c->tasks.len)
        mcfs_buf_append(&tasks, c->tasks.data, c->tasks.len);
    else
        mp_put_array(&tasks, 0);
    if (rc == 0)
        rc = put_packed(w, "segments", &segments, 1, err);
    if (rc == 0)
        rc = put_packed(w, "task_manager", &tasks, 2, err);
    if (rc == 0)
        rc = finish_extra(w, err);
    if (rc == 0)
        rc = finish_texts(w, err);
    mcfs_buf_free(&segments);
    mcfs_buf_free(&tasks);
    snap_writer_abort(w);
    return rc;
}

void snap_writer_abort(struct snap_writer *w)
{
    stream_abort(&w->metadata);
    stream_abort(&w->extra);
    free(w);
}
