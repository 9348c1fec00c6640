/* SPDX-License-Identifier: Apache-2.0 */
/* What a node serves to its peers and to the command line: bytes of what it stores, straight from
 * the file, and putting, removing and locating objects without a mount. */
#include "fs/node/hold.h"
#include "fs/node/node_private.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/id.h"
#include <mooncakefs/rpc_methods.h>

#include <fcntl.h>
#include <sys/stat.h>

#define READ_MAX (16u << 20)
#define STAGES_MAX 256
#define STAGE_IDLE_MS 600000

struct stage {
    uint64_t number; /* 0: free */
    int fd;
    const struct mcfs_rpc_key *key; /* of the caller that opened it */
    char *path;
    int64_t used_ms;
};

struct data_server {
    struct node *node;
    pthread_mutex_t lock; /* guards stages and next */
    struct stage stages[STAGES_MAX];
    uint64_t next;
};

struct data_server *data_server_new(struct node *n)
{
    struct data_server *d = calloc(1, sizeof(*d));
    if (d) {
        d->node = n;
        d->next = 1;
        pthread_mutex_init(&d->lock, NULL);
    }
    return d;
}

static void stage_drop(struct stage *s)
{
    if (!s->number)
        return;
    close(s->fd);
    unlink(s->path);
    free(s->path);
    *s = (struct stage){0};
}

void data_server_free(struct data_server *d)
{
    for (unsigned i = 0; d && i < STAGES_MAX; i++)
        stage_drop(&d->stages[i]);
    if (d)
        pthread_mutex_destroy(&d->lock);
    free(d);
}

static int bad_params(struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "%.*s: params have a wrong form",
                     MCFS_SLICE_ARG(r->method));
}

static void release_reader(void *arg)
{
    struct replica_reader *r = arg;
    node_reader_close(r);
}

static int read_replica(struct node *n, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice tenant, key;
    uint64_t version, off, len, at, size;
    if (!mp_read_raw(&r->params, &tenant) || !mp_read_raw(&r->params, &key) ||
        !mp_read_uint(&r->params, &version) || !mp_read_uint(&r->params, &off) ||
        !mp_read_uint(&r->params, &len) || len > READ_MAX)
        return bad_params(r, err);
    if (mcfs_rpc_key_check(mcfs_rpc_conn_key(r->conn), tenant, err))
        return -1;
    struct replica_reader *reader = node_reader_open_stored(n, tenant, key, version, err);
    struct held *held = reader ? NULL : held_find(n->held, tenant, key, version, &reader);
    if (!reader)
        return -1;
    struct mcfs_rpc_file file = {-1, 0, 0, held ? held_release : release_reader,
                                 held ? (void *)held : (void *)reader};
    int fd = node_reader_fd(reader, &at, &size);
    if (fd < 0 || off > size) {
        file.release(file.arg);
        return fd < 0 ? mcfs_fail(err, MCFS_INVALID_READ, "no file behind the object")
                      : bad_params(r, err);
    }
    len = MCFS_MIN(len, size - off);
    mp_put_bin_header(r->result, (uint32_t)len);
    if (len == 0) {
        file.release(file.arg);
        return 0;
    }
    file.fd = fd;
    file.offset = at + off;
    file.length = len;
    r->file = file;
    return 0;
}

static int hold_replica(struct node *n, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice holder, tenant, key;
    uint64_t version, ms;
    if (!mp_read_raw(&r->params, &holder) || !mp_read_raw(&r->params, &tenant) ||
        !mp_read_raw(&r->params, &key) || !mp_read_uint(&r->params, &version) ||
        !mp_read_uint(&r->params, &ms) || holder.len > MCFS_ID_TEXT_MAX)
        return bad_params(r, err);
    if (mcfs_rpc_key_check(mcfs_rpc_conn_key(r->conn), tenant, err) ||
        held_set_hold(n->held, holder, tenant, key, version, ms, err))
        return -1;
    mp_put_nil(r->result);
    return 0;
}

static int stage_open(struct data_server *d, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&d->lock);
    struct stage *s = NULL;
    int64_t now = mcfs_mono_ms();
    for (unsigned i = 0; i < STAGES_MAX; i++) {
        if (d->stages[i].number && now - d->stages[i].used_ms > STAGE_IDLE_MS)
            stage_drop(&d->stages[i]);
        if (!d->stages[i].number && !s)
            s = &d->stages[i];
    }
    if (!s)
        return mcfs_fail(err, MCFS_NO_AVAILABLE_HANDLE, "too many objects are being sent at once");
    _cleanup_free_ char *staging = state_dir_path(d->node->config.state, "staging");
    if (asprintf(&s->path, "%s/put-%llu", staging, (unsigned long long)d->next) < 0)
        return mcfs_fail_errno(err, ENOMEM, "stage");
    s->fd = open(s->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (s->fd < 0) {
        mcfs_fail_errno(err, errno, "%s", s->path);
        free(s->path);
        return -1;
    }
    s->number = d->next++;
    s->key = mcfs_rpc_conn_key(r->conn);
    s->used_ms = now;
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, s->number);
    return 0;
}

/* The caller holds the lock. */
static struct stage *find_stage(struct data_server *d, uint64_t number,
                                const struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    const struct mcfs_rpc_key *key = mcfs_rpc_conn_key(r->conn);
    for (unsigned i = 0; i < STAGES_MAX; i++)
        if (number && d->stages[i].number == number &&
            (!mcfs_rpc_key_is_bound(key) || d->stages[i].key == key)) {
            d->stages[i].used_ms = mcfs_mono_ms();
            return &d->stages[i];
        }
    mcfs_fail(err, MCFS_INVALID_PARAMS, "no stage %llu", (unsigned long long)number);
    return NULL;
}

static int stage_write(struct data_server *d, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t number, off;
    struct mcfs_slice bytes;
    if (!mp_read_uint(&r->params, &number) || !mp_read_uint(&r->params, &off) ||
        !mp_read_bin(&r->params, &bytes) || off >> 48)
        return bad_params(r, err);
    MCFS_LOCK_SCOPE(&d->lock);
    struct stage *s = find_stage(d, number, r, err);
    if (!s)
        return -1;
    if (mcfs_pwrite_full(s->fd, bytes.data, bytes.len, off))
        return mcfs_fail_errno(err, errno, "%s", s->path);
    mp_put_nil(r->result);
    return 0;
}

/* What changes a key past the mount ends what the mount caches of it: this node's own leases are
 * not recalled by the master. */
static void end_own_lease(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                          uint64_t version)
{
    if (version && n->config.recall)
        n->config.recall(n->config.arg, tenant, key, version);
}

static uint64_t current_version(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key)
{
    struct mcfs_master_object object;
    return mcfs_master_get(n->master, tenant, key, &object, NULL, NULL) ? 0 : object.version;
}

static int stage_commit(struct data_server *d, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    uint64_t number;
    struct node_put p = {.attr = {.mode = MCFS_ATTR_DEFAULT_MODE, .mtime_ns = mcfs_wall_ns()}};
    struct node_put_result out;
    struct stage mine;
    struct stat st;
    if (!mp_read_uint(&r->params, &number) || !mp_read_raw(&r->params, &p.tenant) ||
        !mp_read_raw(&r->params, &p.key) || !mp_read_uint(&r->params, &p.size))
        return bad_params(r, err);
    if (mcfs_rpc_key_check(mcfs_rpc_conn_key(r->conn), p.tenant, err))
        return -1;
    {
        MCFS_LOCK_SCOPE(&d->lock);
        struct stage *s = find_stage(d, number, r, err);
        if (!s)
            return -1;
        mine = *s;
        *s = (struct stage){0};
    }
    int rc = fstat(mine.fd, &st) || (uint64_t)st.st_size != p.size
                 ? mcfs_fail(err, MCFS_INVALID_PARAMS, "the pieces do not add up to %llu bytes",
                             (unsigned long long)p.size)
                 : 0;
    p.staging_path = mine.path;
    uint64_t old = rc ? 0 : current_version(d->node, p.tenant, p.key);
    if (rc == 0)
        rc = node_put(d->node, &p, &out, NULL, err);
    end_own_lease(d->node, p.tenant, p.key, old);
    stage_drop(&mine);
    if (rc)
        return -1;
    mp_put_array(r->result, 1);
    mp_put_uint(r->result, out.version);
    return 0;
}

static int remove_key(struct node *n, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice tenant, key;
    bool force;
    if (!mp_read_raw(&r->params, &tenant) || !mp_read_raw(&r->params, &key) ||
        !mp_read_bool(&r->params, &force))
        return bad_params(r, err);
    if (mcfs_rpc_key_check(mcfs_rpc_conn_key(r->conn), tenant, err))
        return -1;
    uint64_t old = current_version(n, tenant, key);
    if (node_remove(n, tenant, key, force, NULL, err))
        return -1;
    end_own_lease(n, tenant, key, old);
    mp_put_nil(r->result);
    return 0;
}

static int locate(struct node *n, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct mcfs_slice tenant, key;
    uint64_t version;
    struct mcfs_backend_place place;
    if (!mp_read_raw(&r->params, &tenant) || !mp_read_raw(&r->params, &key) ||
        !mp_read_uint(&r->params, &version))
        return bad_params(r, err);
    if (mcfs_rpc_key_check(mcfs_rpc_conn_key(r->conn), tenant, err))
        return -1;
    if (n->ops->locate(n->store, tenant, key, version, &place, err))
        return -1;
    _cleanup_buf_ struct mcfs_buf path = MCFS_BUF_INIT;
    mcfs_buf_printf(&path, "%s/%s", n->store_dir, place.file);
    mp_put_array(r->result, 5);
    mp_put_str(r->result, mcfs_slice(path.data, path.len));
    mp_put_uint(r->result, place.offset);
    mp_put_uint(r->result, place.length);
    if (place.has_crc)
        mp_put_uint(r->result, place.crc32c);
    else
        mp_put_nil(r->result);
    mp_put_bool(r->result, place.whole_file);
    return 0;
}

static int node_status(struct node *n, struct mcfs_rpc_request *r)
{
    struct mcfs_backend_stats s;
    n->ops->stats(n->store, &s);
    const struct {
        const char *name;
        uint64_t value;
    } figures[] = {{"objects", s.objects},
                   {"object_bytes", s.object_bytes},
                   {"capacity_bytes", s.capacity_bytes},
                   {"used_bytes", s.used_bytes},
                   {"dead_bytes", s.dead_bytes},
                   {"buckets", s.buckets},
                   {"index_bytes", s.index_bytes},
                   {"puts", s.puts},
                   {"removes", s.removes},
                   {"reads", s.reads},
                   {"syncs", s.syncs},
                   {"evictions", s.evictions},
                   {"evicted_bytes", s.evicted_bytes},
                   {"compactions", s.compactions},
                   {"compacted_bytes", s.compacted_bytes},
                   {"checksum_errors", s.checksum_errors},
                   {"remote_reads", atomic_load(&n->remote_reads)},
                   {"remote_bytes", atomic_load(&n->remote_bytes)},
                   {"held_replicas", held_set_count(n->held)}};
    mp_put_map(r->result, MCFS_ARRAY_SIZE(figures) + 2);
    mp_put_cstr(r->result, "backend");
    mp_put_cstr(r->result, n->ops->name);
    mp_put_cstr(r->result, "state_dir");
    mp_put_cstr(r->result, n->config.state->path);
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(figures); i++) {
        mp_put_cstr(r->result, figures[i].name);
        mp_put_uint(r->result, figures[i].value);
    }
    return 0;
}

enum node_method {
#define X(id, name, params, result, help) METHOD_##id,
    MCFS_NODE_METHODS(X)
#undef X
        METHOD_COUNT
};

static const char *const method_names[] = {
#define X(id, name, params, result, help) name,
    MCFS_NODE_METHODS(X)
#undef X
};

int data_server_handle(void *arg, struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    struct node *n = arg;
    int method = 0;
    while (method < METHOD_COUNT && !mcfs_slice_eq(r->method, mcfs_slice_str(method_names[method])))
        method++;
    switch ((enum node_method)method) {
    case METHOD_READ_REPLICA:
        return read_replica(n, r, err);
    case METHOD_HOLD_REPLICA:
        return hold_replica(n, r, err);
    case METHOD_STAGE_OPEN:
        return stage_open(n->data, r, err);
    case METHOD_STAGE_WRITE:
        return stage_write(n->data, r, err);
    case METHOD_STAGE_COMMIT:
        return stage_commit(n->data, r, err);
    case METHOD_REMOVE_KEY:
        return remove_key(n, r, err);
    case METHOD_LOCATE:
        return locate(n, r, err);
    case METHOD_NODE_STATUS:
        return node_status(n, r);
    case METHOD_COUNT:
        break;
    }
    return mcfs_fail(err, MCFS_INVALID_PARAMS, "no method '%.*s'", (int)MCFS_MIN(r->method.len, 64),
                     r->method.data);
}
