/* SPDX-License-Identifier: Apache-2.0 */
/* RPC methods on objects: look-up, put, removal. */
#include "common/id.h"
#include "master/service_segment.h"

#define BATCH_MAX 4096

/* [session, tenant, ...]: the caller and its tenant. */
static bool read_caller(struct mp_reader *p, uint64_t *session, struct mcfs_slice *tenant)
{
    return mp_read_uint(p, session) && mp_read_raw(p, tenant);
}

void put_attr(struct mcfs_buf *b, const struct mcfs_attr *attr)
{
    mp_put_uint(b, attr->mode);
    mp_put_uint(b, attr->uid);
    mp_put_uint(b, attr->gid);
    mp_put_int(b, attr->mtime_ns);
}

bool read_attr(struct mp_reader *p, struct mcfs_attr *attr)
{
    return mp_read_u32_max(p, 07777, &attr->mode) && mp_read_u32_max(p, UINT32_MAX, &attr->uid) &&
           mp_read_u32_max(p, UINT32_MAX, &attr->gid) && mp_read_int(p, &attr->mtime_ns);
}

static void put_replica(struct master *m, struct mcfs_buf *b, const struct replica_view *r)
{
    bool memory = r->type == MCFS_REPLICA_MEMORY;
    uint32_t number = r->node;
    struct segment_info segment = {0};
    struct node_info node = {0};
    char id[MCFS_ID_TEXT_MAX] = "";
    if (memory && segments_get(directory_segments(m->directory), r->segment, r->serial, &segment))
        number = segment.node;
    if (number) {
        nodes_get(m->nodes, number, &node);
        mcfs_id_format(directory_client_id(m->directory, number), id);
    }
    mp_put_array(b, memory ? 10 : 8);
    mp_put_uint(b, r->id);
    mp_put_uint(b, r->type);
    mp_put_uint(b, r->status);
    mp_put_uint(b, r->size);
    mp_put_cstr(b, id);
    mp_put_cstr(b, node.name);
    if (memory)
        mp_put_str(b, mcfs_slice(segment.endpoint, segment.endpoint_len));
    else
        mp_put_cstr(b, node.endpoint);
    mp_put_bool(b, r->connected);
    if (memory) {
        mp_put_str(b, segment_name(&segment));
        mp_put_uint(b, r->address);
    }
}

void put_object(struct master *m, struct mcfs_buf *b, const struct object_view *v)
{
    mp_put_array(b, 13);
    mp_put_uint(b, v->version);
    mp_put_uint(b, v->size);
    mp_put_uint(b, v->lease_ms);
    put_attr(b, &v->attr);
    mp_put_uint(b, v->data_type);
    mp_put_bool(b, v->hard_pin);
    mp_put_uint(b, v->shard);
    mp_put_array(b, v->replica_count);
    for (uint32_t i = 0; i < v->replica_count; i++)
        put_replica(m, b, &v->replicas[i]);
    mp_put_uint(b, v->soft_pin_ms);
    mp_put_str(b, mcfs_slice(v->group, v->group_len));
}

int method_get_replica_list(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session;
    uint32_t node;
    struct mcfs_slice tenant, key;
    struct object_view v;
    if (!read_caller(&r->params, &session, &tenant) || !mp_read_raw(&r->params, &key))
        return bad_params(r, err);
    if (session_node(m, session, &node, err) ||
        directory_get(m->directory, tenant, key, node, &v, err))
        return -1;
    put_object(m, r->result, &v);
    return 0;
}

/* Reads [session, tenant, [key ...]] with at most BATCH_MAX keys. */
static int read_keys(struct master *m, struct mcfs_rpc_request *r, uint32_t *node,
                     struct mcfs_slice *tenant, struct mcfs_slice *keys, uint32_t *n,
                     struct mcfs_error *err)
{
    uint64_t session;
    if (!read_caller(&r->params, &session, tenant) || !mp_read_array(&r->params, n))
        return bad_params(r, err);
    if (*n > BATCH_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "at most %d keys in a batch; these are %u",
                         BATCH_MAX, *n);
    for (uint32_t i = 0; i < *n; i++)
        if (!mp_read_raw(&r->params, &keys[i]))
            return bad_params(r, err);
    if (session_node(m, session, node, err))
        return -1;
    return 0;
}

struct answer {
    struct master *m;
    struct mcfs_buf *to;
};

static void put_item(uint32_t i, const struct object_view *view, const struct mcfs_error *err,
                     void *arg)
{
    const struct answer *a = arg;
    (void)i;
    mp_put_array(a->to, 2);
    if (view) {
        mp_put_uint(a->to, 0);
        put_object(a->m, a->to, view);
    } else {
        mp_put_int(a->to, err->code);
        mp_put_cstr(a->to, err->msg);
    }
}

static void put_is_there(uint32_t i, const struct object_view *view, const struct mcfs_error *err,
                         void *arg)
{
    const struct answer *a = arg;
    (void)i;
    (void)err;
    mp_put_bool(a->to, view);
}

static int get_batch(struct master *m, struct mcfs_rpc_request *r,
                     void (*fn)(uint32_t i, const struct object_view *view,
                                const struct mcfs_error *err, void *arg),
                     struct mcfs_error *err)
{
    struct mcfs_slice tenant = {0}, keys[BATCH_MAX];
    uint32_t node = 0, n = 0;
    struct answer a = {m, r->result};
    if (read_keys(m, r, &node, &tenant, keys, &n, err))
        return -1;
    mp_put_array(r->result, n);
    directory_get_batch(m->directory, tenant, keys, n, node, fn, &a);
    return 0;
}

int method_batch_get_replica_list(struct master *m, struct mcfs_rpc_request *r,
                                  struct mcfs_error *err)
{
    return get_batch(m, r, put_item, err);
}

int method_exist_key(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session;
    uint32_t node;
    struct mcfs_slice tenant, key;
    struct object_view v;
    if (!read_caller(&r->params, &session, &tenant) || !mp_read_raw(&r->params, &key))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    mp_put_bool(r->result, directory_get(m->directory, tenant, key, node, &v, NULL) == 0);
    return 0;
}

int method_batch_exist_key(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    return get_batch(m, r, put_is_there, err);
}

int put_lookup(struct master *m, struct mcfs_buf *b, struct mcfs_slice tenant,
               struct mcfs_slice path, uint32_t node, struct object_view *view,
               struct mcfs_error *err)
{
    struct mcfs_error e = MCFS_ERROR_INIT;
    int64_t mtime_ns;
    if (path.len == 0 || directory_get(m->directory, tenant, path, node, view, &e)) {
        if (e.code != MCFS_OBJECT_NOT_FOUND && e.code != MCFS_OK) {
            *err = e;
            return -1;
        }
        mp_put_nil(b);
        view->version = 0;
    } else {
        put_object(m, b, view);
    }
    if (directory_is_dir(m->directory, tenant, path, &mtime_ns))
        mp_put_int(b, mtime_ns);
    else
        mp_put_nil(b);
    return 0;
}

int method_lookup(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session;
    uint32_t node;
    struct mcfs_slice tenant, path;
    struct object_view view;
    if (!read_caller(&r->params, &session, &tenant) || !mp_read_raw(&r->params, &path))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    mp_put_array(r->result, 2);
    return put_lookup(m, r->result, tenant, path, node, &view, err);
}

/* {soft_pin_ms, hard_pin, group, ...}: what PutStart may say beside the key. */
static bool read_config(struct mp_reader *p, struct put_start *to, struct memory_config *memory)
{
    uint32_t n;
    if (!mp_read_map(p, &n))
        return false;
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_slice name;
        if (!mp_read_str(p, &name))
            return false;
        bool ok = false;
        if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("soft_pin_ms"))) {
            to->has_soft_pin = true;
            to->soft_pin_ms = SOFT_PIN_DEFAULT;
            ok = mp_peek(p) == MP_NIL ? mp_read_nil(p) : mp_read_uint(p, &to->soft_pin_ms);
        } else if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("hard_pin"))) {
            ok = mp_read_bool(p, &to->hard_pin);
        } else if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("group"))) {
            to->has_group = true;
            ok = mp_read_raw(p, &to->group);
        } else {
            ok = read_memory_config(p, name, memory);
        }
        if (!ok)
            return false;
    }
    return true;
}

int method_put_start(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, version;
    struct put_start p = {0};
    struct memory_config memory;
    memory_config_init(&memory);
    if (!read_caller(&r->params, &session, &p.tenant) || !mp_read_raw(&r->params, &p.key) ||
        !mp_read_uint(&r->params, &p.size) || !mp_read_bool(&r->params, &p.upsert) ||
        (r->params_count > 5 && !read_config(&r->params, &p, &memory)))
        return bad_params(r, err);
    if (session_node(m, session, &p.client, err))
        return -1;
    if (memory.given)
        return put_start_in_memory(m, &p, &memory, r, err);
    if (directory_put_start(m->directory, &p, &version, err))
        return -1;
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, version);
    return 0;
}

int method_put_end(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session;
    struct put_end p = {0};
    struct put_result out;
    uint32_t data_type;
    struct mp_reader *in = &r->params;
    if (!read_caller(in, &session, &p.tenant) || !mp_read_raw(in, &p.key) ||
        !mp_read_uint(in, &p.version) || !mp_read_uint(in, &p.size) || !read_attr(in, &p.attr) ||
        !mp_read_u32_max(in, 255, &data_type) || !mp_read_bool(in, &p.no_replace) ||
        !(mp_peek(in) == MP_NIL ? mp_read_nil(in) : mp_read_raw(in, &p.from)) ||
        !mp_read_uint(in, &p.from_version))
        return bad_params(r, err);
    p.data_type = (uint8_t)data_type;
    if (session_node(m, session, &p.client, err))
        return -1;
    if (!p.client)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "PutEnd is for the node that stores the bytes");
    if (directory_put_end(m->directory, &p, &out, err))
        return -1;
    mp_put_array(r->result, 4);
    mp_put_uint(r->result, out.replaced_version);
    mp_put_bool(r->result, out.superseded);
    mp_put_uint(r->result, out.lease_ms);
    mp_put_uint(r->result, out.shard);
    return 0;
}

int method_exchange(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session;
    struct exchange x = {0};
    struct exchange_side *a = &x.side[0], *b = &x.side[1];
    uint32_t lease_ms = 0;
    struct mp_reader *in = &r->params;
    if (!read_caller(in, &session, &x.tenant) || !mp_read_raw(in, &a->key) ||
        !mp_read_uint(in, &a->version) || !mp_read_uint(in, &a->new_version) ||
        !mp_read_raw(in, &b->key) || !mp_read_uint(in, &b->version) ||
        !mp_read_uint(in, &b->new_version))
        return bad_params(r, err);
    if (session_node(m, session, &x.client, err))
        return -1;
    if (!x.client)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT,
                         "Exchange is for the node that stores the bytes");
    if (directory_exchange(m->directory, &x, &lease_ms, err))
        return -1;
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, lease_ms);
    return 0;
}

int method_put_revoke(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, version;
    uint32_t node;
    if (!mp_read_uint(&r->params, &session) || !mp_read_uint(&r->params, &version))
        return bad_params(r, err);
    if (session_node(m, session, &node, err) ||
        directory_put_revoke(m->directory, version, node, err))
        return -1;
    mp_put_nil(r->result);
    return 0;
}

int method_remove(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, version, removed;
    uint32_t node;
    struct mcfs_slice tenant, key;
    bool force;
    if (!read_caller(&r->params, &session, &tenant) || !mp_read_raw(&r->params, &key) ||
        !mp_read_uint(&r->params, &version) || !mp_read_bool(&r->params, &force))
        return bad_params(r, err);
    if (session_node(m, session, &node, err) ||
        directory_remove(m->directory, tenant, key, version, node, force, &removed, err))
        return -1;
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, removed);
    return 0;
}

int method_set_attr(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, version;
    uint32_t node, valid;
    struct mcfs_slice tenant, key;
    struct mcfs_attr attr;
    if (!read_caller(&r->params, &session, &tenant) || !mp_read_raw(&r->params, &key) ||
        !mp_read_uint(&r->params, &version) || !mp_read_u32_max(&r->params, 15, &valid) ||
        !read_attr(&r->params, &attr))
        return bad_params(r, err);
    if (session_node(m, session, &node, err) ||
        directory_set_attr(m->directory, tenant, key, version, node, valid, &attr, err))
        return -1;
    mp_put_array(r->result, 4);
    put_attr(r->result, &attr);
    return 0;
}

int method_set_soft_pin(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice tenant, key;
    uint64_t session, ms = SOFT_PIN_DEFAULT;
    uint32_t node;
    struct mp_reader *p = &r->params;
    if (!read_caller(p, &session, &tenant) || !mp_read_raw(p, &key) ||
        !(mp_peek(p) == MP_NIL ? mp_read_nil(p) : mp_read_uint(p, &ms)))
        return bad_params(r, err);
    if (session_node(m, session, &node, err) ||
        directory_set_soft_pin(m->directory, tenant, key, &ms, err))
        return -1;
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, ms);
    return 0;
}

int method_set_pin(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice tenant, key;
    uint64_t session;
    uint32_t node;
    bool hard;
    if (!read_caller(&r->params, &session, &tenant) || !mp_read_raw(&r->params, &key) ||
        !mp_read_bool(&r->params, &hard))
        return bad_params(r, err);
    if (session_node(m, session, &node, err) ||
        directory_set_hard_pin(m->directory, tenant, key, hard, err))
        return -1;
    mp_put_nil(r->result);
    return 0;
}
