/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a snapshot without holding it: only the outline is kept, that is, where each shard's
 * frame lies; a shard is fetched, checked and decoded when it is asked for.  The outline comes from
 * the index in `mooncakefs`, or from a walk over the heads in `metadata` where that file is absent.
 */
#include "snapshot/reader.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/mp.h"
#include "snapshot/frame.h"

#include <inttypes.h>
#include <stdio.h>

#define SMALL_FILE_MAX (512u << 20) /* segments and task_manager, packed */
#define METADATA_FIELDS_MAX 16

void reader_file_name(const struct snap_reader *r, const char *file, struct file_name *out)
{
    snap_path(out->path, sizeof(out->path), r->cluster, r->id, file);
    snprintf(out->shown, sizeof(out->shown), "%s/%s", r->id, file);
}

/* ---- metadata ---- */

struct fields {
    bool shards, discarded, next_id;
};

static int read_field(struct walk *w, const char *name, struct metadata_outline *o,
                      struct fields *seen, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf value = MCFS_BUF_INIT;
    if (strcmp(name, "shards") == 0 && !seen->shards) {
        seen->shards = true;
        return walk_places(w, &o->places, err);
    }
    if (strcmp(name, "discarded_replicas") == 0 && !seen->discarded) {
        seen->discarded = true;
        return walk_value(w, &o->discarded, err);
    }
    if (walk_value(w, &value, err))
        return -1;
    if (strcmp(name, "replica_next_id") != 0)
        return 0;
    struct mp_reader p = mp_reader(value.data, value.len);
    seen->next_id = mp_read_uint(&p, &o->replica_next_id);
    return seen->next_id ? 0 : walk_corrupt(w, err);
}

static int read_fields(struct walk *w, uint32_t fields, struct metadata_outline *o,
                       struct fields *seen, struct mcfs_error *err)
{
    char name[64];
    if (fields > METADATA_FIELDS_MAX)
        return walk_corrupt(w, err);
    for (uint32_t i = 0; i < fields; i++)
        if (walk_name(w, name, sizeof(name), err) || read_field(w, name, o, seen, err))
            return -1;
    if (!seen->shards || !seen->discarded || !seen->next_id)
        return walk_corrupt(w, err);
    return walk_end(w, err);
}

void metadata_outline_free(struct metadata_outline *o)
{
    free(o->places.v);
    mcfs_buf_free(&o->discarded);
}

int reader_walk_metadata(struct snap_reader *r, struct metadata_outline *out,
                         struct mcfs_error *err)
{
    struct file_name name;
    reader_file_name(r, "metadata", &name);
    struct walk w = {.store = r->store, .path = name.path, .name = name.shown};
    struct fields seen = {0};
    uint32_t fields;
    *out = (struct metadata_outline){0};
    int rc = walk_map(&w, &fields, err);
    if (rc == 0)
        rc = read_fields(&w, fields, out, &seen, err);
    walk_free(&w);
    return rc;
}

/* Only what follows the last shard, which is where the index in `mooncakefs` says. */
static int read_rest(struct snap_reader *r, struct metadata_outline *out, struct mcfs_error *err)
{
    struct file_name name;
    _cleanup_buf_ struct mcfs_buf rest = MCFS_BUF_INIT;
    const struct extra *x = &r->extra;
    uint64_t size = x->files[EXTRA_METADATA].size;
    reader_file_name(r, "metadata", &name);
    if (read_range(r->store, name.path, name.shown, x->rest_at, size - x->rest_at, &rest, err))
        return -1;
    if (mcfs_crc32c(0, rest.data, rest.len) != x->rest_crc)
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s: checksum mismatch behind the shards",
                         name.shown);
    struct walk w = {.store = r->store, .path = name.path, .name = name.shown, .at = x->rest_at};
    struct fields seen = {.shards = true};
    int rc = read_fields(&w, 2, out, &seen, err);
    walk_free(&w);
    return rc;
}

/* ---- opening ---- */

static int check_manifest(struct snap_reader *r, struct mcfs_error *err)
{
    char text[256], *save;
    if (text_read(r->store, r->cluster, r->id, "manifest.txt", text, sizeof(text), err))
        return -1;
    char *protocol = strtok_r(text, "|", &save), *version = strtok_r(NULL, "|", &save),
         *id = strtok_r(NULL, "|", &save);
    /* Another snapshot's id would do; one that is cut short would not. */
    if (!protocol || !version || !id || !snap_id_is_valid(id))
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/manifest.txt: not a manifest", r->id);
    if (strcmp(protocol, "messagepack") != 0 || strcmp(version, "1.0.0") != 0)
        return mcfs_fail(err, MCFS_INVALID_VERSION, "%s/manifest.txt: %s %s is not supported",
                         r->id, protocol, version);
    return 0;
}

static int check_descriptor(struct snap_reader *r, struct mcfs_error *err)
{
    char text[128];
    if (text_read(r->store, r->cluster, r->id, "descriptor.txt", text, sizeof(text), err))
        return -1;
    if (!descriptor_parse(text, &r->info))
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/descriptor.txt: not a descriptor", r->id);
    return 0;
}

/* Mooncake's own snapshots have no such file, which is no error. */
static int open_extra(struct snap_reader *r, struct mcfs_error *err)
{
    struct file_name name;
    struct mcfs_object_info info;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    reader_file_name(r, EXTRA_FILE, &name);
    if (r->store->ops->stat(r->store, name.path, &info, &bad) == 0) {
        r->has_extra = true;
        return extra_read(r->store, name.path, name.shown, info.size, &r->extra, err);
    }
    if (bad.errnum == ENOENT)
        return 0;
    if (err)
        *err = bad;
    return -1;
}

static int check_against_extra(struct snap_reader *r, struct mcfs_error *err)
{
    const struct snap_info *a = &r->info, *b = &r->extra.info;
    if (a->created_ms != b->created_ms || a->last_included_seq != b->last_included_seq ||
        a->producer_view_version != b->producer_view_version)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL,
                         "%s/descriptor.txt: not what the snapshot was written with", r->id);
    for (int i = 0; i < EXTRA_FILES; i++) {
        struct file_name name;
        struct mcfs_object_info info;
        reader_file_name(r, extra_file_names[i], &name);
        if (r->store->ops->stat(r->store, name.path, &info, err))
            return -1;
        if (info.size != r->extra.files[i].size)
            return mcfs_fail(err, MCFS_FILE_READ_FAIL,
                             "%s: %" PRIu64 " bytes, %" PRIu64 " were written", name.shown,
                             info.size, r->extra.files[i].size);
    }
    return 0;
}

/* The bytes before the first shard, which no checksum in the index covers. */
static int check_metadata_head(struct snap_reader *r, struct mcfs_error *err)
{
    struct file_name name;
    char field[64];
    uint32_t fields, shards;
    reader_file_name(r, "metadata", &name);
    struct walk w = {.store = r->store, .path = name.path, .name = name.shown};
    int rc = walk_map(&w, &fields, err) || walk_name(&w, field, sizeof(field), err) ||
                     walk_map(&w, &shards, err)
                 ? -1
                 : 0;
    if (rc == 0 && (fields != 3 || strcmp(field, "shards") != 0 || shards != r->extra.shard_count))
        rc = walk_corrupt(&w, err);
    walk_free(&w);
    return rc;
}

static int take_places(struct snap_reader *r, const struct places *p, struct mcfs_error *err)
{
    r->shards = calloc(p->count ? p->count : 1, sizeof(*r->shards));
    if (!r->shards)
        return mcfs_fail_errno(err, ENOMEM, "snapshot %s", r->id);
    for (uint32_t i = 0; i < p->count; i++)
        r->shards[i].metadata = p->v[i];
    r->shard_count = p->count;
    return 0;
}

static int open_outline(struct snap_reader *r, struct mcfs_error *err)
{
    struct metadata_outline o = {0};
    int rc;
    if (r->has_extra) {
        rc = check_against_extra(r, err) || check_metadata_head(r, err) || read_rest(r, &o, err)
                 ? -1
                 : 0;
        r->shards = MCFS_STEAL(r->extra.shards);
        r->shard_count = r->extra.shard_count;
    } else {
        rc = reader_walk_metadata(r, &o, err);
        if (rc == 0)
            rc = take_places(r, &o.places, err);
    }
    r->info.replica_next_id = o.replica_next_id;
    r->discarded = o.discarded;
    o.discarded = (struct mcfs_buf)MCFS_BUF_INIT;
    metadata_outline_free(&o);
    for (uint32_t i = 0; rc == 0 && i < r->shard_count; i++)
        r->place_of[r->shards[i].metadata.shard] = i + 1;
    return rc;
}

struct snap_reader *snap_reader_open_lazily(struct mcfs_object_store *store, const char *cluster,
                                            const char *id, struct mcfs_error *err)
{
    if (names_check(cluster, id, err))
        return NULL;
    struct snap_reader *r = calloc(1, sizeof(*r));
    if (!r || !(r->cluster = strdup(cluster))) {
        free(r);
        mcfs_fail_errno(err, ENOMEM, "snapshot %s", id);
        return NULL;
    }
    r->store = store;
    r->ahead = ahead_new(store);
    memcpy(r->id, id, SNAP_ID_SIZE);
    if (check_manifest(r, err) || check_descriptor(r, err) || open_extra(r, err) ||
        open_outline(r, err)) {
        snap_reader_close(r);
        return NULL;
    }
    return r;
}

struct snap_reader *snap_reader_open(struct mcfs_object_store *store, const char *cluster,
                                     const char *id, struct mcfs_error *err)
{
    struct snap_reader *r = snap_reader_open_lazily(store, cluster, id, err);
    if (r && reader_check_files(r, err)) {
        snap_reader_close(r);
        return NULL;
    }
    if (r)
        r->checked = true;
    return r;
}

void snap_reader_close(struct snap_reader *r)
{
    if (!r)
        return;
    free(r->shards);
    ahead_free(r->ahead);
    extra_free(&r->extra);
    mcfs_buf_free(&r->discarded);
    free(r->cluster);
    free(r);
}

/* ---- what is known once it is open ---- */

const struct snap_info *snap_reader_info(const struct snap_reader *r)
{
    return &r->info;
}

bool snap_reader_has_extra(const struct snap_reader *r)
{
    return r->has_extra;
}

const struct snap_node *snap_reader_nodes(const struct snap_reader *r, uint32_t *count)
{
    *count = r->extra.node_count;
    return r->extra.nodes;
}

uint32_t snap_reader_shards(const struct snap_reader *r)
{
    return r->shard_count;
}

uint32_t snap_reader_place(const struct snap_reader *r, uint32_t shard)
{
    return shard < MCFS_SHARD_COUNT ? r->place_of[shard] - 1 : UINT32_MAX;
}

struct mcfs_slice snap_reader_discarded(const struct snap_reader *r)
{
    return mcfs_slice(r->discarded.data, r->discarded.len);
}

/* ---- contents ---- */

static int file_number(const char *file)
{
    int i = 0;
    while (i < EXTRA_FILES && strcmp(file, extra_file_names[i]) != 0)
        i++;
    return i; /* EXTRA_FILES is the file `mooncakefs` */
}

/* Reads a frame, checks it where a checksum is known, and unpacks it. */
static int fetch(const struct snap_reader *r, const char *file, uint64_t off, uint64_t len,
                 const uint32_t *crc, struct mcfs_buf *out, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf packed = MCFS_BUF_INIT;
    struct file_name name;
    reader_file_name(r, file, &name);
    if (r->ahead
            ? ahead_read(r->ahead, file_number(file), name.path, name.shown, off, len, &packed, err)
            : read_range(r->store, name.path, name.shown, off, len, &packed, err))
        return -1;
    if (crc && mcfs_crc32c(0, packed.data, packed.len) != *crc)
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH,
                         "%s: checksum mismatch in the %" PRIu64 " bytes from %" PRIu64 " on",
                         name.shown, len, off);
    if (frame_unpack(mcfs_slice(packed.data, packed.len), out, err))
        return mcfs_error_prefix(err, "%s", name.shown);
    return 0;
}

int snap_reader_shard(struct snap_reader *r, uint32_t place,
                      int (*fn)(const struct snap_object *o, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err)
{
    if (place >= r->shard_count)
        return mcfs_fail(err, MCFS_SHARD_INDEX_OUT_OF_RANGE, "%s has %u shards", r->id,
                         r->shard_count);
    const struct extra_shard *s = &r->shards[place];
    _cleanup_buf_ struct mcfs_buf metadata = MCFS_BUF_INIT, extra = MCFS_BUF_INIT;
    if (fetch(r, "metadata", s->metadata.offset, s->metadata.length,
              r->has_extra ? &s->metadata_crc : NULL, &metadata, err))
        return -1;
    if (r->has_extra &&
        fetch(r, EXTRA_FILE, s->extra.offset, s->extra.length, &s->extra_crc, &extra, err))
        return -1;
    if (r->has_extra && extra.len == 0) /* which would mean that there are no attributes */
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s/" EXTRA_FILE ", shard %u: holds nothing",
                         r->id, s->metadata.shard);
    if (snap_decode_shard(mcfs_slice(metadata.data, metadata.len),
                          mcfs_slice(extra.data, extra.len), fn, arg, err))
        return mcfs_error_prefix(err, "%s/metadata, shard %u", r->id, s->metadata.shard);
    return 0;
}

static int read_packed_file(struct snap_reader *r, int which, enum mp_type type,
                            struct mcfs_buf *out, struct mcfs_error *err)
{
    struct mcfs_object_info info;
    struct file_name name;
    const char *file = extra_file_names[which];
    reader_file_name(r, file, &name);
    if (r->store->ops->stat(r->store, name.path, &info, err))
        return -1;
    if (info.size > SMALL_FILE_MAX)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: %" PRIu64 " bytes", name.shown, info.size);
    if (fetch(r, file, 0, info.size, r->has_extra ? &r->extra.files[which].crc : NULL, out, err))
        return -1;
    struct mp_reader p = mp_reader(out->data, out->len);
    if (mp_peek(&p) != type || !mp_skip(&p, NULL) || !mp_done(&p))
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: of another form than expected", name.shown);
    return 0;
}

int snap_reader_segments(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err)
{
    return read_packed_file(r, EXTRA_SEGMENTS, MP_MAP, out, err);
}

int snap_reader_tasks(struct snap_reader *r, struct mcfs_buf *out, struct mcfs_error *err)
{
    return read_packed_file(r, EXTRA_TASKS, MP_ARRAY, out, err);
}
