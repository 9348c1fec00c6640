/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas of every kind, and the lists of space that was held for failed puts. */
#include "snapshot/replica.h"

#include "common/cleanup.h"

/* A replica has at least five bytes: the array's head and four values. */
#define REPLICA_MIN_BYTES 5

bool snap_memory_decode(struct mcfs_slice payload, struct snap_memory *out)
{
    struct mp_reader p = mp_reader(payload.data, payload.len);
    struct mcfs_slice segment;
    *out = (struct snap_memory){0};
    if (!mp_read_array_of(&p, 5) || !mp_read_uint(&p, &out->size) ||
        !mp_read_uint(&p, &out->address) || !mp_read_raw(&p, &segment) ||
        mcfs_id_parse(segment, &out->segment) || !mp_read_bool(&p, &out->has_handle))
        return false;
    if (!out->has_handle)
        return mp_read_nil(&p) && mp_done(&p);
    return mp_read_array_of(&p, 3) && mp_read_uint(&p, &out->real_base) &&
           mp_read_uint(&p, &out->requested_size) && mp_read_array_of(&p, 2) &&
           mp_read_u32_max(&p, UINT32_MAX, &out->offset) &&
           mp_read_u32_max(&p, UINT32_MAX, &out->node) && mp_done(&p);
}

void snap_memory_encode(const struct snap_memory *m, struct mcfs_buf *out)
{
    char segment[MCFS_ID_TEXT_MAX];
    mp_put_array(out, 5);
    mp_put_uint(out, m->size);
    mp_put_uint(out, m->address);
    mp_put_cstr(out, mcfs_id_format(m->segment, segment));
    mp_put_bool(out, m->has_handle);
    if (!m->has_handle) {
        mp_put_nil(out);
        return;
    }
    mp_put_array(out, 3);
    mp_put_uint(out, m->real_base);
    mp_put_uint(out, m->requested_size);
    mp_put_array(out, 2);
    mp_put_uint(out, m->offset);
    mp_put_uint(out, m->node);
}

bool snap_disk_decode(struct mcfs_slice payload, struct snap_disk *out)
{
    struct mp_reader p = mp_reader(payload.data, payload.len);
    *out = (struct snap_disk){0};
    return mp_read_array_of(&p, 2) && mp_read_raw(&p, &out->path) && mp_read_uint(&p, &out->size) &&
           mp_done(&p);
}

void snap_disk_encode(const struct snap_disk *d, struct mcfs_buf *out)
{
    mp_put_array(out, 2);
    mp_put_str(out, d->path);
    mp_put_uint(out, d->size);
}

bool snap_dfs_decode(struct mcfs_slice payload, struct snap_dfs *out)
{
    struct mp_reader p = mp_reader(payload.data, payload.len);
    int64_t shard;
    *out = (struct snap_dfs){0};
    if (!mp_read_array_of(&p, 5) || !mp_read_raw(&p, &out->path) ||
        !mp_read_uint(&p, &out->offset) || !mp_read_uint(&p, &out->size) ||
        !mp_read_uint(&p, &out->aligned_size) || !mp_read_int(&p, &shard) || shard < INT32_MIN ||
        shard > INT32_MAX)
        return false;
    out->shard = (int32_t)shard;
    return mp_done(&p);
}

void snap_dfs_encode(const struct snap_dfs *d, struct mcfs_buf *out)
{
    mp_put_array(out, 5);
    mp_put_str(out, d->path);
    mp_put_uint(out, d->offset);
    mp_put_uint(out, d->size);
    mp_put_uint(out, d->aligned_size);
    mp_put_int(out, d->shard);
}

static bool read_local_disk(struct mcfs_slice payload, struct snap_replica *r)
{
    struct mp_reader p = mp_reader(payload.data, payload.len);
    struct mcfs_slice client;
    if (!mp_read_array_of(&p, 3) || !mp_read_raw(&p, &client) || !mp_read_uint(&p, &r->size) ||
        !mp_read_raw(&p, &r->endpoint))
        return false;
    r->client = parse_id_leniently(client);
    return true;
}

/* The size that a payload of another kind names, for listings.  A payload of another form than
 * expected is carried through all the same. */
static uint64_t payload_size(uint8_t type, struct mcfs_slice payload)
{
    struct snap_memory memory;
    struct snap_disk disk;
    struct snap_dfs dfs;
    if (type == MCFS_REPLICA_MEMORY && snap_memory_decode(payload, &memory))
        return memory.size;
    if (type == MCFS_REPLICA_DISK && snap_disk_decode(payload, &disk))
        return disk.size;
    if (type == MCFS_REPLICA_DFS && snap_dfs_decode(payload, &dfs))
        return dfs.size;
    return 0;
}

static bool read_replica(struct mp_reader *p, struct snap_replica *r)
{
    int64_t status, type;
    *r = (struct snap_replica){0};
    /* The type is an int8, in which 255 stands as -1. */
    if (!mp_read_array_of(p, 4) || !mp_read_uint(p, &r->id) || !mp_read_int(p, &status) ||
        !mp_read_int(p, &type) || status < INT16_MIN || status > INT16_MAX || type < -1 ||
        type > UINT8_MAX || !mp_skip(p, &r->payload))
        return false;
    r->status = (int16_t)status;
    r->type = (uint8_t)type;
    if (r->type != MCFS_REPLICA_LOCAL_DISK) {
        r->size = payload_size(r->type, r->payload);
        return true;
    }
    struct mcfs_slice payload = r->payload;
    r->payload = (struct mcfs_slice){NULL, 0};
    return read_local_disk(payload, r);
}

static bool reserve(struct replica_list *l, uint64_t n)
{
    if (n <= l->cap)
        return true;
    uint64_t cap = MCFS_MAX(n, 2 * (uint64_t)l->cap);
    struct snap_replica *more = realloc(l->v, cap * sizeof(*more));
    if (!more)
        return false;
    l->v = more;
    l->cap = (uint32_t)cap;
    return true;
}

bool replica_list_read(struct replica_list *l, struct mp_reader *p, uint64_t n)
{
    if (n > REPLICAS_MAX || n > (size_t)(p->end - p->p) / REPLICA_MIN_BYTES || !reserve(l, n))
        return false;
    for (uint64_t i = 0; i < n; i++)
        if (!read_replica(p, &l->v[i]))
            return false;
    return true;
}

void replica_put(const struct snap_replica *r, const char *client_text, struct mcfs_buf *out)
{
    mp_put_array(out, 4);
    mp_put_uint(out, r->id);
    mp_put_int(out, r->status);
    mp_put_int(out, (int8_t)r->type);
    if (r->type == MCFS_REPLICA_LOCAL_DISK) {
        mp_put_array(out, 3);
        mp_put_cstr(out, client_text);
        mp_put_uint(out, r->size);
        mp_put_str(out, r->endpoint);
    } else if (r->payload.len) {
        mcfs_buf_append(out, r->payload.data, r->payload.len);
    } else {
        mp_put_nil(out);
    }
}

/* ---- discarded replicas ---- */

int snap_discarded_decode(struct mcfs_slice content,
                          int (*fn)(const struct snap_discarded *d, void *arg,
                                    struct mcfs_error *err),
                          void *arg, struct mcfs_error *err)
{
    struct mp_reader p = mp_reader(content.data, content.len);
    _cleanup_(replica_list_free) struct replica_list replicas = {0};
    uint32_t count, len;
    bool good = mp_read_array(&p, &count);
    for (uint32_t i = 0; good && i < count; i++) {
        struct snap_discarded d = {0};
        uint64_t n;
        good = mp_read_array(&p, &len) && mp_read_int(&p, &d.release_ms) &&
               mp_read_uint(&p, &d.bytes) && mp_read_uint(&p, &n) && len >= 3 && len - 3 == n &&
               replica_list_read(&replicas, &p, n);
        d.replica_count = len - 3;
        d.replicas = replicas.v;
        if (good && fn(&d, arg, err))
            return -1;
    }
    return good && mp_done(&p) ? 0
                               : mcfs_fail(err, MCFS_FILE_READ_FAIL,
                                           "discarded replicas of another form than "
                                           "expected");
}

void snap_discarded_encode(const struct snap_discarded *list, uint32_t count, struct mcfs_buf *out)
{
    char client[MCFS_ID_TEXT_MAX];
    mp_put_array(out, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct snap_discarded *d = &list[i];
        mp_put_array(out, 3 + d->replica_count);
        mp_put_int(out, d->release_ms);
        mp_put_uint(out, d->bytes);
        mp_put_uint(out, d->replica_count);
        for (uint32_t j = 0; j < d->replica_count; j++)
            replica_put(&d->replicas[j], mcfs_id_format(d->replicas[j].client, client), out);
    }
}
