/* SPDX-License-Identifier: Apache-2.0 */
/* What the admin paths tell of keys and of the nodes' storage. */
#include "common/cleanup.h"
#include "common/id.h"
#include "master/admin_http.h"

#include <inttypes.h>
#include <jansson.h>

#define QUERY_KEYS_MAX 1024

void admin_put_key(struct mcfs_buf *out, struct mcfs_slice key)
{
    for (size_t i = 0; i < key.len; i++) {
        unsigned char c = (unsigned char)key.data[i];
        if (c < 0x20 || c == 0x7f || c == '%')
            mcfs_buf_printf(out, "%%%02X", c);
        else
            mcfs_buf_append(out, &c, 1);
    }
}

json_t *admin_json_text(const char *data, size_t len)
{
    json_t *j = json_stringn(data, len);
    if (j)
        return j;
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    for (size_t i = 0; i < len; i++)
        mcfs_buf_printf(&b, data[i] & 0x80 || data[i] == '%' ? "%%%02X" : "%c",
                        (unsigned char)data[i]);
    return b.failed ? NULL : json_stringn((const char *)b.data, b.len);
}

static int put_json(struct mcfs_buf *out, json_t *json, struct mcfs_error *err)
{
    _cleanup_free_ char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text)
        return mcfs_fail_errno(err, ENOMEM, "answer");
    mcfs_buf_append_str(out, text);
    mcfs_buf_append_str(out, "\n");
    return 0;
}

static const char *type_name(uint8_t type)
{
    switch (type) {
    case MCFS_REPLICA_MEMORY:
        return "MEMORY";
    case MCFS_REPLICA_DISK:
        return "DISK";
    case MCFS_REPLICA_LOCAL_DISK:
        return "LOCAL_DISK";
    case MCFS_REPLICA_DFS:
        return "DFS";
    default:
        return "UNSUPPORTED";
    }
}

static json_t *replicas_of(struct master *m, const struct object_view *v)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < v->replica_count; i++) {
        const struct replica_view *r = &v->replicas[i];
        struct node_info node = {0};
        char id[MCFS_ID_TEXT_MAX] = "";
        if (r->node) {
            nodes_get(m->nodes, r->node, &node);
            mcfs_id_format(directory_client_id(m->directory, r->node), id);
        }
        json_array_append_new(
            list,
            json_pack("{s:I,s:s,s:i,s:I,s:s,s:o*,s:o*,s:b}", "id", (json_int_t)r->id, "type",
                      type_name(r->type), "status", (int)r->status, "size", (json_int_t)r->size,
                      "node", id, "node_name", admin_json_text(node.name, strlen(node.name)),
                      "endpoint", admin_json_text(node.endpoint, strlen(node.endpoint)),
                      "connected", (int)r->connected));
    }
    return list;
}

/* No node asks, so no lease is granted. */
static int look_up(struct master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                   struct object_view *v, struct mcfs_error *err)
{
    unsigned slot = directory_enter(m->directory);
    int rc = directory_get(m->directory, tenant, key, 0, v, err);
    directory_leave(m->directory, slot);
    return rc;
}

int admin_query_key(struct master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                    struct mcfs_buf *out, struct mcfs_error *err)
{
    struct object_view v;
    if (look_up(m, tenant, key, &v, err))
        return -1;
    return put_json(out,
                    json_pack("{s:o*,s:I,s:I,s:b,s:i,s:o*}", "key",
                              admin_json_text(key.data, key.len), "version", (json_int_t)v.version,
                              "size", (json_int_t)v.size, "hard_pin", (int)v.hard_pin, "shard",
                              (int)v.shard, "replicas", replicas_of(m, &v)),
                    err);
}

int admin_query_keys(struct master *m, struct mcfs_slice tenant, struct mcfs_slice keys,
                     struct mcfs_buf *out, struct mcfs_error *err)
{
    json_t *data = json_object();
    for (uint32_t n = 0; keys.len; n++) {
        const char *comma = memchr(keys.data, ',', keys.len);
        struct mcfs_slice key = {keys.data, comma ? (size_t)(comma - keys.data) : keys.len};
        size_t used = key.len + (comma ? 1 : 0);
        keys = mcfs_slice(keys.data + used, keys.len - used);
        if (n == QUERY_KEYS_MAX) {
            json_decref(data);
            return mcfs_fail(err, MCFS_INVALID_PARAMS, "at most %d keys", QUERY_KEYS_MAX);
        }
        struct object_view v;
        struct mcfs_error e = MCFS_ERROR_INIT;
        json_t *name = admin_json_text(key.data, key.len);
        bool ok = look_up(m, tenant, key, &v, &e) == 0;
        json_object_setn_new(data, json_string_value(name), json_string_length(name),
                             ok ? json_pack("{s:b,s:o*}", "ok", 1, "values", replicas_of(m, &v))
                                : json_pack("{s:b,s:s}", "ok", 0, "error", mcfs_code_name(e.code)));
        json_decref(name);
    }
    return put_json(out, json_pack("{s:b,s:o}", "success", 1, "data", data), err);
}

void admin_segments(struct master *m, struct mcfs_buf *out)
{
    struct node_info node;
    for (uint32_t i = 1; i <= nodes_max(m->nodes); i++) {
        if (!nodes_get(m->nodes, i, &node))
            continue;
        admin_put_key(out, mcfs_slice_str(node.name));
        mcfs_buf_append_str(out, "\n");
    }
    admin_memory_names(m, out);
}

int admin_query_segment(struct master *m, struct mcfs_slice name, struct mcfs_buf *out,
                        struct mcfs_error *err)
{
    struct node_info node;
    uint64_t used, capacity;
    if (admin_memory_query(m, name, &used, &capacity)) {
        mcfs_buf_printf(out, "Used(bytes): %" PRIu64 "\nCapacity(bytes) : %" PRIu64 "\n", used,
                        capacity);
        return 0;
    }
    for (uint32_t i = 1; i <= nodes_max(m->nodes); i++) {
        char id[MCFS_ID_TEXT_MAX];
        if (!nodes_get(m->nodes, i, &node) ||
            (!mcfs_slice_eq(mcfs_slice_str(node.name), name) &&
             !mcfs_slice_eq(mcfs_slice_str(mcfs_id_format(node.id, id)), name)))
            continue;
        mcfs_buf_printf(out, "Used(bytes): %" PRIu64 "\nCapacity(bytes) : %" PRIu64 "\n",
                        node.used_bytes, node.capacity_bytes);
        return 0;
    }
    return mcfs_fail(err, MCFS_SEGMENT_NOT_FOUND, "no such segment");
}

int admin_segments_detail(struct master *m, struct mcfs_buf *out, struct mcfs_error *err)
{
    json_t *list = json_array();
    struct node_info node;
    for (uint32_t i = 1; i <= nodes_max(m->nodes); i++) {
        char id[MCFS_ID_TEXT_MAX];
        if (!nodes_get(m->nodes, i, &node))
            continue;
        json_array_append_new(
            list, json_pack("{s:o*,s:s,s:s,s:o*,s:b,s:I,s:I,s:I}", "segment",
                            admin_json_text(node.name, strlen(node.name)), "node",
                            mcfs_id_format(node.id, id), "type", "LOCAL_DISK", "endpoint",
                            admin_json_text(node.endpoint, strlen(node.endpoint)), "connected",
                            (int)node.connected, "capacity_bytes", (json_int_t)node.capacity_bytes,
                            "used_bytes", (json_int_t)node.used_bytes, "objects",
                            (json_int_t)directory_node_objects(m->directory, i)));
    }
    admin_memory_details(m, list);
    return put_json(out, json_pack("{s:o}", "segments", list), err);
}
