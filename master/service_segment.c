/* SPDX-License-Identifier: Apache-2.0 */
/* RPC methods of memory segments, and what PutStart says of puts into them. */
#include "master/service_segment.h"

#include "common/cleanup.h"
#include "common/id.h"
#include "common/log.h"
#include "master/evict.h"
#include "master/waiting.h"

#include <inttypes.h>

#define DRAIN_MAX_MS (7ull * 86400 * 1000)

/* ---- puts into memory ---- */

static bool read_strategy(struct mp_reader *p, enum segment_strategy *to)
{
    struct mcfs_slice name;
    return mp_read_str(p, &name) && segment_strategy_parse(name, to);
}

void memory_config_init(struct memory_config *c)
{
    c->given = c->has_strategy = false; /* the names need no zeroes */
    c->preferred_count = 0;
    c->wait_ms = PUT_WAIT_MS;
}

bool read_memory_config(struct mp_reader *p, struct mcfs_slice name, struct memory_config *to)
{
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("replica_num"))) {
        to->given = true;
        return mp_read_uint(p, &to->replica_num);
    }
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("allocation_strategy"))) {
        to->has_strategy = true;
        return read_strategy(p, &to->strategy);
    }
    if (mcfs_slice_eq(name, MCFS_SLICE_LITERAL("wait_ms")))
        return mp_read_uint(p, &to->wait_ms) && to->wait_ms <= PUT_WAIT_MAX_MS;
    if (!mcfs_slice_eq(name, MCFS_SLICE_LITERAL("preferred_segments")) ||
        !mp_read_array(p, &to->preferred_count) || to->preferred_count > PREFERRED_MAX)
        return false;
    for (uint32_t i = 0; i < to->preferred_count; i++)
        if (!mp_read_raw(p, &to->preferred[i]))
            return false;
    return true;
}

int put_begin_in_memory(struct master *m, const struct put_start *p, const struct memory_config *c,
                        bool again, uint64_t *version, bool *full, struct mcfs_buf *result,
                        struct mcfs_error *err)
{
    struct memory_put put = {.again = again,
                             .replica_num = c->replica_num,
                             .strategy = c->strategy,
                             .preferred = c->preferred,
                             .preferred_count = c->preferred_count};
    if (!c->has_strategy)
        segment_strategy_parse(mcfs_slice_str(m->flags.allocation_strategy), &put.strategy);
    int rc = directory_put_start_memory(m->directory, p, &put, version, err);
    *full = put.full;
    if (rc)
        return -1;
    mp_put_array(result, 2);
    mp_put_uint(result, *version);
    mp_put_array(result, put.count);
    for (uint32_t i = 0; i < put.count; i++) {
        struct segment_info g = {0};
        segments_get(directory_segments(m->directory), put.replicas[i].range.segment, 0, &g);
        mp_put_array(result, 5);
        mp_put_uint(result, put.replicas[i].id);
        mp_put_str(result, segment_name(&g));
        mp_put_str(result, mcfs_slice(g.endpoint, g.endpoint_len));
        mp_put_uint(result, put.replicas[i].range.address);
        mp_put_uint(result, put.replicas[i].range.size);
    }
    return 0;
}

int put_start_in_memory(struct master *m, const struct put_start *p, const struct memory_config *c,
                        struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t version;
    bool full;
    if (!p->client)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT,
                         "a put into memory is ended by a node: it needs a session");
    int rc = put_begin_in_memory(m, p, c, false, &version, &full, r->result, err);
    if (rc && full && c->wait_ms && waiting_puts_add(m->waiting, r, p, c, err) == 0)
        return 0;
    evictor_wake(m->evictor, full);
    return rc;
}

/* ---- methods ---- */

/* Who mounts is a node, and one that serves every tenant. */
static int read_session(struct master *m, struct mcfs_rpc_request *r, uint64_t session,
                        uint32_t *node, struct mcfs_error *err)
{
    if (session_node(m, session, node, err))
        return -1;
    if (!*node)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "segments are mounted by nodes: no session");
    if (mcfs_rpc_key_is_bound(mcfs_rpc_conn_key(r->conn)))
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT,
                         "a segment holds every tenant's objects: not for key '%s', which is bound "
                         "to tenants",
                         mcfs_rpc_key_name(mcfs_rpc_conn_key(r->conn)));
    return 0;
}

static void sweep(struct master *m, const char *what, const struct segment_info *g, uint64_t *gone)
{
    *gone = directory_sweep_segments(m->directory);
    mcfs_info("memory segment %.*s is %s; %" PRIu64 " objects went with it", g->name_len, g->name,
              what, *gone);
}

int method_mount_segment(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct segment_info g = {0};
    struct mp_reader *p = &r->params;
    struct mcfs_slice id, name, endpoint;
    uint64_t session, swept;
    bool gone;
    if (!mp_read_uint(p, &session) || !mp_read_raw(p, &id) || !mp_read_raw(p, &name) ||
        !mp_read_uint(p, &g.base) || !mp_read_uint(p, &g.size) || !mp_read_raw(p, &endpoint) ||
        mcfs_id_parse(id, &g.id))
        return bad_params(r, err);
    if (!segment_set_text(g.name, &g.name_len, name) ||
        !segment_set_text(g.endpoint, &g.endpoint_len, endpoint))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "a segment's name and endpoint have at most %d bytes", SEGMENT_TEXT_MAX);
    if (read_session(m, r, session, &g.node, err) ||
        directory_mount_segment(m->directory, &g, &gone, err))
        return -1;
    if (gone)
        sweep(m, "mounted in the place of another", &g, &swept);
    mcfs_info("memory segment %.*s is mounted: %" PRIu64 " bytes", g.name_len, g.name, g.size);
    mp_put_nil(r->result);
    return 0;
}

/* [session, segment id ...]: a segment of the caller's.  0, 1 when there is none (any more), -1. */
static int read_own(struct master *m, struct mcfs_rpc_request *r, struct segment_info *g,
                    struct mcfs_error *err)
{
    struct segments *s = directory_segments(m->directory);
    uint64_t session;
    uint32_t node;
    struct mcfs_slice text;
    struct mcfs_id id;
    if (!mp_read_uint(&r->params, &session) || !mp_read_raw(&r->params, &text) ||
        mcfs_id_parse(text, &id))
        return bad_params(r, err);
    if (read_session(m, r, session, &node, err))
        return -1;
    uint32_t number = segments_find(s, id);
    if (!number || !segments_get(s, number, 0, g))
        return 1;
    return g->node == node ? 0
                           : mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "segment %.*s is another node's",
                                       g->name_len, g->name);
}

int method_unmount_segment(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct segment_info g;
    uint64_t gone = 0;
    int rc = read_own(m, r, &g, err);
    if (rc < 0)
        return -1;
    if (rc == 0) {
        segments_kill(directory_segments(m->directory), g.number);
        sweep(m, "unmounted", &g, &gone);
    }
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, gone);
    return 0;
}

int method_graceful_unmount_segment(struct master *m, struct mcfs_rpc_request *r,
                                    struct mcfs_error *err)
{
    struct segment_info g = {0};
    uint64_t ms;
    int rc = read_own(m, r, &g, err);
    if (rc < 0)
        return -1;
    if (!mp_read_uint(&r->params, &ms))
        return bad_params(r, err);
    if (ms > DRAIN_MAX_MS)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a segment drains for a week at most");
    if (rc == 0)
        segments_drain(directory_segments(m->directory), g.number, ms);
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, rc == 0 ? g.ranges : 0);
    return 0;
}

const char *segment_state_name(uint8_t state)
{
    switch (state) {
    case SEGMENT_OK:
        return "ok";
    case SEGMENT_AWAITED:
        return "awaited";
    case SEGMENT_DRAINING:
        return "draining";
    default:
        return "gone";
    }
}

struct answer {
    struct master *m;
    struct mcfs_buf *to;
};

static void put_segment(const struct segment_info *g, void *arg)
{
    const struct answer *a = arg;
    char id[MCFS_ID_TEXT_MAX], node[MCFS_ID_TEXT_MAX] = "";
    if (g->node)
        mcfs_id_format(directory_client_id(a->m->directory, g->node), node);
    mp_put_array(a->to, 10);
    mp_put_cstr(a->to, mcfs_id_format(g->id, id));
    mp_put_str(a->to, segment_name(g));
    mp_put_cstr(a->to, node);
    mp_put_str(a->to, mcfs_slice(g->endpoint, g->endpoint_len));
    mp_put_uint(a->to, g->base);
    mp_put_uint(a->to, g->size);
    mp_put_uint(a->to, g->used);
    mp_put_uint(a->to, g->largest_free);
    mp_put_uint(a->to, g->ranges);
    mp_put_cstr(a->to, segment_state_name(g->state));
}

/* Segments of a name or an id (NULL: all), as an array; returns how many. */
static uint32_t put_segments(struct master *m, struct mcfs_buf *b, const struct mcfs_slice *which)
{
    struct answer a = {m, b};
    size_t at = mp_begin_array(b);
    uint32_t count = segments_visit(directory_segments(m->directory), which, put_segment, &a);
    mp_end_array(b, at, count);
    return count;
}

int method_get_all_segments(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    (void)err;
    put_segments(m, r->result, NULL);
    return 0;
}

int method_query_segment(struct master *m, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice which;
    if (!mp_read_raw(&r->params, &which))
        return bad_params(r, err);
    return put_segments(m, r->result, &which)
               ? 0
               : mcfs_fail(err, MCFS_SEGMENT_NOT_FOUND, "%.*s: no such segment",
                           (int)MCFS_MIN(which.len, 160), which.data);
}

/* ---- housekeeping ---- */

static bool is_heard(void *arg, uint32_t node)
{
    struct master *m = arg;
    return nodes_heard_within(m->nodes, node, (int64_t)m->flags.client_ttl_ms);
}

void segments_tick(struct master *m)
{
    struct segments *s = directory_segments(m->directory);
    segments_release_due(s);
    if (!segments_expire(s, is_heard, m))
        return;
    mcfs_info("%" PRIu64 " objects went with memory segments",
              directory_sweep_segments(m->directory));
}
