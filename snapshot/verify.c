/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that can be known to be wrong with a snapshot. */
#include "snapshot/reader.h"

#include "common/cleanup.h"
#include "common/crc32c.h"

#define PIECE (1u << 20)

/* A whole file against the size and checksum it was written with. */
static int check_file(struct snap_reader *r, int which, struct mcfs_error *err)
{
    struct file_name name;
    _cleanup_free_ uint8_t *piece = malloc(PIECE);
    uint64_t at = 0;
    uint32_t crc = 0;
    ssize_t n = 1;
    if (!piece)
        return mcfs_fail_errno(err, ENOMEM, "snapshot %s", r->id);
    reader_file_name(r, extra_file_names[which], &name);
    while (n > 0) {
        n = r->store->ops->read(r->store, name.path, at, piece, PIECE, err);
        if (n < 0)
            return -1;
        crc = mcfs_crc32c(crc, piece, (size_t)n);
        at += (uint64_t)n;
    }
    if (at != r->extra.files[which].size || crc != r->extra.files[which].crc)
        return mcfs_fail(err, MCFS_CHECKSUM_MISMATCH, "%s: checksum mismatch", name.shown);
    return 0;
}

int reader_check_files(struct snap_reader *r, struct mcfs_error *err)
{
    for (int i = 0; r->has_extra && i < EXTRA_FILES; i++)
        if (check_file(r, i, err))
            return -1;
    return 0;
}

static bool same_place(const struct place *a, const struct place *b)
{
    return a->shard == b->shard && a->offset == b->offset && a->length == b->length;
}

/* What a reader that does not know `mooncakefs` finds must be what the index says. */
static int check_outline(struct snap_reader *r, struct mcfs_error *err)
{
    struct metadata_outline o;
    int rc = reader_walk_metadata(r, &o, err);
    bool same =
        rc == 0 && o.places.count == r->shard_count && o.replica_next_id == r->info.replica_next_id;
    for (uint32_t i = 0; same && i < r->shard_count; i++)
        same = same_place(&o.places.v[i], &r->shards[i].metadata);
    metadata_outline_free(&o);
    if (rc == 0 && !same)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: metadata and mooncakefs disagree", r->id);
    return rc;
}

/* The heads between the frames of `mooncakefs`, which its index makes unnecessary. */
static int check_extra_outline(struct snap_reader *r, struct mcfs_error *err)
{
    struct places places = {0};
    struct file_name name;
    reader_file_name(r, EXTRA_FILE, &name);
    int rc = extra_walk_shards(r->store, name.path, name.shown, &places, err);
    bool same = rc == 0 && places.count == r->shard_count;
    for (uint32_t i = 0; same && i < places.count; i++)
        same = same_place(&places.v[i], &r->shards[i].extra);
    free(places.v);
    if (rc == 0 && !same)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: not what its index says", name.shown);
    return rc;
}

static int count_object(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    (void)o;
    (void)err;
    ++*(uint64_t *)arg;
    return 0;
}

static int ignore_task(const struct snap_task *t, void *arg, struct mcfs_error *err)
{
    (void)t;
    (void)arg;
    (void)err;
    return 0;
}

static int ignore_discarded(const struct snap_discarded *d, void *arg, struct mcfs_error *err)
{
    (void)d;
    (void)arg;
    (void)err;
    return 0;
}

static int check_segments(struct snap_reader *r, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf content = MCFS_BUF_INIT;
    if (snap_reader_segments(r, &content, err))
        return -1;
    struct snap_segments *s = snap_segments_decode(mcfs_slice(content.data, content.len), err);
    int rc = s ? 0 : -1;
    for (uint32_t i = 0; rc == 0 && i < s->segment_count; i++) {
        struct mcfs_alloc_node *nodes;
        uint32_t *free_nodes;
        if (!s->segments[i].allocator)
            continue;
        rc = snap_allocator_unpack(s->segments[i].allocator, &nodes, &free_nodes, err);
        free(nodes);
        free(free_nodes);
    }
    snap_segments_free(s);
    return rc ? mcfs_error_prefix(err, "%s/segments", r->id) : 0;
}

static int check_tasks(struct snap_reader *r, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf content = MCFS_BUF_INIT;
    if (snap_reader_tasks(r, &content, err))
        return -1;
    if (snap_tasks_decode(mcfs_slice(content.data, content.len), ignore_task, NULL, err))
        return mcfs_error_prefix(err, "%s/task_manager", r->id);
    return 0;
}

int snap_reader_verify(struct snap_reader *r, uint64_t *objects, struct mcfs_error *err)
{
    uint64_t count = 0;
    if (!r->checked && reader_check_files(r, err))
        return -1;
    if (r->has_extra && check_extra_outline(r, err))
        return -1;
    if (check_outline(r, err) || check_segments(r, err) || check_tasks(r, err))
        return -1;
    if (snap_discarded_decode(snap_reader_discarded(r), ignore_discarded, NULL, err))
        return mcfs_error_prefix(err, "%s/metadata", r->id);
    for (uint32_t i = 0; i < r->shard_count; i++)
        if (snap_reader_shard(r, i, count_object, &count, err))
            return -1;
    if (objects)
        *objects = count;
    return 0;
}
