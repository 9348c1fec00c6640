/* SPDX-License-Identifier: Apache-2.0 */
/* RPC methods of nodes: registration, inventory, heartbeat, recalls. */
#include "common/cleanup.h"
#include "common/id.h"
#include "common/log.h"
#include "master/master.h"

#include <inttypes.h>

static void copy_text(char *to, size_t cap, struct mcfs_slice from)
{
    snprintf(to, cap, "%.*s", MCFS_SLICE_ARG(from));
}

int method_register(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice id, name, endpoint;
    struct node_info info = {0};
    if (!mp_read_raw(&r->params, &id) || !mp_read_raw(&r->params, &name) ||
        !mp_read_raw(&r->params, &endpoint) || !mp_read_uint(&r->params, &info.capacity_bytes) ||
        !mp_read_uint(&r->params, &info.used_bytes) || mcfs_id_parse(id, &info.id))
        return bad_params(r, err);
    copy_text(info.name, sizeof(info.name), name);
    copy_text(info.endpoint, sizeof(info.endpoint), endpoint);
    uint32_t number = directory_client(m->directory, info.id);
    if (nodes_register(m->nodes, number, &info, mcfs_rpc_conn_key(r->conn), r->conn, err))
        return -1;
    mcfs_rpc_conn_set_tag(r->conn, number);
    directory_inventory_begin(m->directory, number);
    segments_await(directory_segments(m->directory), number, m->flags.client_ttl_ms);
    mcfs_info("node %s (%s) registers, id %.*s", info.name, info.endpoint, MCFS_SLICE_ARG(id));
    mp_put_array(r->result, 3);
    mp_put_uint(r->result, (uint64_t)m->epoch << 16 | number);
    mp_put_uint(r->result, m->flags.default_kv_lease_ttl_ms);
    mp_put_cstr(r->result, m->flags.cluster_id);
    return 0;
}

static bool read_item(struct mp_reader *p, struct mcfs_object *o, bool *leaving)
{
    uint32_t data_type, fields = 0;
    *o = (struct mcfs_object){0};
    *leaving = false;
    bool ok = mp_read_array(p, &fields) && (fields == 9 || fields == 10) &&
              mp_read_raw(p, &o->tenant) && mp_read_raw(p, &o->key) &&
              mp_read_uint(p, &o->version) && mp_read_uint(p, &o->size) && read_attr(p, &o->attr) &&
              mp_read_u32_max(p, 255, &data_type) && (fields == 9 || mp_read_bool(p, leaving));
    o->data_type = ok ? (uint8_t)data_type : 0;
    return ok;
}

/* Items that are read from the message before any is entered, so that what they need is fetched
 * side by side. */
struct item_group {
    struct mcfs_object objects[DIRECTORY_AHEAD_MAX];
    bool leaving[DIRECTORY_AHEAD_MAX];
    uint32_t count, first; /* of its first in the message */
};

/* Enters a group; the places of stale ones go to the result.  0 or -1. */
static int enter_group(struct master *m, struct mcfs_rpc_request *r, uint32_t node,
                       const struct item_group *g, uint32_t *stale, struct mcfs_error *err)
{
    const struct mcfs_rpc_key *key = mcfs_rpc_conn_key(r->conn);
    uint8_t generation = directory_inventory_generation(m->directory, node);
    directory_inventory_ahead(m->directory, g->objects, g->count);
    for (uint32_t i = 0; i < g->count; i++) {
        const struct mcfs_object *o = &g->objects[i];
        int rc = mcfs_rpc_key_check(key, o->tenant, err);
        if (rc == 0 && !nodes_is_discarded(m->nodes, node, o->version))
            rc = (g->leaving[i] ? directory_inventory_leaving
                                : directory_inventory_item)(m->directory, node, generation, o, err);
        if (rc < 0)
            return -1;
        if (rc == 0) {
            mp_put_uint(r->result, g->first + i);
            ++*stale;
        }
    }
    return 0;
}

int method_inventory_items(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session;
    uint32_t node, n, stale = 0;
    if (!mp_read_uint(&r->params, &session) || !mp_read_array(&r->params, &n))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    size_t at = mp_begin_array(r->result);
    struct item_group g;
    for (g.first = 0; g.first < n; g.first += g.count) {
        for (g.count = 0; g.count < MCFS_MIN(n - g.first, DIRECTORY_AHEAD_MAX); g.count++)
            if (!read_item(&r->params, &g.objects[g.count], &g.leaving[g.count]))
                return bad_params(r, err);
        if (enter_group(m, r, node, &g, &stale, err))
            return -1;
    }
    mp_end_array(r->result, at, stale);
    return 0;
}

int method_inventory_end(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, dropped;
    uint32_t node;
    if (!mp_read_uint(&r->params, &session))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    uint8_t generation = directory_inventory_generation(m->directory, node);
    directory_inventory_end(m->directory, node, generation, &dropped);
    nodes_ready(m->nodes, node);
    nodes_resend_discards(m->nodes, node);
    mcfs_info("inventory complete: the node stores %" PRIu64 " objects; %" PRIu64
              " that it no longer has were withdrawn",
              directory_node_objects(m->directory, node), dropped);
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, dropped);
    return 0;
}

int method_ping(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, capacity, used, objects;
    uint32_t node;
    if (!mp_read_uint(&r->params, &session) || !mp_read_uint(&r->params, &capacity) ||
        !mp_read_uint(&r->params, &used) || !mp_read_uint(&r->params, &objects))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    nodes_ping(m->nodes, node, capacity, used);
    mp_put_array(r->result, 2);
    mp_put_uint(r->result, nodes_count_connected(m->nodes));
    mp_put_uint(r->result, nodes_resend_discards(m->nodes, node));
    return 0;
}

int method_recall_done(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, version;
    uint32_t node, n;
    if (!mp_read_uint(&r->params, &session) || !mp_read_array(&r->params, &n))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_slice tenant, key;
        if (!mp_read_array_of(&r->params, 3) || !mp_read_raw(&r->params, &tenant) ||
            !mp_read_raw(&r->params, &key) || !mp_read_uint(&r->params, &version))
            return bad_params(r, err);
        directory_lease_returned(m->directory, tenant, key, version, node);
    }
    mp_put_nil(r->result);
    return 0;
}

int method_discarded(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t session, version;
    uint32_t node, n;
    if (!mp_read_uint(&r->params, &session) || !mp_read_array(&r->params, &n))
        return bad_params(r, err);
    if (session_node(m, session, &node, err))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        if (!mp_read_uint(&r->params, &version))
            return bad_params(r, err);
        nodes_discarded(m->nodes, node, version);
    }
    mp_put_nil(r->result);
    return 0;
}

int method_nodes(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    (void)err;
    uint32_t count = 0;
    size_t at = mp_begin_array(r->result);
    for (uint32_t i = 1; i <= nodes_max(m->nodes); i++) {
        struct node_info node;
        char id[MCFS_ID_TEXT_MAX];
        if (!nodes_get(m->nodes, i, &node))
            continue;
        mp_put_array(r->result, 8);
        mp_put_cstr(r->result, mcfs_id_format(node.id, id));
        mp_put_cstr(r->result, node.name);
        mp_put_cstr(r->result, node.endpoint);
        mp_put_bool(r->result, node.connected);
        mp_put_uint(r->result, node.capacity_bytes);
        mp_put_uint(r->result, node.used_bytes);
        mp_put_uint(r->result, directory_node_objects(m->directory, i));
        mp_put_int(r->result, node.silent_ms);
        count++;
    }
    mp_end_array(r->result, at, count);
    return 0;
}
