/* SPDX-License-Identifier: Apache-2.0 */
/* The trees that are not keys: the root, tenants/, snapshots/ and the control files of
 * .mooncakefs/. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/id.h"
#include "fs/fs.h"
#include "fs/history.h"
#include "fs/locks.h"

#include <inttypes.h>
#include <jansson.h>

static const struct mcfs_slice none = {"", 0};

static struct mcfs_slice keys_tenant(const struct fs *fs)
{
    return mcfs_slice_str(fs->options->tenant ? fs->options->tenant : MCFS_DEFAULT_TENANT);
}

static int no_entry(const char *name, struct mcfs_error *err)
{
    return mcfs_fail_errno(err, ENOENT, "%s", name);
}

static int give(struct fs *fs, struct inode *inode, double timeout, struct fuse_entry_param *e,
                struct mcfs_error *err)
{
    if (!inode)
        return mcfs_fail_errno(err, ENOMEM, "lookup");
    fs_fill_entry(fs, inode, timeout, e);
    inode_give_to_kernel(fs->inodes, inode);
    return 0;
}

static struct inode *view_inode(struct fs *fs, enum inode_kind kind, struct mcfs_slice name)
{
    return inode_get(fs->inodes, kind, none, name, 0, NULL, NULL);
}

/* ---- .mooncakefs/ ---- */

struct control {
    const char *name;
    int (*write)(struct fs *fs, struct mcfs_buf *out, struct mcfs_error *err);
};

static int dump(json_t *json, struct mcfs_buf *out, struct mcfs_error *err)
{
    char *text = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    if (!text)
        return mcfs_fail_errno(err, ENOMEM, "json");
    mcfs_buf_append_str(out, text);
    mcfs_buf_append_str(out, "\n");
    free(text);
    return out->failed ? mcfs_fail_errno(err, ENOMEM, "json") : 0;
}

static int write_version(struct fs *fs, struct mcfs_buf *out, struct mcfs_error *err)
{
    (void)fs;
    (void)err;
    mcfs_buf_printf(out, "mooncakefs %s\n", MCFS_VERSION);
    return 0;
}

static int write_config(struct fs *fs, struct mcfs_buf *out, struct mcfs_error *err)
{
    const struct mount_options *o = fs->options;
    char id[MCFS_ID_TEXT_MAX];
    return dump(
        json_pack("{s:s, s:s, s:s, s:s, s:s*, s:s*, s:s*, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:s, "
                  "s:s}",
                  "version", MCFS_VERSION, "node_id", mcfs_id_format(node_id(fs->node), id),
                  "master", node_master_address(fs->node), "node", node_endpoint(fs->node),
                  "source", o->source, "tenant", o->tenant, "auth_key_file", o->auth_key_file,
                  "backend", node_backend_name(fs->node), "read_only", (int)o->ro, "rpc_timeout_ms",
                  (json_int_t)o->rpc_timeout_ms, "lease_wait_ms", (json_int_t)o->lease_wait_ms,
                  "bucket_size_limit", (json_int_t)o->bucket_size_limit, "bucket_keys_limit",
                  (json_int_t)o->bucket_keys_limit, "capacity", (json_int_t)o->capacity, "eviction",
                  o->eviction, "io_engine", o->io_engine),
        out, err);
}

struct figures {
    json_t *json;
};

static void add_figure(struct mcfs_slice name, const struct mcfs_slice *text, int64_t number,
                       void *arg)
{
    struct figures *f = arg;
    char key[128];
    snprintf(key, sizeof(key), "%.*s", MCFS_SLICE_ARG(name));
    json_object_set_new(f->json, key,
                        text ? json_stringn(text->data, text->len)
                             : json_integer((json_int_t)number));
}

static json_t *store_json(struct fs *fs)
{
    struct mcfs_backend_stats s;
    node_store_stats(fs->node, &s);
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "backend",
                     node_backend_name(fs->node), "io_engine", s.io_engine, "objects",
                     (json_int_t)s.objects, "object_bytes", (json_int_t)s.object_bytes,
                     "capacity_bytes", (json_int_t)s.capacity_bytes, "used_bytes",
                     (json_int_t)s.used_bytes, "dead_bytes", (json_int_t)s.dead_bytes, "buckets",
                     (json_int_t)s.buckets, "compactions", (json_int_t)s.compactions,
                     "checksum_errors", (json_int_t)s.checksum_errors);
}

static int write_status(struct fs *fs, struct mcfs_buf *out, struct mcfs_error *err)
{
    struct figures f = {json_object()};
    struct mcfs_error master = MCFS_ERROR_INIT;
    if (mcfs_master_status(node_master(fs->node), add_figure, &f, &master)) {
        json_decref(f.json);
        f.json = json_pack("{s:s}", "error", master.msg);
    }
    return dump(json_pack("{s:o, s:o, s:b}", "master", f.json, "store", store_json(fs),
                          "session_ready", (int)mcfs_master_session_ready(node_master(fs->node))),
                out, err);
}

static void add_node(const struct mcfs_master_node *n, void *arg)
{
    json_array_append_new(
        arg, json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I}", "id", n->id, "name", n->name,
                       "endpoint", n->endpoint, "connected", (int)n->connected, "capacity_bytes",
                       (json_int_t)n->capacity_bytes, "used_bytes", (json_int_t)n->used_bytes,
                       "objects", (json_int_t)n->objects, "silent_ms", (json_int_t)n->silent_ms));
}

static int write_nodes(struct fs *fs, struct mcfs_buf *out, struct mcfs_error *err)
{
    json_t *list = json_array();
    if (mcfs_master_nodes(node_master(fs->node), add_node, list, err)) {
        json_decref(list);
        return -1;
    }
    return dump(list, out, err);
}

static void add_disk(const struct mcfs_master_node *n, void *arg)
{
    json_t *list = arg;
    add_node(n, arg);
    json_object_set_new(json_array_get(list, json_array_size(list) - 1), "type",
                        json_string("LOCAL_DISK"));
}

static void add_memory(const struct mcfs_master_segment *g, void *arg)
{
    json_array_append_new(arg, json_pack("{s:s, s:s%, s:s, s:s, s:s, s:b, s:I, s:I, s:I}", "id",
                                         g->id, "name", g->name, strlen(g->name), "type", "MEMORY",
                                         "node", g->node_id, "state", g->state, "connected",
                                         strcmp(g->state, "awaited") != 0, "capacity_bytes",
                                         (json_int_t)g->size, "used_bytes", (json_int_t)g->used,
                                         "ranges", (json_int_t)g->ranges));
}

/* The tiers that hold replicas: the store of each node, then memory segments, unless this mount may
 * not see those. */
static int write_segments(struct fs *fs, struct mcfs_buf *out, struct mcfs_error *err)
{
    json_t *list = json_array();
    struct mcfs_error memory = MCFS_ERROR_INIT;
    if (mcfs_master_nodes(node_master(fs->node), add_disk, list, err)) {
        json_decref(list);
        return -1;
    }
    if (mcfs_master_segments(node_master(fs->node), add_memory, list, &memory) &&
        memory.code != MCFS_ILLEGAL_CLIENT) {
        *err = memory;
        json_decref(list);
        return -1;
    }
    return dump(list, out, err);
}

static int write_stats(struct fs *fs, struct mcfs_buf *out, struct mcfs_error *err)
{
    struct fs_counters *c = &fs->counters;
    struct mcfs_backend_stats s;
    (void)err;
    uint64_t passes, refused;
    node_store_stats(fs->node, &s);
    node_eviction_counts(fs->node, &passes, &refused);
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } m[] = {
        {"fuse_lookups_total", "counter", "look-ups of names", atomic_load(&c->lookups)},
        {"fuse_opens_total", "counter", "files opened", atomic_load(&c->opens)},
        {"fuse_passthrough_opens_total", "counter", "files opened that the kernel reads by itself",
         atomic_load(&c->passthrough_opens)},
        {"fuse_pushes_total", "counter", "objects sent along with their open",
         atomic_load(&c->pushes)},
        {"fuse_reads_total", "counter", "read requests", atomic_load(&c->reads)},
        {"fuse_read_bytes_total", "counter", "bytes asked for", atomic_load(&c->read_bytes)},
        {"fuse_writes_total", "counter", "write requests", atomic_load(&c->writes)},
        {"fuse_write_bytes_total", "counter", "bytes written", atomic_load(&c->write_bytes)},
        {"commits_total", "counter", "objects published", atomic_load(&c->commits)},
        {"commit_bytes_total", "counter", "bytes published", atomic_load(&c->commit_bytes)},
        {"unlinks_total", "counter", "names removed", atomic_load(&c->unlinks)},
        {"renames_total", "counter", "names changed", atomic_load(&c->renames)},
        {"readdirs_total", "counter", "listing requests", atomic_load(&c->readdirs)},
        {"recalls_total", "counter", "leases recalled", atomic_load(&c->recalls)},
        {"errors_total", "counter", "requests that failed unexpectedly", atomic_load(&c->errors)},
        {"lookup_ahead_hits_total", "counter", "look-ups that needed no request to the master",
         node_lookup_hits(fs->node)},
        {"inodes", "gauge", "inodes known to the kernel", inode_count(fs->inodes)},
        {"locks_waiting", "gauge", "requests that wait for a file lock", locks_waiting(fs->locks)},
        {"cluster_nodes", "gauge", "nodes of the cluster, as this one last heard",
         mcfs_master_nodes_seen(node_master(fs->node))},
        {"master_calls_total", "counter", "requests to the master",
         mcfs_master_calls(node_master(fs->node))},
        {"store_objects", "gauge", "objects stored by this node", s.objects},
        {"store_object_bytes", "gauge", "bytes of those objects", s.object_bytes},
        {"store_capacity_bytes", "gauge", "bytes that the disk tier can hold", s.capacity_bytes},
        {"store_used_bytes", "gauge", "bytes in use, dead ones included", s.used_bytes},
        {"store_io_uring", "gauge", "1: batches go through io_uring; 0: plain system calls",
         strcmp(s.io_engine, "uring") == 0},
        {"store_evictions_total", "counter", "objects evicted", s.evictions},
        {"store_evicted_bytes_total", "counter", "bytes of those objects", s.evicted_bytes},
        {"store_compactions_total", "counter", "thin buckets whose objects were moved",
         s.compactions},
        {"store_compacted_bytes_total", "counter", "bytes of those objects", s.compacted_bytes},
        {"eviction_passes_total", "counter", "times that victims were looked for", passes},
        {"eviction_refusals_total", "counter", "victims that were pinned or leased", refused},
        {"store_checksum_errors_total", "counter", "values that failed their checksum",
         s.checksum_errors},
    };
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(m); i++)
        mcfs_buf_printf(out,
                        "# HELP mooncakefs_%s %s\n# TYPE mooncakefs_%s %s\n"
                        "mooncakefs_%s %" PRIu64 "\n",
                        m[i].name, m[i].help, m[i].name, m[i].type, m[i].name, m[i].value);
    return 0;
}

static const struct control controls[] = {
    {"config.json", write_config}, {"nodes.json", write_nodes},   {"segments.json", write_segments},
    {"stats", write_stats},        {"status.json", write_status}, {"version", write_version},
};

static const struct control *find_control(struct mcfs_slice name)
{
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(controls); i++)
        if (mcfs_slice_eq(mcfs_slice_str(controls[i].name), name))
            return &controls[i];
    return NULL;
}

int64_t view_control_content(struct fs *fs, const struct inode *inode, char **data,
                             struct mcfs_error *err)
{
    struct mcfs_buf out = MCFS_BUF_INIT;
    const struct control *c = find_control(inode_key(inode));
    if (!c || c->write(fs, &out, err) || out.failed) {
        mcfs_buf_free(&out);
        return c ? -1 : mcfs_fail_errno(err, ENOENT, "control file");
    }
    mcfs_buf_append(&out, "", 1);
    *data = (char *)out.data;
    return (int64_t)out.len - 1;
}

/* ---- snapshots/ ---- */

struct find_snapshot {
    const char *id; /* NULL: the newest */
    bool found;
    struct mcfs_master_snapshot snapshot;
};

static void match_snapshot(const struct mcfs_master_snapshot *s, void *arg)
{
    struct find_snapshot *f = arg;
    if (f->found || (f->id && strcmp(f->id, s->id) != 0))
        return;
    f->found = true;
    f->snapshot = *s;
}

static int find_snapshot(struct fs *fs, struct find_snapshot *f, const struct mcfs_cancel *cancel,
                         struct mcfs_error *err)
{
    return mcfs_master_snapshots(node_master(fs->node), match_snapshot, f, cancel, err);
}

static int lookup_snapshot(struct fs *fs, const char *name, const struct mcfs_cancel *cancel,
                           struct fuse_entry_param *e, struct mcfs_error *err)
{
    bool latest = strcmp(name, "latest") == 0;
    struct find_snapshot f = {.id = latest ? NULL : name};
    if (find_snapshot(fs, &f, cancel, err))
        return -1;
    if (!f.found)
        return no_entry(name, err);
    struct inode *inode =
        view_inode(fs, latest ? INODE_LATEST : INODE_SNAPSHOT, mcfs_slice_str(name));
    if (inode) {
        MCFS_LOCK_SCOPE(&inode->lock);
        inode->attr.mtime_ns = f.snapshot.created_ms * 1000000;
        inode->size = latest ? strlen(f.snapshot.id) : 0;
    }
    return give(fs, inode, 0, e, err);
}

struct find_file {
    const char *name;
    bool found;
    uint64_t size;
    int64_t mtime_ns;
};

static void match_file(struct mcfs_slice name, uint64_t size, int64_t mtime_ns, void *arg)
{
    struct find_file *f = arg;
    if (!mcfs_slice_eq(name, mcfs_slice_str(f->name)))
        return;
    f->found = true;
    f->size = size;
    f->mtime_ns = mtime_ns;
}

static int lookup_snapshot_file(struct fs *fs, struct inode *parent, const char *name,
                                const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                                struct mcfs_error *err)
{
    struct mcfs_slice id = inode_key(parent);
    struct find_file f = {.name = name};
    _cleanup_free_ char *text = strndup(id.data, id.len);
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    if (mcfs_master_snapshot_files(node_master(fs->node), text, match_file, &f, cancel, err))
        return -1;
    if (!f.found)
        return no_entry(name, err);
    mcfs_buf_printf(&key, "%s/%s", text, name);
    struct inode *inode = view_inode(fs, INODE_SNAPFILE, mcfs_slice(key.data, key.len));
    if (inode) {
        MCFS_LOCK_SCOPE(&inode->lock);
        inode->size = f.size;
        inode->attr.mtime_ns = f.mtime_ns;
    }
    /* A published file never changes; that it is there may. */
    return give(fs, inode, 1, e, err);
}

void fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct fs *fs = fs_of(req);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct find_snapshot f = {0};
    if (inode_from(fs->inodes, ino)->kind != INODE_LATEST)
        fuse_reply_err(req, EINVAL);
    else if (find_snapshot(fs, &f, NULL, &err))
        fs_reply_error(req, &err);
    else if (!f.found)
        fuse_reply_err(req, ENOENT);
    else
        fuse_reply_readlink(req, f.snapshot.id);
}

/* ---- the root and tenants/ ---- */

/* A tenant's root is there for whoever names it: writing a key is what makes a tenant. */
static bool good_tenant(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= MCFS_TENANT_MAX && name[0] != '.';
}

/* A directory of keys that is always there. */
static int give_top(struct fs *fs, struct mcfs_slice tenant, double timeout,
                    struct fuse_entry_param *e, struct mcfs_error *err)
{
    return give(fs, inode_get(fs->inodes, INODE_DIR, tenant, none, 0, NULL, NULL), timeout, e, err);
}

static int lookup_root(struct fs *fs, const char *name, struct fuse_entry_param *e,
                       struct mcfs_error *err)
{
    if (strcmp(name, "keys") == 0)
        return give_top(fs, keys_tenant(fs), 3600, e, err);
    if (strcmp(name, "snapshots") == 0)
        return give(fs, view_inode(fs, INODE_SNAPSHOTS, none), 3600, e, err);
    if (strcmp(name, "history") == 0)
        return give(fs, view_inode(fs, INODE_HISTORY, none), 3600, e, err);
    if (strcmp(name, ".mooncakefs") == 0)
        return give(fs, view_inode(fs, INODE_CONTROL, none), 3600, e, err);
    if (strcmp(name, "tenants") == 0 && !fs->options->tenant)
        return give(fs, view_inode(fs, INODE_TENANTS, none), 3600, e, err);
    return no_entry(name, err);
}

/* A control file that the kernel will not tell us to open: each look-up is a file of its own, which
 * says now what it will say. */
static int lookup_content(struct fs *fs, const char *name, struct fuse_entry_param *e,
                          struct mcfs_error *err)
{
    static atomic_ullong next;
    struct inode *inode = inode_get(fs->inodes, INODE_CONTROL_FILE, none, mcfs_slice_str(name),
                                    atomic_fetch_add(&next, 1) + 1, NULL, NULL);
    int64_t len = inode ? view_control_content(fs, inode, &inode->content, err) : -1;
    if (len < 0) {
        inode_unref(fs->inodes, inode);
        return inode ? -1 : mcfs_fail_errno(err, ENOMEM, "lookup");
    }
    inode->size = (uint64_t)len;
    return give(fs, inode, 0, e, err);
}

int view_lookup(struct fs *fs, struct inode *parent, const char *name,
                const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                struct mcfs_error *err)
{
    switch ((enum inode_kind)parent->kind) {
    case INODE_ROOT:
        return lookup_root(fs, name, e, err);
    case INODE_TENANTS:
        if (!good_tenant(name))
            return no_entry(name, err);
        return give_top(fs, mcfs_slice_str(name), 1, e, err);
    case INODE_SNAPSHOTS:
        return lookup_snapshot(fs, name, cancel, e, err);
    case INODE_SNAPSHOT:
        return lookup_snapshot_file(fs, parent, name, cancel, e, err);
    case INODE_HISTORY:
    case INODE_HISTORY_SNAPSHOT:
    case INODE_HISTORY_DIR:
        return history_lookup(fs, parent, name, cancel, e, err);
    case INODE_CONTROL:
        if (!find_control(mcfs_slice_str(name)))
            return no_entry(name, err);
        if (fs->skip_open)
            return lookup_content(fs, name, e, err);
        return give(fs, view_inode(fs, INODE_CONTROL_FILE, mcfs_slice_str(name)), 3600, e, err);
    default:
        return mcfs_fail_errno(err, ENOTDIR, "%s", name);
    }
}

/* ---- listing ---- */

struct emitter {
    void (*emit)(const char *name, enum inode_kind kind, uint64_t size, int64_t mtime_ns,
                 void *arg);
    void *arg;
    bool any;
};

static void emit_tenant(struct mcfs_slice tenant, uint64_t objects, uint64_t bytes, void *arg)
{
    struct emitter *em = arg;
    _cleanup_free_ char *name = strndup(tenant.data, tenant.len);
    (void)objects;
    (void)bytes;
    if (name)
        em->emit(name, INODE_DIR, 0, 0, em->arg);
}

static void emit_snapshot(const struct mcfs_master_snapshot *s, void *arg)
{
    struct emitter *em = arg;
    if (!em->any)
        em->emit("latest", INODE_LATEST, strlen(s->id), s->created_ms * 1000000, em->arg);
    em->any = true;
    em->emit(s->id, INODE_SNAPSHOT, 0, s->created_ms * 1000000, em->arg);
}

static void emit_file(struct mcfs_slice name, uint64_t size, int64_t mtime_ns, void *arg)
{
    struct emitter *em = arg;
    _cleanup_free_ char *text = strndup(name.data, name.len);
    if (text)
        em->emit(text, INODE_SNAPFILE, size, mtime_ns, em->arg);
}

int view_list(struct fs *fs, struct inode *dir,
              void (*emit)(const char *name, enum inode_kind kind, uint64_t size, int64_t mtime_ns,
                           void *arg),
              void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct emitter em = {emit, arg, false};
    struct mcfs_master *master = node_master(fs->node);
    switch ((enum inode_kind)dir->kind) {
    case INODE_ROOT:
        emit("keys", INODE_DIR, 0, 0, arg);
        if (!fs->options->tenant)
            emit("tenants", INODE_TENANTS, 0, 0, arg);
        emit("snapshots", INODE_SNAPSHOTS, 0, 0, arg);
        emit("history", INODE_HISTORY, 0, 0, arg);
        emit(".mooncakefs", INODE_CONTROL, 0, 0, arg);
        return 0;
    case INODE_TENANTS:
        return mcfs_master_tenants(master, emit_tenant, &em, cancel, err);
    case INODE_SNAPSHOTS:
        return mcfs_master_snapshots(master, emit_snapshot, &em, cancel, err);
    case INODE_SNAPSHOT: {
        struct mcfs_slice key = inode_key(dir);
        _cleanup_free_ char *id = strndup(key.data, key.len);
        return mcfs_master_snapshot_files(master, id, emit_file, &em, cancel, err);
    }
    case INODE_HISTORY:
    case INODE_HISTORY_SNAPSHOT:
    case INODE_HISTORY_DIR:
        return history_list(fs, dir, emit, arg, cancel, err);
    case INODE_CONTROL:
        for (size_t i = 0; i < MCFS_ARRAY_SIZE(controls); i++)
            emit(controls[i].name, INODE_CONTROL_FILE, 0, 0, arg);
        return 0;
    default:
        return mcfs_fail_errno(err, ENOTDIR, "readdir");
    }
}
