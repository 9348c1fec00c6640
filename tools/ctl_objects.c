/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefsctl on objects: the store without a mount. */
#include "tools/ctl.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"

#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#define CHUNK (4u << 20)
#define LIST_BATCH 1000

/* ---- names ---- */

struct listing {
    struct ctl *c;
    json_t *json;
    struct mcfs_slice prefix; /* of names to be shown */
    const char *dir;
};

static void list_one(const struct mcfs_master_entry *e, void *arg)
{
    struct listing *l = arg;
    if (e->name.len < l->prefix.len || memcmp(e->name.data, l->prefix.data, l->prefix.len) != 0)
        return;
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    mcfs_buf_append_str(&key, l->dir);
    mcfs_buf_append(&key, e->name.data, e->name.len);
    if (e->is_dir)
        mcfs_buf_append(&key, "/", 1);
    if (l->json) {
        json_array_append_new(
            l->json, json_pack("{s:o, s:b, s:I, s:I, s:I}", "key",
                               ctl_json_bytes(mcfs_slice(key.data, key.len)), "directory",
                               (int)e->is_dir, "size", (json_int_t)e->size, "version",
                               (json_int_t)e->version, "mtime_ns", (json_int_t)e->attr.mtime_ns));
        return;
    }
    if (e->is_dir)
        printf("%20s  ", "-");
    else
        printf("%20" PRIu64 "  ", e->size);
    fwrite(key.data, 1, key.len, stdout);
    putchar('\n');
}

int ctl_ls(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    if (argc > 1)
        return EXIT_USAGE;
    if (ctl_connect(c, err))
        return EXIT_FAILED;
    const char *word = argc ? argv[0] : "", *slash = strrchr(word, '/');
    _cleanup_free_ char *dir = strndup(word, slash ? (size_t)(slash - word) + 1 : 0);
    struct listing l = {.c = c,
                        .json = c->o.json ? json_array() : NULL,
                        .prefix = mcfs_slice_str(slash ? slash + 1 : word),
                        .dir = dir};
    uint64_t cookie = 0;
    do {
        if (mcfs_master_list(c->master, c->tenant, mcfs_slice_str(dir), cookie, LIST_BATCH,
                             list_one, &l, &cookie, NULL, err)) {
            json_decref(l.json);
            return EXIT_FAILED;
        }
    } while (cookie);
    if (l.json)
        ctl_print_json(l.json);
    return EXIT_DONE;
}

/* ---- one object ---- */

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

static json_t *object_json(struct ctl *c, struct mcfs_slice key, const struct mcfs_master_object *o)
{
    json_t *replicas = json_array();
    for (uint32_t i = 0; i < o->replica_count; i++) {
        const struct mcfs_master_replica *r = &o->replicas[i];
        json_array_append_new(
            replicas,
            json_pack("{s:I, s:s, s:s, s:s, s:s, s:I, s:b}", "id", (json_int_t)r->id, "type",
                      type_name(r->type), "node_id", r->node_id, "node", r->node_name, "endpoint",
                      r->endpoint, "size", (json_int_t)r->size, "connected", (int)r->connected));
    }
    return json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:o, s:o}", "key",
                     ctl_json_bytes(key), "tenant", c->o.tenant, "size", (json_int_t)o->size,
                     "version", (json_int_t)o->version, "shard", (json_int_t)o->shard, "mode",
                     (json_int_t)o->attr.mode, "uid", (json_int_t)o->attr.uid, "gid",
                     (json_int_t)o->attr.gid, "mtime_ns", (json_int_t)o->attr.mtime_ns, "hard_pin",
                     (int)o->hard_pin, "soft_pin_ms", (json_int_t)o->soft_pin_ms, "group",
                     ctl_json_bytes(mcfs_slice_str(o->group)), "replicas", replicas);
}

static void print_object(struct ctl *c, struct mcfs_slice key, const struct mcfs_master_object *o)
{
    time_t sec = (time_t)(o->attr.mtime_ns / 1000000000);
    char when[64];
    struct tm tm;
    localtime_r(&sec, &tm);
    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
    printf("key        %.*s\ntenant     %s\nshard      %u\nversion    %" PRIu64
           "\nsize       %" PRIu64 "\nmode       %04o %u:%u  %s%s\n",
           MCFS_SLICE_ARG(key), c->o.tenant, o->shard, o->version, o->size, o->attr.mode,
           o->attr.uid, o->attr.gid, when, o->hard_pin ? "  pinned" : "");
    if (o->soft_pin_ms)
        printf("soft pin   for another %s\n", ctl_age((int64_t)o->soft_pin_ms));
    if (o->group[0])
        printf("group      %s\n", o->group);
    for (uint32_t i = 0; i < o->replica_count; i++) {
        const struct mcfs_master_replica *r = &o->replicas[i];
        printf("replica    %s on %s (%s, %s)%s\n", type_name(r->type), r->node_name, r->node_id,
               r->endpoint, r->connected ? "" : ", away");
    }
}

static int find_object(struct ctl *c, const char *word, char **key, struct mcfs_slice *slice,
                       struct mcfs_master_object *o, struct mcfs_error *err)
{
    size_t len;
    *key = ctl_key(c, word, &len);
    if (!*key)
        return mcfs_fail_errno(err, ENOMEM, "key");
    *slice = mcfs_slice(*key, len);
    if (ctl_connect(c, err))
        return -1;
    return mcfs_master_get(c->master, c->tenant, *slice, o, NULL, err);
}

struct found {
    struct ctl *c;
    json_t *json; /* NULL: for people */
};

static void stat_one(struct mcfs_slice key, const struct mcfs_master_object *o, void *arg)
{
    struct found *f = arg;
    if (f->json)
        json_array_append_new(f->json, object_json(f->c, key, o));
    else
        print_object(f->c, key, o);
}

static int stat_matching(struct ctl *c, const char *pattern, struct mcfs_error *err)
{
    uint64_t cursor = 0;
    if (ctl_connect(c, err))
        return EXIT_FAILED;
    struct found f = {c, c->o.json ? json_array() : NULL};
    do {
        if (mcfs_master_get_matching(c->master, c->tenant, mcfs_slice_str(pattern), &cursor,
                                     stat_one, &f, NULL, err)) {
            json_decref(f.json);
            return EXIT_FAILED;
        }
    } while (cursor);
    if (f.json)
        ctl_print_json(f.json);
    return EXIT_DONE;
}

int ctl_stat(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    _cleanup_free_ char *key = NULL;
    struct mcfs_slice slice;
    struct mcfs_master_object o = {0};
    if (argc != 1)
        return EXIT_USAGE;
    if (c->o.regex)
        return stat_matching(c, argv[0], err);
    if (find_object(c, argv[0], &key, &slice, &o, err))
        return EXIT_FAILED;
    if (c->o.json)
        ctl_print_json(object_json(c, slice, &o));
    else
        print_object(c, slice, &o);
    return EXIT_DONE;
}

/* Asks a node; params are appended by the caller behind nothing. */
static int ask_node(struct ctl *c, const char *endpoint, const char *method,
                    const struct mcfs_buf *params, struct mcfs_rpc_reply *reply,
                    struct mcfs_error *err)
{
    struct mcfs_rpc_client *node =
        mcfs_rpc_client_new(endpoint, c->keys, (uint32_t)c->o.timeout_ms, err);
    if (!node)
        return -1;
    int rc = mcfs_rpc_call(node, method, params, reply, NULL, err);
    mcfs_rpc_client_free(node);
    return rc;
}

static void put_name(struct mcfs_buf *b, struct ctl *c, struct mcfs_slice key)
{
    mp_put_str(b, c->tenant);
    mp_put_str(b, key);
}

/* ---- locate ---- */

struct place {
    char *file;
    uint64_t offset, length, crc32c;
    bool has_crc, whole_file;
};

static int ask_place(struct ctl *c, struct mcfs_slice key, uint64_t version, const char *endpoint,
                     struct place *out, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mcfs_slice file;
    mp_put_array(&p, 3);
    put_name(&p, c, key);
    mp_put_uint(&p, version);
    if (ask_node(c, endpoint, "Locate", &p, &reply, err))
        return -1;
    struct mp_reader *r = &reply.result;
    if (!mp_read_array_of(r, 5) || !mp_read_raw(r, &file) || !mp_read_uint(r, &out->offset) ||
        !mp_read_uint(r, &out->length))
        return mcfs_fail(err, MCFS_RPC_FAIL, "Locate: answer of a wrong form");
    out->has_crc = mp_peek(r) == MP_UINT;
    if (out->has_crc ? !mp_read_uint(r, &out->crc32c) : !mp_read_nil(r))
        return mcfs_fail(err, MCFS_RPC_FAIL, "Locate: answer of a wrong form");
    mp_read_bool(r, &out->whole_file);
    out->file = strndup(file.data, file.len);
    return 0;
}

int ctl_locate(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    _cleanup_free_ char *key = NULL;
    struct mcfs_slice slice;
    struct mcfs_master_object o = {0};
    if (argc != 1)
        return EXIT_USAGE;
    if (find_object(c, argv[0], &key, &slice, &o, err))
        return EXIT_FAILED;
    json_t *object = object_json(c, slice, &o);
    json_t *replicas = json_object_get(object, "replicas");
    if (!c->o.json)
        print_object(c, slice, &o);
    for (uint32_t i = 0; i < o.replica_count; i++) {
        struct place p = {0};
        const struct mcfs_master_replica *r = &o.replicas[i];
        if (r->type != MCFS_REPLICA_LOCAL_DISK || !r->connected)
            continue;
        if (ask_place(c, slice, o.version, r->endpoint, &p, err)) {
            json_decref(object);
            return EXIT_FAILED;
        }
        json_t *extents = c->o.physical ? ctl_extents(p.file, p.offset, p.length) : NULL;
        json_t *place = json_pack("{s:s, s:I, s:I, s:b, s:o*}", "file", p.file, "offset",
                                  (json_int_t)p.offset, "length", (json_int_t)p.length,
                                  "whole_file", (int)p.whole_file, "extents", json_incref(extents));
        if (p.has_crc)
            json_object_set_new(place, "crc32c", json_integer((json_int_t)p.crc32c));
        if (!c->o.json) {
            printf("file       %s\noffset     %" PRIu64 "\nlength     %" PRIu64 "\n", p.file,
                   p.offset, p.length);
            if (p.has_crc)
                printf("crc32c     %08" PRIx64 "\n", p.crc32c);
            size_t k;
            json_t *e;
            json_array_foreach(extents, k, e)
                printf("extent     file %" JSON_INTEGER_FORMAT " disk %" JSON_INTEGER_FORMAT
                       " length %" JSON_INTEGER_FORMAT "\n",
                       json_integer_value(json_object_get(e, "file_offset")),
                       json_integer_value(json_object_get(e, "disk_offset")),
                       json_integer_value(json_object_get(e, "length")));
        }
        json_decref(extents);
        json_object_set_new(json_array_get(replicas, i), "place", place);
        free(p.file);
    }
    if (c->o.json)
        ctl_print_json(object);
    else
        json_decref(object);
    return EXIT_DONE;
}

/* ---- get and put ---- */

/* Reads one range from the first replica that answers. */
static int read_range(struct ctl *c, struct mcfs_slice key, const struct mcfs_master_object *o,
                      uint64_t off, uint64_t len, int to, struct mcfs_error *err)
{
    mcfs_fail(err, MCFS_REPLICA_IS_NOT_READY, "no node that stores it answers");
    for (uint32_t i = 0; i < o->replica_count; i++) {
        _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
        _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
        struct mcfs_slice bytes;
        if (o->replicas[i].type != MCFS_REPLICA_LOCAL_DISK || !o->replicas[i].connected)
            continue;
        mp_put_array(&p, 5);
        put_name(&p, c, key);
        mp_put_uint(&p, o->version);
        mp_put_uint(&p, off);
        mp_put_uint(&p, len);
        if (ask_node(c, o->replicas[i].endpoint, "ReadReplica", &p, &reply, err))
            continue;
        if (!mp_read_bin(&reply.result, &bytes) || bytes.len != len)
            return mcfs_fail(err, MCFS_TRANSFER_FAIL, "the node sent less than was asked for");
        return mcfs_write_full(to, bytes.data, bytes.len) ? mcfs_fail_errno(err, errno, "write")
                                                          : 0;
    }
    return -1;
}

int ctl_get(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    _cleanup_free_ char *key = NULL;
    struct mcfs_slice slice;
    struct mcfs_master_object o = {0};
    if (argc < 1 || argc > 2)
        return EXIT_USAGE;
    if (find_object(c, argv[0], &key, &slice, &o, err))
        return EXIT_FAILED;
    _cleanup_fd_ int file = -1;
    int to = STDOUT_FILENO;
    if (argc == 2 && strcmp(argv[1], "-") != 0) {
        to = file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (file < 0) {
            mcfs_fail_errno(err, errno, "%s", argv[1]);
            return EXIT_FAILED;
        }
    }
    for (uint64_t off = 0; off < o.size; off += CHUNK)
        if (read_range(c, slice, &o, off, MCFS_MIN(CHUNK, o.size - off), to, err))
            return EXIT_FAILED;
    return EXIT_DONE;
}

static int stage_pieces(struct mcfs_rpc_client *node, int from, uint64_t stage, uint64_t *size,
                        struct mcfs_error *err)
{
    _cleanup_free_ char *buf = malloc(CHUNK);
    if (!buf)
        return mcfs_fail_errno(err, ENOMEM, "put");
    for (*size = 0;;) {
        size_t n = 0;
        ssize_t got;
        while (n < CHUNK && (got = read(from, buf + n, CHUNK - n)) > 0)
            n += (size_t)got;
        if (n == 0)
            return 0;
        _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
        _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
        mp_put_array(&p, 3);
        mp_put_uint(&p, stage);
        mp_put_uint(&p, *size);
        mp_put_bin(&p, buf, n);
        if (mcfs_rpc_call(node, "StageWrite", &p, &reply, NULL, err))
            return -1;
        *size += n;
    }
}

static int put_on(struct ctl *c, struct mcfs_rpc_client *node, struct mcfs_slice key, int from,
                  uint64_t *size, uint64_t *version, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply open = MCFS_RPC_REPLY_INIT, commit = MCFS_RPC_REPLY_INIT;
    uint64_t stage;
    mp_put_array(&p, 0);
    if (mcfs_rpc_call(node, "StageOpen", &p, &open, NULL, err))
        return -1;
    if (!mp_read_array_of(&open.result, 1) || !mp_read_uint(&open.result, &stage))
        return mcfs_fail(err, MCFS_RPC_FAIL, "StageOpen: answer of a wrong form");
    if (stage_pieces(node, from, stage, size, err))
        return -1;
    mcfs_buf_reset(&p);
    mp_put_array(&p, 4);
    mp_put_uint(&p, stage);
    put_name(&p, c, key);
    mp_put_uint(&p, *size);
    if (mcfs_rpc_call(node, "StageCommit", &p, &commit, NULL, err))
        return -1;
    mp_read_array_of(&commit.result, 1);
    mp_read_uint(&commit.result, version);
    return 0;
}

int ctl_put(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct mcfs_master_node where;
    uint64_t size = 0, version = 0;
    if (argc != 2)
        return EXIT_USAGE;
    if (ctl_connect(c, err) || ctl_pick_node(c, &where, err))
        return EXIT_FAILED;
    _cleanup_fd_ int file = -1;
    int from = STDIN_FILENO;
    if (strcmp(argv[1], "-") != 0 && (from = file = open(argv[1], O_RDONLY | O_CLOEXEC)) < 0) {
        mcfs_fail_errno(err, errno, "%s", argv[1]);
        return EXIT_FAILED;
    }
    struct mcfs_rpc_client *node =
        mcfs_rpc_client_new(where.endpoint, c->keys, (uint32_t)c->o.timeout_ms, err);
    if (!node)
        return EXIT_FAILED;
    int rc = put_on(c, node, mcfs_slice_str(argv[0]), from, &size, &version, err);
    mcfs_rpc_client_free(node);
    if (rc)
        return EXIT_FAILED;
    if (c->o.json)
        ctl_print_json(json_pack("{s:o, s:I, s:I, s:s}", "key",
                                 ctl_json_bytes(mcfs_slice_str(argv[0])), "size", (json_int_t)size,
                                 "version", (json_int_t)version, "node", where.name));
    return EXIT_DONE;
}

/* ---- rm, pin ---- */

int ctl_rm(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct mcfs_master_node where;
    if (argc < 1 || (c->o.regex && argc != 1))
        return EXIT_USAGE;
    if (c->o.regex)
        return ctl_rm_matching(c, argv[0], err);
    for (int i = 0; i < argc; i++) {
        size_t len;
        _cleanup_free_ char *key = ctl_key(c, argv[i], &len);
        _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
        _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
        if (ctl_connect(c, err) || ctl_pick_node(c, &where, err))
            return EXIT_FAILED;
        mp_put_array(&p, 3);
        put_name(&p, c, mcfs_slice(key, len));
        mp_put_bool(&p, c->o.force);
        if (ask_node(c, where.endpoint, "RemoveKey", &p, &reply, err))
            return EXIT_FAILED;
    }
    if (c->o.json)
        ctl_print_json(json_pack("{s:i}", "removed", argc));
    return EXIT_DONE;
}

/* Unpinning ends both kinds of pin. */
static int set_pin(struct ctl *c, struct mcfs_slice key, bool pin, struct mcfs_error *err)
{
    const uint64_t zero = 0;
    const uint64_t *ms = !pin ? &zero : c->o.ttl_ms ? &c->o.ttl_ms : NULL;
    if ((!pin || c->o.soft) && mcfs_master_set_soft_pin(c->master, c->tenant, key, ms, NULL, err))
        return -1;
    return pin && c->o.soft ? 0 : mcfs_master_set_pin(c->master, c->tenant, key, pin, NULL, err);
}

static int set_pins(struct ctl *c, int argc, char **argv, bool pin, struct mcfs_error *err)
{
    if (argc < 1)
        return EXIT_USAGE;
    for (int i = 0; i < argc; i++) {
        size_t len;
        _cleanup_free_ char *key = ctl_key(c, argv[i], &len);
        if (ctl_connect(c, err) || set_pin(c, mcfs_slice(key, len), pin, err))
            return EXIT_FAILED;
    }
    return EXIT_DONE;
}

int ctl_pin(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    return set_pins(c, argc, argv, true, err);
}

int ctl_unpin(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    return set_pins(c, argc, argv, false, err);
}
