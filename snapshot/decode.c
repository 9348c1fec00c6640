/* SPDX-License-Identifier: Apache-2.0 */
/* One shard's MessagePack as objects.  Nothing in it is trusted: counts are bounded by the bytes
 * that are there. */
#include "snapshot/snapshot.h"

#include "common/cleanup.h"
#include "common/id.h"
#include "common/mp.h"

struct decoder {
    struct mp_reader in, extra;
    bool has_extra;
    struct snap_replica *replicas; /* grown to the largest object's number */
    uint32_t replica_cap;
};

static struct mcfs_id parse_client(struct mcfs_slice text)
{
    struct mcfs_id id;
    /* Opaque to a directory: what is no "<u64>-<u64>" loads as nobody's. */
    return mcfs_id_parse(text, &id) == 0 ? id : (struct mcfs_id){0, 0};
}

static bool read_local_disk(struct mcfs_slice payload, struct snap_replica *r)
{
    struct mp_reader p = mp_reader(payload.data, payload.len);
    struct mcfs_slice client;
    if (!mp_read_array_of(&p, 3) || !mp_read_raw(&p, &client) || !mp_read_uint(&p, &r->size) ||
        !mp_read_raw(&p, &r->endpoint))
        return false;
    r->client = parse_client(client);
    return true;
}

/* The size that a payload of another kind names, for listings. */
static uint64_t payload_size(uint8_t type, struct mcfs_slice payload)
{
    struct mp_reader p = mp_reader(payload.data, payload.len);
    struct mcfs_slice skipped;
    uint32_t n;
    uint64_t size = 0;
    if (!mp_read_array(&p, &n))
        return 0;
    if (type == MCFS_REPLICA_MEMORY)
        mp_read_uint(&p, &size);
    else if (type == MCFS_REPLICA_DISK && mp_read_raw(&p, &skipped))
        mp_read_uint(&p, &size);
    else if (type == MCFS_REPLICA_DFS && mp_read_raw(&p, &skipped) && mp_skip(&p, NULL))
        mp_read_uint(&p, &size);
    return size;
}

static bool read_replica(struct mp_reader *p, struct snap_replica *r)
{
    int64_t status;
    uint64_t type;
    struct mcfs_slice payload;
    *r = (struct snap_replica){0};
    if (!mp_read_array_of(p, 4) || !mp_read_uint(p, &r->id) || !mp_read_int(p, &status) ||
        !mp_read_uint(p, &type) || status < INT16_MIN || status > INT16_MAX || type > 255 ||
        !mp_skip(p, &payload))
        return false;
    r->status = (int16_t)status;
    r->type = (uint8_t)type;
    if (r->type == MCFS_REPLICA_LOCAL_DISK)
        return read_local_disk(payload, r);
    r->payload = payload;
    r->size = payload_size(r->type, payload);
    return true;
}

static bool read_replicas(struct decoder *d, struct snap_object *o, uint32_t n)
{
    if (n > d->replica_cap) {
        struct snap_replica *more = realloc(d->replicas, n * sizeof(*more));
        if (!more)
            return false;
        d->replicas = more;
        d->replica_cap = n;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!read_replica(&d->in, &d->replicas[i]))
            return false;
    o->replicas = d->replicas;
    o->replica_count = n;
    return true;
}

/* The array's elements from 7 on; older writers left some out, which their types tell. */
static bool read_tail(struct decoder *d, struct snap_object *o, uint32_t len, uint64_t n)
{
    struct mp_reader *p = &d->in;
    uint64_t value;
    uint32_t left = len - 7;
    if (left > n && mp_peek(p) == MP_UINT) {
        if (!mp_read_uint(p, &value) || value > 255)
            return false;
        o->data_type = (uint8_t)value;
        left--;
    }
    if (left < n || left > n + 3 || !read_replicas(d, o, (uint32_t)n))
        return false;
    left -= (uint32_t)n;
    if (left > 0 && mp_peek(p) == MP_BOOL) {
        mp_read_bool(p, &o->hard_pin);
        left--;
    }
    if (left > 0 && mp_peek(p) == MP_STR) {
        mp_read_str(p, &o->group);
        left--;
    }
    if (left > 0 && mp_peek(p) == MP_UINT) {
        o->has_checksum = mp_read_uint(p, &o->checksum);
        left--;
    }
    return left == 0 && !p->failed;
}

static bool read_object(struct decoder *d, struct snap_object *o)
{
    struct mp_reader *p = &d->in;
    struct mcfs_slice client;
    uint32_t len;
    uint64_t ignored, n;
    bool soft_pin;
    if (!mp_read_array(p, &len) || len < 7 || !mp_read_raw(p, &client) ||
        !mp_read_int(p, &o->put_start_ms) || !mp_read_uint(p, &o->size) ||
        !mp_read_int(p, &o->lease_ms) || !mp_read_bool(p, &soft_pin) ||
        !mp_read_uint(p, &ignored) || !mp_read_uint(p, &n))
        return false;
    o->put_client = parse_client(client);
    /* Each replica has at least five bytes, so a count beyond the bytes left is a lie. */
    if (n > (size_t)(p->end - p->p) || len - 7 < n)
        return false;
    return read_tail(d, o, len, n);
}

static bool read_entry(struct decoder *d, struct snap_object *o)
{
    uint32_t len;
    *o = (struct snap_object){0};
    o->attr.mode = MCFS_ATTR_DEFAULT_MODE;
    if (!mp_read_array(&d->in, &len) || (len != 2 && len != 3))
        return false;
    o->tenant = MCFS_SLICE_LITERAL(MCFS_DEFAULT_TENANT);
    if ((len == 3 && !mp_read_raw(&d->in, &o->tenant)) || !mp_read_raw(&d->in, &o->key))
        return false;
    return read_object(d, o);
}

static bool read_extra(struct decoder *d, struct snap_object *o)
{
    struct mp_reader *p = &d->extra;
    o->has_extra =
        mp_read_array_of(p, 5) && mp_read_uint(p, &o->version) &&
        mp_read_u32_max(p, 07777, &o->attr.mode) && mp_read_u32_max(p, UINT32_MAX, &o->attr.uid) &&
        mp_read_u32_max(p, UINT32_MAX, &o->attr.gid) && mp_read_int(p, &o->attr.mtime_ns);
    return o->has_extra;
}

static int corrupt(struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_FILE_READ_FAIL, "a shard of another form than expected");
}

int snap_decode_shard(struct mcfs_slice metadata, struct mcfs_slice extra,
                      int (*fn)(const struct snap_object *o, void *arg, struct mcfs_error *err),
                      void *arg, struct mcfs_error *err)
{
    struct decoder d = {.in = mp_reader(metadata.data, metadata.len),
                        .extra = mp_reader(extra.data, extra.len),
                        .has_extra = extra.len > 0};
    struct mcfs_slice name;
    uint32_t fields, n, extras = 0;
    int rc = 0;
    if (!mp_read_map(&d.in, &fields) || fields != 1 || !mp_read_raw(&d.in, &name) ||
        !mcfs_slice_eq(name, MCFS_SLICE_LITERAL("metadata")) || !mp_read_array(&d.in, &n) ||
        (d.has_extra && (!mp_read_array(&d.extra, &extras) || extras != n)))
        return corrupt(err);
    for (uint32_t i = 0; i < n && rc == 0; i++) {
        struct snap_object o;
        if (!read_entry(&d, &o) || (d.has_extra && !read_extra(&d, &o)))
            rc = corrupt(err);
        else
            rc = fn(&o, arg, err);
    }
    if (rc == 0 && !mp_done(&d.in))
        rc = corrupt(err);
    free(d.replicas);
    return rc;
}
