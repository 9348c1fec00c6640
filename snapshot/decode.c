/* SPDX-License-Identifier: Apache-2.0 */
/* One shard's MessagePack as objects.  Nothing in it is trusted: counts are bounded by the bytes
 * that are there. */
#include "snapshot/snapshot.h"

#include "snapshot/replica.h"

struct decoder {
    struct mp_reader in, extra;
    bool has_extra;
    struct replica_list replicas;
};

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
    if (left < n || left > n + 3 || !replica_list_read(&d->replicas, p, n))
        return false;
    o->replicas = d->replicas.v;
    o->replica_count = (uint32_t)n;
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
    o->put_client = parse_id_leniently(client);
    if (n > len - 7) /* also keeps the sums below from running over */
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
                        .extra = extra.len ? mp_reader(extra.data, extra.len) : mp_reader("", 0),
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
        if (!read_entry(&d, &o))
            rc = mcfs_fail(err, MCFS_FILE_READ_FAIL,
                           "entry %u of %u is of another form than expected", i, n);
        else if (d.has_extra && !read_extra(&d, &o))
            rc = mcfs_fail(err, MCFS_FILE_READ_FAIL,
                           "the attributes of entry %u of %u are of another form than expected", i,
                           n);
        else
            rc = fn(&o, arg, err);
    }
    if (rc == 0 && (!mp_done(&d.in) || (d.has_extra && !mp_done(&d.extra))))
        rc = corrupt(err);
    replica_list_free(&d.replicas);
    return rc;
}
