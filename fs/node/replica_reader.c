/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an object from the best of its replicas: this node's store, else the peers that store it,
 * one after the other. */
#include "fs/node/evict.h"
#include "fs/node/hold.h"
#include "fs/node/known.h"
#include "fs/node/node_private.h"

#include "common/cleanup.h"
#include "common/id.h"

#include <inttypes.h>
#include <sys/uio.h>

#define REMOTE_READ_MAX (4u << 20) /* bytes asked for in one request */
#define VERIFY_NOW_MAX (1u << 20)  /* bytes of a value */
#define LOOKUPS_MAX 20             /* times a key may change while it is being opened */

/* What is asked of peers. */
struct remote {
    struct mcfs_slice tenant, key;
    struct mcfs_master_object object;
    struct hold hold;
    pthread_mutex_t lock; /* guards what follows */
    /* Who reads on gets his bytes out of one large answer: a request costs more than what a
     * kernel's read-ahead asks for. */
    struct mcfs_rpc_reply answer;
    struct mcfs_slice ahead; /* in the answer */
    uint64_t ahead_off;      /* of its first byte in the value */
    uint64_t next;           /* where the last read ended */
    char names[];
};

struct replica_reader {
    struct node *node;
    struct mcfs_backend_reader *local; /* or: */
    struct remote *remote;
};

static bool is_here(struct node *n, const struct mcfs_master_replica *r)
{
    char id[MCFS_ID_TEXT_MAX];
    return r->type == MCFS_REPLICA_LOCAL_DISK &&
           strcmp(r->node_id, mcfs_id_format(n->config.state->node_id, id)) == 0;
}

static bool readable(const struct mcfs_master_replica *r)
{
    return r->type == MCFS_REPLICA_LOCAL_DISK && r->connected && r->endpoint[0];
}

bool node_replica_is_remote(struct node *n, const struct mcfs_master_replica *r)
{
    return readable(r) && !is_here(n, r);
}

bool node_is_in_memory_alone(const struct mcfs_master_object *o)
{
    bool memory = false;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        if (o->replicas[i].type != MCFS_REPLICA_MEMORY)
            return false;
        memory |= o->replicas[i].status == MCFS_REPLICA_COMPLETE;
    }
    return memory;
}

/* Whether reading the value needs no disk, as far as its ends tell. */
static bool is_cached(int fd, uint64_t offset, uint64_t length)
{
    char byte;
    struct iovec iov = {&byte, 1};
    return fd >= 0 && length && preadv2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT) == 1 &&
           preadv2(fd, &iov, 1, (off_t)(offset + length - 1), RWF_NOWAIT) == 1;
}

/* Small values are checked before their first reader gets them, large ones soon after, because
 * nobody should wait for a gigabyte to be read twice. */
static int check(struct node *n, struct mcfs_backend_reader *local, struct mcfs_slice tenant,
                 struct mcfs_slice key, uint64_t version, struct mcfs_error *err)
{
    uint64_t offset, length;
    if (!n->ops->reader_is_verified || n->ops->reader_is_verified(local))
        return 0;
    int fd = n->ops->reader_fd(local, &offset, &length);
    if (length > VERIFY_NOW_MAX && !n->config.verify_strict) {
        verifier_add(n->verifier, tenant, key, version);
        return 0;
    }
    if (!is_cached(fd, offset, length))
        may_wait(n, NULL);
    return n->ops->reader_verify(local, err);
}

static struct mcfs_backend_reader *open_stored(struct node *n, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err)
{
    struct mcfs_error local_err = MCFS_ERROR_INIT;
    struct mcfs_backend_reader *local =
        n->ops->reader_open(n->store, tenant, key, version, &local_err);
    /* It may be about to be evicted, or taken back. */
    if (!local && local_err.code == MCFS_REPLICA_IS_GONE && n->evictor &&
        evictor_settle(n->evictor, version))
        local = n->ops->reader_open(n->store, tenant, key, version, &local_err);
    if (!local && err)
        *err = local_err;
    if (!local || check(n, local, tenant, key, version, err) == 0)
        return local;
    n->ops->reader_close(local);
    return NULL;
}

struct replica_reader *node_reader_open_stored(struct node *n, struct mcfs_slice tenant,
                                               struct mcfs_slice key, uint64_t version,
                                               struct mcfs_error *err)
{
    struct mcfs_backend_reader *local = open_stored(n, tenant, key, version, err);
    if (!local)
        return NULL;
    struct replica_reader *r = calloc(1, sizeof(*r));
    if (!r) {
        n->ops->reader_close(local);
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    r->node = n;
    r->local = local;
    return r;
}

static struct replica_reader *open_remote(struct node *n, struct mcfs_slice tenant,
                                          struct mcfs_slice key,
                                          const struct mcfs_master_object *object,
                                          struct mcfs_error *err)
{
    struct replica_reader *r = calloc(1, sizeof(*r));
    struct remote *m = malloc(sizeof(*m) + tenant.len + key.len);
    if (!r || !m) {
        free(r);
        free(m);
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    *m = (struct remote){.object = *object};
    pthread_mutex_init(&m->lock, NULL);
    memcpy(m->names, tenant.data, tenant.len);
    memcpy(m->names + tenant.len, key.data, key.len);
    m->tenant = mcfs_slice(m->names, tenant.len);
    m->key = mcfs_slice(m->names + tenant.len, key.len);
    r->node = n;
    r->remote = m;
    m->hold = (struct hold){
        .tenant = m->tenant, .key = m->key, .version = object->version, .object = &m->object};
    hold_add(n->holds, &m->hold, object->lease_ms);
    return r;
}

struct replica_reader *node_reader_open(struct node *n, struct mcfs_slice tenant,
                                        struct mcfs_slice key,
                                        const struct mcfs_master_object *object,
                                        struct mcfs_error *err)
{
    bool here = false, remote = false;
    for (uint32_t i = 0; i < object->replica_count; i++) {
        here |= is_here(n, &object->replicas[i]);
        remote |= node_replica_is_remote(n, &object->replicas[i]);
    }
    if (here) {
        struct replica_reader *r = node_reader_open_stored(n, tenant, key, object->version, err);
        if (r || !remote)
            return r;
    }
    if (!remote) {
        mcfs_fail(err, MCFS_REPLICA_IS_NOT_READY, "%.*s: no node that stores it answers",
                  (int)MCFS_MIN(key.len, 200), key.data);
        return NULL;
    }
    return open_remote(n, tenant, key, object, err);
}

void node_reader_close(struct replica_reader *r)
{
    if (!r)
        return;
    if (r->local)
        r->node->ops->reader_close(r->local);
    if (r->remote) {
        hold_remove(r->node->holds, &r->remote->hold);
        mcfs_rpc_reply_free(&r->remote->answer);
        pthread_mutex_destroy(&r->remote->lock);
    }
    free(r->remote);
    free(r);
}

int node_reader_fd(struct replica_reader *r, uint64_t *offset, uint64_t *length)
{
    return r->local ? r->node->ops->reader_fd(r->local, offset, length) : -1;
}

/* Asks a peer for a range; the answer replaces what was there.  The caller holds the lock. */
static int ask_peer(struct replica_reader *r, const char *endpoint, uint64_t off, size_t len,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct remote *m = r->remote;
    struct mcfs_rpc_client *client = node_peer_client(r->node, endpoint, false, err);
    if (!client)
        return -1;
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    struct mcfs_slice bytes;
    mp_put_array(&p, 5);
    mp_put_str(&p, m->tenant);
    mp_put_str(&p, m->key);
    mp_put_uint(&p, m->object.version);
    mp_put_uint(&p, off);
    mp_put_uint(&p, len);
    m->ahead.len = 0;
    if (mcfs_rpc_call(client, "ReadReplica", &p, &m->answer, cancel, err))
        return -1;
    if (!mp_read_bin(&m->answer.result, &bytes) || bytes.len != len)
        return mcfs_fail(err, MCFS_TRANSFER_FAIL, "%s sent %zu bytes where %zu were asked for",
                         endpoint, bytes.len, len);
    m->ahead = bytes;
    m->ahead_off = off;
    atomic_fetch_add(&r->node->remote_reads, 1);
    atomic_fetch_add(&r->node->remote_bytes, len);
    return 0;
}

static int ask_peers(struct replica_reader *r, uint64_t off, size_t len,
                     const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    const struct remote *m = r->remote;
    mcfs_fail(err, MCFS_REPLICA_IS_NOT_READY, "%.*s: no node that stores it answers",
              (int)MCFS_MIN(m->key.len, 200), m->key.data);
    for (uint32_t i = 0; i < m->object.replica_count; i++) {
        const struct mcfs_master_replica *replica = &m->object.replicas[i];
        if (!node_replica_is_remote(r->node, replica))
            continue;
        if (ask_peer(r, replica->endpoint, off, len, cancel, err) == 0)
            return 0;
        if (err && err->errnum == EINTR)
            return -1;
    }
    return -1;
}

/* Bytes of the last answer from an offset on. */
static size_t at_hand(const struct remote *m, uint64_t off)
{
    return off >= m->ahead_off && off - m->ahead_off < m->ahead.len
               ? m->ahead.len - (size_t)(off - m->ahead_off)
               : 0;
}

static int64_t read_remote(struct replica_reader *r, void *buf, size_t len, uint64_t off,
                           const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct remote *m = r->remote;
    if (off >= m->object.size)
        return 0;
    uint64_t left = m->object.size - off;
    MCFS_LOCK_SCOPE(&m->lock);
    if (!at_hand(m, off)) {
        uint64_t want = off == m->next ? REMOTE_READ_MAX : len;
        if (ask_peers(r, off, (size_t)MCFS_MIN(MCFS_MIN(want, REMOTE_READ_MAX), left), cancel, err))
            return -1;
    }
    size_t n = MCFS_MIN(len, at_hand(m, off));
    memcpy(buf, m->ahead.data + (off - m->ahead_off), n);
    m->next = off + n;
    return (int64_t)n;
}

int64_t node_reader_read(struct replica_reader *r, void *buf, size_t len, uint64_t off,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (!r->local)
        return read_remote(r, buf, len, off, cancel, err);
    atomic_fetch_add_explicit(&r->node->local_reads, 1, memory_order_relaxed);
    return r->node->ops->reader_read(r->local, buf, len, off, err);
}

struct replica_reader *node_open(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                                 struct mcfs_master_object *object,
                                 const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct known_mark mark;
    may_wait(n, cancel);
    for (int i = 0; i < LOOKUPS_MAX; i++) {
        known_begin(n->known, &mark);
        if (mcfs_master_get(n->master, tenant, key, object, cancel, err))
            return NULL;
        struct node_lease lease = known_lease(n->known, &mark, tenant, key, object->lease_ms);
        struct replica_reader *r = node_reader_open(n, tenant, key, object, err);
        if (r && r->remote && !known_lease_holds(n->known, tenant, key, &lease) &&
            !hold_now(n->holds, &r->remote->hold)) {
            node_reader_close(r);
            mcfs_fail(err, MCFS_REPLICA_IS_GONE, "%.*s changes again and again",
                      (int)MCFS_MIN(key.len, 200), key.data);
            continue;
        }
        if (r || !err || err->code != MCFS_REPLICA_IS_GONE)
            return r;
    }
    return NULL;
}
