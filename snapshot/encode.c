/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of one shard as MessagePack, and the frames of both files. */
#include "snapshot/snapshot.h"

#include "common/cleanup.h"
#include "snapshot/frame.h"
#include "snapshot/replica.h"

#include <zstd.h>

struct snap_encoder {
    struct mcfs_buf objects, extras, raw, metadata, extra;
    uint32_t count;
    ZSTD_CCtx *ctx;
    /* The last client's text: objects of a shard have few. */
    struct mcfs_id client;
    char client_text[MCFS_ID_TEXT_MAX];
};

struct snap_encoder *snap_encoder_new(void)
{
    struct snap_encoder *e = calloc(1, sizeof(*e));
    if (e && !(e->ctx = ZSTD_createCCtx())) {
        free(e);
        return NULL;
    }
    if (e)
        mcfs_id_format(e->client, e->client_text);
    return e;
}

void snap_encoder_free(struct snap_encoder *e)
{
    if (!e)
        return;
    mcfs_buf_free(&e->objects);
    mcfs_buf_free(&e->extras);
    mcfs_buf_free(&e->raw);
    mcfs_buf_free(&e->metadata);
    mcfs_buf_free(&e->extra);
    ZSTD_freeCCtx(e->ctx);
    free(e);
}

void snap_encode_begin(struct snap_encoder *e)
{
    mcfs_buf_reset(&e->objects);
    mcfs_buf_reset(&e->extras);
    mcfs_buf_reset(&e->raw);
    mcfs_buf_reset(&e->metadata);
    mcfs_buf_reset(&e->extra);
    e->count = 0;
}

static const char *client_text(struct snap_encoder *e, struct mcfs_id id)
{
    if (!mcfs_id_eq(id, e->client)) {
        e->client = id;
        mcfs_id_format(id, e->client_text);
    }
    return e->client_text;
}

int snap_encode_object(struct snap_encoder *e, const struct snap_object *o, struct mcfs_error *err)
{
    struct mcfs_buf *b = &e->objects;
    if (o->replica_count > REPLICAS_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%.*s: %u replicas",
                         (int)MCFS_MIN(o->key.len, 160), o->key.data, o->replica_count);
    mp_put_array(b, 3);
    mp_put_str(b, o->tenant);
    mp_put_str(b, o->key);
    mp_put_array(b, 10 + o->replica_count + (o->has_checksum ? 1 : 0));
    mp_put_cstr(b, client_text(e, o->put_client));
    mp_put_int(b, o->put_start_ms);
    mp_put_uint(b, o->size);
    mp_put_int(b, o->lease_ms);
    mp_put_bool(b, false);
    mp_put_uint(b, 0);
    mp_put_uint(b, o->replica_count);
    mp_put_uint(b, o->data_type);
    for (uint32_t i = 0; i < o->replica_count; i++)
        replica_put(&o->replicas[i], client_text(e, o->replicas[i].client), b);
    mp_put_bool(b, o->hard_pin);
    mp_put_str(b, o->group);
    if (o->has_checksum)
        mp_put_uint(b, o->checksum);

    mp_put_array(&e->extras, 5);
    mp_put_uint(&e->extras, o->version);
    mp_put_uint(&e->extras, o->attr.mode);
    mp_put_uint(&e->extras, o->attr.uid);
    mp_put_uint(&e->extras, o->attr.gid);
    mp_put_int(&e->extras, o->attr.mtime_ns);
    e->count++;
    return b->failed || e->extras.failed ? mcfs_fail_errno(err, ENOMEM, "snapshot") : 0;
}

int snap_encode_end(struct snap_encoder *e, struct mcfs_slice *metadata, struct mcfs_slice *extra,
                    struct mcfs_error *err)
{
    mp_put_map(&e->raw, 1);
    mp_put_cstr(&e->raw, "metadata");
    mp_put_array(&e->raw, e->count);
    mcfs_buf_append(&e->raw, e->objects.data, e->objects.len);
    if (e->raw.failed)
        return mcfs_fail_errno(err, ENOMEM, "snapshot");
    if (frame_pack(e->ctx, mcfs_slice(e->raw.data, e->raw.len), &e->metadata, err))
        return -1;
    mcfs_buf_reset(&e->raw);
    mp_put_array(&e->raw, e->count);
    mcfs_buf_append(&e->raw, e->extras.data, e->extras.len);
    if (e->raw.failed)
        return mcfs_fail_errno(err, ENOMEM, "snapshot");
    if (frame_pack(e->ctx, mcfs_slice(e->raw.data, e->raw.len), &e->extra, err))
        return -1;
    *metadata = mcfs_slice(e->metadata.data, e->metadata.len);
    *extra = mcfs_slice(e->extra.data, e->extra.len);
    return 0;
}
