/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/remote.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/node/hold.h"

#define WINDOW_MAX (16u << 20) /* bytes asked for in one request; what a peer sends at most */
#define WINDOW_FIRST (4u << 20)
#define SKIP_MAX (1u << 20) /* bytes that are sooner taken and dropped than asked for anew */
#define STREAMS_MAX 64
#define LATE_MS 1000 /* so that what is read again after a failure does not wait twice */
#define STREAM_IDLE_MS 5000

struct remote {
    struct node *node;
    struct mcfs_slice tenant, key;
    struct mcfs_master_object object;
    struct hold hold;
    pthread_mutex_t lock; /* guards what follows, but for what lies in the list of streams */
    uint64_t next;        /* where the last read ended */
    uint32_t window;
    uint32_t late; /* replica whose peer let a read wait in vain; not asked before late_ms */
    int64_t late_ms;
    struct mcfs_error late_error;
    struct stream {
        struct mcfs_rpc_incoming in; /* fd -1: none */
        uint64_t off;                /* of its next byte in the value */
        uint32_t replica;            /* that sends it */
        struct stream *prev, *next;
        bool parked; /* in the list, whose lock guards it then */
        int64_t since_ms;
    } stream;
    char names[];
};

/* Streams that nobody takes from at the moment, the one that has been here longest first. */
struct streams {
    pthread_mutex_t lock;
    struct stream *first, *last;
    unsigned count;
};

struct streams *streams_new(void)
{
    struct streams *s = calloc(1, sizeof(*s));
    if (s)
        pthread_mutex_init(&s->lock, NULL);
    return s;
}

void streams_free(struct streams *s)
{
    if (s)
        pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The caller holds the list's lock. */
static void unpark(struct streams *s, struct stream *t)
{
    *(t->prev ? &t->prev->next : &s->first) = t->next;
    *(t->next ? &t->next->prev : &s->last) = t->prev;
    t->parked = false;
    s->count--;
}

/* From now on until park it is the caller's; it may have ended meanwhile. */
static void take(struct streams *s, struct stream *t)
{
    MCFS_LOCK_SCOPE(&s->lock);
    if (t->parked)
        unpark(s, t);
}

static void end_oldest(struct streams *s)
{
    struct stream *t = s->first;
    unpark(s, t);
    mcfs_rpc_incoming_end(&t->in);
}

static void park(struct streams *s, struct stream *t)
{
    if (t->in.left == 0)
        mcfs_rpc_incoming_end(&t->in);
    if (t->in.fd < 0)
        return;
    MCFS_LOCK_SCOPE(&s->lock);
    t->parked = true;
    t->since_ms = mcfs_mono_ms();
    t->next = NULL;
    t->prev = s->last;
    *(t->prev ? &t->prev->next : &s->first) = t;
    s->last = t;
    if (++s->count > STREAMS_MAX)
        end_oldest(s);
}

void streams_sweep(struct streams *s)
{
    int64_t now = mcfs_mono_ms();
    MCFS_LOCK_SCOPE(&s->lock);
    while (s->first && now - s->first->since_ms > STREAM_IDLE_MS)
        end_oldest(s);
}

struct remote *remote_open(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                           const struct mcfs_master_object *object, struct mcfs_error *err)
{
    struct remote *m = malloc(sizeof(*m) + tenant.len + key.len);
    if (!m) {
        mcfs_fail_errno(err, ENOMEM, "reader");
        return NULL;
    }
    *m = (struct remote){
        .node = n, .object = *object, .window = WINDOW_FIRST, .stream.in = MCFS_RPC_INCOMING_INIT};
    pthread_mutex_init(&m->lock, NULL);
    memcpy(m->names, tenant.data, tenant.len);
    memcpy(m->names + tenant.len, key.data, key.len);
    m->tenant = mcfs_slice(m->names, tenant.len);
    m->key = mcfs_slice(m->names + tenant.len, key.len);
    m->hold = (struct hold){
        .tenant = m->tenant, .key = m->key, .version = object->version, .object = &m->object};
    hold_add(n->holds, &m->hold, object->lease_ms);
    return m;
}

void remote_close(struct remote *m)
{
    if (!m)
        return;
    take(m->node->streams, &m->stream);
    mcfs_rpc_incoming_end(&m->stream.in);
    hold_remove(m->node->holds, &m->hold);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

bool remote_hold(struct remote *m)
{
    return hold_now(m->node->holds, &m->hold);
}

/* Has a peer send a range. */
static int ask_peer(struct remote *m, const char *endpoint, uint64_t off, size_t len,
                    struct mcfs_rpc_incoming *in, const struct mcfs_cancel *cancel,
                    struct mcfs_error *err)
{
    struct mcfs_rpc_client *client = node_peer_client(m->node, endpoint, false, err);
    if (!client)
        return -1;
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    mp_put_array(&p, 5);
    mp_put_str(&p, m->tenant);
    mp_put_str(&p, m->key);
    mp_put_uint(&p, m->object.version);
    mp_put_uint(&p, off);
    mp_put_uint(&p, len);
    if (mcfs_rpc_incoming_begin(client, "ReadReplica", &p, in, cancel, err))
        return -1;
    atomic_fetch_add(&m->node->remote_reads, 1);
    if (in->left == len)
        return 0;
    mcfs_fail(err, MCFS_TRANSFER_FAIL, "%s sends %llu bytes where %zu were asked for", endpoint,
              (unsigned long long)in->left, len);
    mcfs_rpc_incoming_end(in);
    return -1;
}

static int64_t take_bytes(struct remote *m, struct mcfs_rpc_incoming *in, void *buf, size_t len,
                          const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t n = mcfs_rpc_incoming_read(in, buf, len, cancel, err);
    if (n > 0)
        atomic_fetch_add(&m->node->remote_bytes, (uint64_t)n);
    return n;
}

/* Takes from the stream, and what lies before the offset if that is worth it (buf has room for it).
 * 0: the stream does not lead there. */
static int64_t read_stream(struct remote *m, void *buf, size_t len, uint64_t off,
                           const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct stream *t = &m->stream;
    if (t->in.fd < 0 || off < t->off || off - t->off > SKIP_MAX || off - t->off >= t->in.left)
        return 0;
    for (;;) {
        size_t want = t->off < off ? (size_t)MCFS_MIN(off - t->off, len) : len;
        bool there = t->off == off;
        int64_t n = take_bytes(m, &t->in, buf, want, cancel, err);
        if (n < 0)
            return -1;
        t->off += (uint64_t)n;
        if (there)
            return n;
    }
}

/* Asks one peer for what begins at an offset and reads some of it.  Whoever reads on gets a stream
 * out of it, others their bytes alone. */
static int64_t read_from(struct remote *m, uint32_t replica, void *buf, size_t len, uint64_t off,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_rpc_incoming in = MCFS_RPC_INCOMING_INIT;
    bool reads_on = off == m->next;
    uint64_t want = MCFS_MIN(m->object.size - off, reads_on ? m->window : len);
    if (ask_peer(m, m->object.replicas[replica].endpoint, off, (size_t)MCFS_MIN(want, WINDOW_MAX),
                 &in, cancel, err))
        return -1;
    int64_t n = take_bytes(m, &in, buf, len, cancel, err);
    if (n < 0 || !reads_on) {
        mcfs_rpc_incoming_end(&in);
        return n;
    }
    mcfs_rpc_incoming_end(&m->stream.in);
    m->stream.in = in;
    m->stream.off = off + (uint64_t)n;
    m->stream.replica = replica;
    m->window = MCFS_MIN(m->window * 2, WINDOW_MAX);
    return n;
}

/* A connection that broke is tried again, as calls are; who was too late is not. */
static int64_t read_from_again(struct remote *m, uint32_t replica, void *buf, size_t len,
                               uint64_t off, const struct mcfs_cancel *cancel,
                               struct mcfs_error *err)
{
    int64_t n = read_from(m, replica, buf, len, off, cancel, err);
    return n < 0 && (err->errnum == ECONNRESET || err->errnum == EPIPE)
               ? read_from(m, replica, buf, len, off, cancel, err)
               : n;
}

static void note_late(struct remote *m, uint32_t replica, const struct mcfs_error *err)
{
    if (err->errnum != ETIMEDOUT && err->code != MCFS_RPC_FAIL)
        return;
    m->late = replica;
    m->late_ms = mcfs_mono_ms() + LATE_MS;
    m->late_error = *err;
}

/* Reads some bytes: from the stream, else from the first peer that sends any. */
static int64_t read_some(struct remote *m, void *buf, size_t len, uint64_t off,
                         const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t n = read_stream(m, buf, len, off, cancel, err);
    if (n > 0 || (n < 0 && err->errnum == EINTR))
        return n;
    if (n < 0)
        note_late(m, m->stream.replica, err);
    mcfs_fail(err, MCFS_REPLICA_IS_NOT_READY, "%.*s: no node that stores it answers",
              (int)MCFS_MIN(m->key.len, 200), m->key.data);
    for (uint32_t i = 0; i < m->object.replica_count; i++) {
        if (!node_replica_is_remote(m->node, &m->object.replicas[i]))
            continue;
        if (i == m->late && mcfs_mono_ms() < m->late_ms) {
            *err = m->late_error;
            continue;
        }
        n = read_from_again(m, i, buf, len, off, cancel, err);
        if (n >= 0 || err->errnum == EINTR)
            return n;
        note_late(m, i, err);
    }
    return -1;
}

int64_t remote_read(struct remote *m, void *buf, size_t len, uint64_t off,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (off >= m->object.size)
        return 0;
    size_t done = 0, all = (size_t)MCFS_MIN(len, m->object.size - off);
    struct mcfs_error unheard = MCFS_ERROR_INIT;
    if (!err)
        err = &unheard;
    MCFS_LOCK_SCOPE(&m->lock);
    take(m->node->streams, &m->stream);
    while (done < all) {
        int64_t n = read_some(m, (char *)buf + done, all - done, off + done, cancel, err);
        if (n <= 0)
            break;
        done += (size_t)n;
        m->next = off + done;
    }
    park(m->node->streams, &m->stream);
    return done || all == 0 ? (int64_t)done : -1;
}
