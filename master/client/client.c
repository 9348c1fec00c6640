/* SPDX-License-Identifier: Apache-2.0 */
#include "master/client/client.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/id.h"
#include "master/client/session.h"

struct mcfs_master *mcfs_master_open(const struct mcfs_master_config *config,
                                     struct mcfs_error *err)
{
    struct mcfs_master *m = calloc(1, sizeof(*m));
    if (!m) {
        mcfs_fail_errno(err, ENOMEM, "master client");
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    mcfs_cond_init(&m->changed);
    m->timeout_ms = config->timeout_ms;
    m->keys = config->keys;
    m->wake = (struct mcfs_cancel)MCFS_CANCEL_INIT;
    m->rpc = mcfs_rpc_client_new(config->address, config->keys, config->timeout_ms, err);
    m->address = strdup(config->address);
    m->node_name = strdup(config->node_name ? config->node_name : "");
    m->endpoint = strdup(config->endpoint ? config->endpoint : "");
    m->node_id = config->node_id;
    if (!m->rpc || !m->address || !m->node_name || !m->endpoint) {
        if (m->rpc)
            mcfs_fail_errno(err, ENOMEM, "master client");
        mcfs_master_close(m);
        return NULL;
    }
    if (config->node_id.hi || config->node_id.lo) {
        m->ops = config->ops;
        m->ops_arg = config->ops_arg;
        if (session_start(m, err)) {
            mcfs_master_close(m);
            return NULL;
        }
    }
    return m;
}

void mcfs_master_close(struct mcfs_master *m)
{
    if (!m)
        return;
    session_stop(m);
    mcfs_rpc_client_free(m->rpc);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    free(m->address);
    free(m->node_name);
    free(m->endpoint);
    free(m);
}

uint32_t mcfs_master_lease_ms(struct mcfs_master *m)
{
    return atomic_load(&m->lease_ms);
}

uint32_t mcfs_master_nodes_seen(struct mcfs_master *m)
{
    return atomic_load(&m->nodes_seen);
}

bool mcfs_master_session_ready(struct mcfs_master *m)
{
    MCFS_LOCK_SCOPE(&m->lock);
    return m->session != 0;
}

uint64_t mcfs_master_session(struct mcfs_master *m)
{
    MCFS_LOCK_SCOPE(&m->lock);
    return m->session;
}

uint64_t mcfs_master_calls(struct mcfs_master *m)
{
    return atomic_load(&m->calls);
}

int master_call(struct mcfs_master *m, const char *method, bool with_session, uint32_t count,
                const struct mcfs_buf *rest, struct mcfs_rpc_reply *reply,
                const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t deadline = mcfs_mono_ms() + m->timeout_ms;
    struct mcfs_error local;
    if (!err)
        err = &local;
    if (rest->failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", method);
    bool repeated = false;
    for (;;) {
        _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
        uint64_t session = 0;
        if (with_session && m->ops && !(session = session_wait(m, deadline, cancel, err)))
            return -1;
        mp_put_array(&params, count + (with_session ? 1 : 0));
        if (with_session)
            mp_put_uint(&params, session);
        mcfs_buf_append(&params, rest->data, rest->len);
        atomic_fetch_add_explicit(&m->calls, 1, memory_order_relaxed);
        int rc = mcfs_rpc_call(m->rpc, method, &params, reply, cancel, err);
        reply->repeated |= repeated;
        if (rc == 0 || !session || err->code != MCFS_CLIENT_NOT_FOUND || mcfs_mono_ms() >= deadline)
            return rc;
        repeated = true;
        session_invalid(m, session);
    }
}

int master_bad_answer(const char *method, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_RPC_FAIL, "%s: the master's answer has a wrong form", method);
}

void master_copy_text(char *to, size_t cap, struct mcfs_slice from)
{
    size_t n = from.len < cap - 1 ? from.len : cap - 1;
    if (n)
        memcpy(to, from.data, n);
    to[n] = 0;
}

bool master_read_attr(struct mp_reader *p, struct mcfs_attr *attr)
{
    return mp_read_u32_max(p, 07777, &attr->mode) && mp_read_u32_max(p, UINT32_MAX, &attr->uid) &&
           mp_read_u32_max(p, UINT32_MAX, &attr->gid) && mp_read_int(p, &attr->mtime_ns);
}

static bool read_replica(struct mp_reader *p, struct mcfs_master_replica *r)
{
    struct mcfs_slice id, name, endpoint;
    uint32_t type, status, n;
    if (!mp_read_array(p, &n) || n < 8 || !mp_read_uint(p, &r->id) ||
        !mp_read_u32_max(p, 255, &type) || !mp_read_u32_max(p, 255, &status) ||
        !mp_read_uint(p, &r->size) || !mp_read_raw(p, &id) || !mp_read_raw(p, &name) ||
        !mp_read_raw(p, &endpoint) || !mp_read_bool(p, &r->connected))
        return false;
    for (; n > 8; n--) /* where in a segment */
        if (!mp_skip(p, NULL))
            return false;
    r->type = (uint8_t)type;
    r->status = (uint8_t)status;
    master_copy_text(r->node_id, sizeof(r->node_id), id);
    master_copy_text(r->node_name, sizeof(r->node_name), name);
    master_copy_text(r->endpoint, sizeof(r->endpoint), endpoint);
    return true;
}

bool master_read_object(struct mp_reader *p, struct mcfs_master_object *o)
{
    struct mcfs_slice group;
    uint32_t data_type, n;
    if (!mp_read_array_of(p, 13) || !mp_read_uint(p, &o->version) || !mp_read_uint(p, &o->size) ||
        !mp_read_u32_max(p, UINT32_MAX, &o->lease_ms) || !master_read_attr(p, &o->attr) ||
        !mp_read_u32_max(p, 255, &data_type) || !mp_read_bool(p, &o->hard_pin) ||
        !mp_read_u32_max(p, MCFS_SHARD_COUNT, &o->shard) || !mp_read_array(p, &n))
        return false;
    o->data_type = (uint8_t)data_type;
    o->replica_count = n < MCFS_OBJECT_REPLICAS_MAX ? n : MCFS_OBJECT_REPLICAS_MAX;
    for (uint32_t i = 0; i < n; i++)
        if (i < MCFS_OBJECT_REPLICAS_MAX ? !read_replica(p, &o->replicas[i]) : !mp_skip(p, NULL))
            return false;
    if (!mp_read_uint(p, &o->soft_pin_ms) || !mp_read_raw(p, &group))
        return false;
    master_copy_text(o->group, sizeof(o->group), group);
    return true;
}

int mcfs_master_get(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                    struct mcfs_master_object *out, const struct mcfs_cancel *cancel,
                    struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, tenant);
    mp_put_str(&p, key);
    if (master_call(m, "GetReplicaList", true, 2, &p, &reply, cancel, err))
        return -1;
    return master_read_object(&reply.result, out) ? 0 : master_bad_answer("GetReplicaList", err);
}

static bool read_lookup(struct mp_reader *r, struct mcfs_master_lookup *out)
{
    out->has_object = mp_peek(r) != MP_NIL;
    if (out->has_object ? !master_read_object(r, &out->object) : !mp_read_nil(r))
        return false;
    out->is_dir = mp_peek(r) != MP_NIL;
    return out->is_dir ? mp_read_int(r, &out->dir_mtime_ns) : mp_read_nil(r);
}

int mcfs_master_lookup(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice path,
                       struct mcfs_master_lookup *out, const struct mcfs_cancel *cancel,
                       struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_str(&p, tenant);
    mp_put_str(&p, path);
    if (master_call(m, "Lookup", true, 2, &p, &reply, cancel, err))
        return -1;
    if (!mp_read_array_of(&reply.result, 2) || !read_lookup(&reply.result, out))
        return master_bad_answer("Lookup", err);
    return 0;
}

int mcfs_master_lookup_ahead(struct mcfs_master *m, struct mcfs_slice tenant,
                             struct mcfs_slice path, uint32_t ahead, struct mcfs_master_lookup *out,
                             void (*fn)(const struct mcfs_master_neighbour *n, void *arg),
                             void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    uint32_t n;
    mp_put_str(&p, tenant);
    mp_put_str(&p, path);
    mp_put_uint(&p, ahead);
    if (master_call(m, "LookupAhead", true, 3, &p, &reply, cancel, err))
        return -1;
    struct mp_reader *r = &reply.result;
    if (!mp_read_array_of(r, 3) || !read_lookup(r, out) || !mp_read_array(r, &n))
        return master_bad_answer("LookupAhead", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_master_neighbour e;
        if (!mp_read_array_of(r, 8) || !mp_read_raw(r, &e.name) || !mp_read_uint(r, &e.version) ||
            !mp_read_uint(r, &e.size) || !mp_read_u32_max(r, UINT32_MAX, &e.lease_ms) ||
            !master_read_attr(r, &e.attr))
            return master_bad_answer("LookupAhead", err);
        fn(&e, arg);
    }
    return 0;
}

/* Asks for a batch; the reader then stands before the first of n entries. */
static int ask_listing(struct mcfs_master *m, const char *method, struct mcfs_slice tenant,
                       struct mcfs_slice dir, uint64_t cookie, uint32_t max,
                       struct mcfs_rpc_reply *reply, uint64_t *next, uint32_t *n,
                       const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    mp_put_str(&p, tenant);
    mp_put_str(&p, dir);
    mp_put_uint(&p, cookie);
    mp_put_uint(&p, max);
    if (master_call(m, method, true, 4, &p, reply, cancel, err))
        return -1;
    struct mp_reader *r = &reply->result;
    if (!mp_read_array_of(r, 2) || !mp_read_uint(r, next) || !mp_read_array(r, n))
        return master_bad_answer(method, err);
    return 0;
}

int mcfs_master_list(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice dir,
                     uint64_t cookie, uint32_t max,
                     void (*fn)(const struct mcfs_master_entry *entry, void *arg), void *arg,
                     uint64_t *next, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mp_reader *r = &reply.result;
    uint32_t n = 0;
    if (ask_listing(m, "List", tenant, dir, cookie, max, &reply, next, &n, cancel, err))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_master_entry e;
        if (!mp_read_array_of(r, 10) || !mp_read_raw(r, &e.name) || !mp_read_bool(r, &e.is_dir) ||
            !mp_read_bool(r, &e.shadowed) || !mp_read_uint(r, &e.cookie) ||
            !mp_read_uint(r, &e.version) || !mp_read_uint(r, &e.size) ||
            !master_read_attr(r, &e.attr))
            return master_bad_answer("List", err);
        fn(&e, arg);
    }
    return 0;
}

int mcfs_master_list_names(struct mcfs_master *m, struct mcfs_slice tenant, struct mcfs_slice dir,
                           uint64_t cookie, uint32_t max,
                           void (*fn)(const struct mcfs_master_name *name, void *arg), void *arg,
                           uint64_t *next, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mp_reader *r = &reply.result;
    uint32_t n = 0;
    if (ask_listing(m, "ListNames", tenant, dir, cookie, max, &reply, next, &n, cancel, err))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_master_name e;
        uint32_t kind;
        if (!mp_read_array_of(r, 3) || !mp_read_raw(r, &e.name) || !mp_read_u32_max(r, 2, &kind) ||
            !mp_read_uint(r, &e.cookie))
            return master_bad_answer("ListNames", err);
        e.is_dir = kind == 1;
        e.shadowed = kind == 2;
        fn(&e, arg);
    }
    return 0;
}

int mcfs_master_nodes(struct mcfs_master *m,
                      void (*fn)(const struct mcfs_master_node *node, void *arg), void *arg,
                      struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    if (master_call(m, "Nodes", false, 0, &p, &reply, NULL, err))
        return -1;
    struct mp_reader *r = &reply.result;
    uint32_t n;
    if (!mp_read_array(r, &n))
        return master_bad_answer("Nodes", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_master_node node;
        struct mcfs_slice id, name, endpoint;
        if (!mp_read_array_of(r, 8) || !mp_read_raw(r, &id) || !mp_read_raw(r, &name) ||
            !mp_read_raw(r, &endpoint) || !mp_read_bool(r, &node.connected) ||
            !mp_read_uint(r, &node.capacity_bytes) || !mp_read_uint(r, &node.used_bytes) ||
            !mp_read_uint(r, &node.objects) || !mp_read_int(r, &node.silent_ms))
            return master_bad_answer("Nodes", err);
        master_copy_text(node.id, sizeof(node.id), id);
        master_copy_text(node.name, sizeof(node.name), name);
        master_copy_text(node.endpoint, sizeof(node.endpoint), endpoint);
        fn(&node, arg);
    }
    return 0;
}

int mcfs_master_tenants(struct mcfs_master *m,
                        void (*fn)(struct mcfs_slice tenant, uint64_t objects, uint64_t bytes,
                                   void *arg),
                        void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    if (master_call(m, "Tenants", false, 0, &p, &reply, cancel, err))
        return -1;
    struct mp_reader *r = &reply.result;
    uint32_t n;
    if (!mp_read_array(r, &n))
        return master_bad_answer("Tenants", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_slice tenant;
        uint64_t objects, bytes;
        if (!mp_read_array_of(r, 3) || !mp_read_raw(r, &tenant) || !mp_read_uint(r, &objects) ||
            !mp_read_uint(r, &bytes))
            return master_bad_answer("Tenants", err);
        fn(tenant, objects, bytes, arg);
    }
    return 0;
}

int mcfs_master_status(struct mcfs_master *m,
                       void (*fn)(struct mcfs_slice name, const struct mcfs_slice *text,
                                  int64_t number, void *arg),
                       void *arg, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    if (master_call(m, "Status", false, 0, &p, &reply, NULL, err))
        return -1;
    struct mp_reader *r = &reply.result;
    uint32_t n;
    if (!mp_read_map(r, &n))
        return master_bad_answer("Status", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_slice name, text;
        int64_t number = 0;
        if (!mp_read_raw(r, &name))
            return master_bad_answer("Status", err);
        bool is_text = mp_peek(r) == MP_STR;
        if (is_text ? !mp_read_str(r, &text) : !mp_read_int(r, &number))
            return master_bad_answer("Status", err);
        fn(name, is_text ? &text : NULL, number, arg);
    }
    return 0;
}
