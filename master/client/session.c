/* SPDX-License-Identifier: Apache-2.0 */
#include "master/client/session.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/id.h"
#include "common/log.h"

#include <inttypes.h>
#include <poll.h>

#define PING_MS 2000
#define STEP_TIMEOUT_MS 10000 /* connect, and each step of the registration */
#define ITEMS_PER_MESSAGE 2000
#define RETRY_FIRST_MS 5 /* wait before the next connection; doubles */
#define RETRY_MAX_MS 50
#define REFUSED_RETRY_MS 1000 /* after the master did not take the key */

/* One connection of the session thread. */
struct link {
    struct mcfs_master *m;
    int fd;
    struct mcfs_rpc_stream stream;
    uint32_t msgid;
    uint64_t session;
};

static void on_notice(struct link *l, const struct mcfs_rpc_message *msg);

static int link_send(struct link *l, const char *method, const struct mcfs_buf *params,
                     uint32_t *id, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf frame = MCFS_BUF_INIT;
    *id = l->msgid++;
    mcfs_rpc_put_request(&frame, *id, method, params);
    if (frame.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", method);
    return mcfs_rpc_send(l->fd, frame.data, frame.len, mcfs_mono_ms() + STEP_TIMEOUT_MS,
                         &l->m->wake, err);
}

/* Waits for an answer; notifications that come first are carried out. */
static int link_wait(struct link *l, const char *method, uint32_t id, struct mp_reader *result,
                     struct mcfs_error *err)
{
    struct mcfs_rpc_message msg;
    int64_t deadline = mcfs_mono_ms() + STEP_TIMEOUT_MS;
    for (;;) {
        int rc = mcfs_rpc_receive(l->fd, &l->stream, &msg, deadline, &l->m->wake, err);
        if (rc < 0)
            return -1;
        if (rc == 0)
            return mcfs_fail(err, MCFS_RPC_TIMEOUT, "%s: no answer", method);
        if (msg.kind == 2) {
            on_notice(l, &msg);
            continue;
        }
        if (msg.kind != 1 || msg.msgid != id)
            continue;
        if (msg.error.code != MCFS_OK) {
            *err = msg.error;
            return -1;
        }
        *result = mp_reader(msg.body.data, msg.body.len);
        return 0;
    }
}

static int link_call(struct link *l, const char *method, const struct mcfs_buf *params,
                     struct mp_reader *result, struct mcfs_error *err)
{
    uint32_t id;
    return link_send(l, method, params, &id, err) || link_wait(l, method, id, result, err) ? -1 : 0;
}

/* Answers that nobody waits for: sent as requests whose response is passed over. */
static void link_tell(struct link *l, const char *method, const struct mcfs_buf *params)
{
    _cleanup_buf_ struct mcfs_buf frame = MCFS_BUF_INIT;
    mcfs_rpc_put_request(&frame, l->msgid++, method, params);
    if (!frame.failed)
        mcfs_rpc_send(l->fd, frame.data, frame.len, mcfs_mono_ms() + STEP_TIMEOUT_MS, &l->m->wake,
                      NULL);
}

static void on_recall(struct link *l, struct mp_reader *p)
{
    struct mcfs_slice tenant, key;
    uint64_t version;
    if (!mp_read_array_of(p, 3) || !mp_read_raw(p, &tenant) || !mp_read_raw(p, &key) ||
        !mp_read_uint(p, &version))
        return;
    l->m->ops->recall(l->m->ops_arg, tenant, key, version);
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    mp_put_array(&params, 2);
    mp_put_uint(&params, l->session);
    mp_put_array(&params, 1);
    mp_put_array(&params, 3);
    mp_put_str(&params, tenant);
    mp_put_str(&params, key);
    mp_put_uint(&params, version);
    link_tell(l, "RecallDone", &params);
}

static void on_discard(struct link *l, struct mp_reader *p)
{
    uint32_t n;
    if (!mp_read_array_of(p, 1) || !mp_read_array(p, &n))
        return;
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    mp_put_array(&params, 2);
    mp_put_uint(&params, l->session);
    size_t at = mp_begin_array(&params);
    uint32_t done = 0;
    for (; done < n; done++) {
        struct mcfs_slice tenant, key;
        uint64_t version;
        if (!mp_read_array_of(p, 3) || !mp_read_raw(p, &tenant) || !mp_read_raw(p, &key) ||
            !mp_read_uint(p, &version))
            break;
        l->m->ops->discard(l->m->ops_arg, tenant, key, version);
        mp_put_uint(&params, version);
    }
    mp_end_array(&params, at, done);
    link_tell(l, "Discarded", &params);
}

static void on_notice(struct link *l, const struct mcfs_rpc_message *msg)
{
    /* The message lies in the stream's buffer, which only receiving changes. */
    struct mp_reader p = mp_reader(msg->body.data, msg->body.len);
    if (mcfs_slice_eq(msg->method, MCFS_SLICE_LITERAL("Recall")))
        on_recall(l, &p);
    else if (mcfs_slice_eq(msg->method, MCFS_SLICE_LITERAL("DiscardReplicas")))
        on_discard(l, &p);
}

#define BATCHES 3 /* two sent, so that the master has the next when it is done with one */

/* The inventory on its way, in messages of ITEMS_PER_MESSAGE: while the master works on some, the
 * next is gathered. */
struct inventory {
    struct link *l;
    struct batch {
        struct mcfs_buf items;
        uint32_t count, id;
    } batches[BATCHES];
    uint32_t first, sent; /* the oldest that was sent, and how many were; behind them, gathering */
    uint64_t total;
    struct mcfs_error *err;
    bool failed;
};

static struct batch *gathering(struct inventory *inv)
{
    return &inv->batches[(inv->first + inv->sent) % BATCHES];
}

/* Takes the answer to the oldest that was sent, and drops what the master calls nobody's. */
static int inventory_answer(struct inventory *inv)
{
    struct batch *batch = &inv->batches[inv->first];
    struct mp_reader result;
    uint32_t stale;
    if (link_wait(inv->l, "InventoryItems", batch->id, &result, inv->err))
        return -1;
    if (!mp_read_array(&result, &stale))
        return mcfs_fail(inv->err, MCFS_RPC_FAIL, "InventoryItems: answer of a wrong form");
    /* Walk the items that were sent beside the sorted list of stale ones. */
    struct mp_reader items = mp_reader(batch->items.data, batch->items.len);
    uint64_t next = 0;
    bool has_next = stale > 0 && mp_read_uint(&result, &next);
    for (uint32_t i = 0; i < batch->count && has_next; i++) {
        struct mcfs_slice tenant, key;
        uint64_t version;
        struct mp_reader item = items;
        mp_skip(&items, NULL);
        if (i != next)
            continue;
        uint32_t fields;
        if (mp_read_array(&item, &fields) && mp_read_raw(&item, &tenant) &&
            mp_read_raw(&item, &key) && mp_read_uint(&item, &version))
            inv->l->m->ops->discard(inv->l->m->ops_arg, tenant, key, version);
        has_next = --stale > 0 && mp_read_uint(&result, &next);
    }
    mcfs_buf_reset(&batch->items);
    batch->count = 0;
    inv->first = (inv->first + 1) % BATCHES;
    inv->sent--;
    return 0;
}

static int inventory_send(struct inventory *inv)
{
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    struct batch *batch = gathering(inv);
    if (!batch->count)
        return 0;
    mp_put_array(&params, 2);
    mp_put_uint(&params, inv->l->session);
    mp_put_array(&params, batch->count);
    mcfs_buf_append(&params, batch->items.data, batch->items.len);
    params.failed |= batch->items.failed;
    if (link_send(inv->l, "InventoryItems", &params, &batch->id, inv->err))
        return -1;
    inv->sent++;
    return inv->sent == BATCHES ? inventory_answer(inv) : 0;
}

static int inventory_finish(struct inventory *inv)
{
    if (inventory_send(inv))
        return -1;
    while (inv->sent)
        if (inventory_answer(inv))
            return -1;
    return 0;
}

static bool inventory_emit(const struct mcfs_object *o, void *arg)
{
    struct inventory *inv = arg;
    struct batch *batch = gathering(inv);
    struct mcfs_buf *b = &batch->items;
    const struct mcfs_session_ops *ops = inv->l->m->ops;
    bool leaving = ops->leaving && ops->leaving(inv->l->m->ops_arg, o);
    mp_put_array(b, leaving ? 10 : 9);
    mp_put_str(b, o->tenant);
    mp_put_str(b, o->key);
    mp_put_uint(b, o->version);
    mp_put_uint(b, o->size);
    master_put_attr(b, &o->attr);
    mp_put_uint(b, o->data_type);
    if (leaving)
        mp_put_bool(b, true);
    batch->count++;
    inv->total++;
    if (batch->count == ITEMS_PER_MESSAGE && inventory_send(inv))
        inv->failed = true;
    return !inv->failed;
}

static int report_inventory(struct link *l, uint64_t *total, struct mcfs_error *err)
{
    struct inventory inv = {.l = l, .err = err};
    int rc = l->m->ops->inventory(l->m->ops_arg, inventory_emit, &inv, err);
    if (rc == 0 && (inv.failed || inventory_finish(&inv)))
        rc = -1;
    for (size_t i = 0; i < BATCHES; i++)
        mcfs_buf_free(&inv.batches[i].items);
    *total = inv.total;
    if (rc)
        return -1;
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    struct mp_reader result;
    mp_put_array(&params, 1);
    mp_put_uint(&params, l->session);
    return link_call(l, "InventoryEnd", &params, &result, err);
}

static int establish(struct link *l, struct mcfs_error *err)
{
    struct mcfs_master *m = l->m;
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    char id[MCFS_ID_TEXT_MAX];
    uint64_t capacity, used, objects, lease_ms, total;
    struct mp_reader result;
    m->ops->usage(m->ops_arg, &capacity, &used, &objects);
    mp_put_array(&params, 5);
    mp_put_cstr(&params, mcfs_id_format(m->node_id, id));
    mp_put_cstr(&params, m->node_name);
    mp_put_cstr(&params, m->endpoint);
    mp_put_uint(&params, capacity);
    mp_put_uint(&params, used);
    if (link_call(l, "Register", &params, &result, err))
        return -1;
    if (!mp_read_array_of(&result, 3) || !mp_read_uint(&result, &l->session) ||
        !mp_read_uint(&result, &lease_ms) || lease_ms > UINT32_MAX)
        return mcfs_fail(err, MCFS_RPC_FAIL, "Register: answer of a wrong form");
    atomic_store(&m->lease_ms, (unsigned)lease_ms);
    if (report_inventory(l, &total, err))
        return -1;
    mcfs_info("registered with the master at %s; %" PRIu64 " objects reported", m->address, total);
    return 0;
}

static void set_session(struct mcfs_master *m, uint64_t session, const struct mcfs_error *why)
{
    MCFS_LOCK_SCOPE(&m->lock);
    m->session = session;
    if (why)
        m->last = *why;
    pthread_cond_broadcast(&m->changed);
}

static int ping(struct link *l, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf params = MCFS_BUF_INIT;
    struct mp_reader result;
    uint64_t capacity, used, objects, nodes;
    l->m->ops->usage(l->m->ops_arg, &capacity, &used, &objects);
    mp_put_array(&params, 4);
    mp_put_uint(&params, l->session);
    mp_put_uint(&params, capacity);
    mp_put_uint(&params, used);
    mp_put_uint(&params, objects);
    if (link_call(l, "Ping", &params, &result, err))
        return -1;
    if (mp_read_array_of(&result, 2) && mp_read_uint(&result, &nodes))
        atomic_store(&l->m->nodes_seen, (unsigned)nodes);
    return 0;
}

static bool still_current(struct mcfs_master *m, uint64_t session)
{
    MCFS_LOCK_SCOPE(&m->lock);
    return m->session == session && !m->stopping && !m->again;
}

/* Serves the session until it breaks. */
static int serve(struct link *l, struct mcfs_error *err)
{
    int64_t next_ping = 0;
    while (still_current(l->m, l->session)) {
        struct mcfs_rpc_message msg;
        if (mcfs_mono_ms() >= next_ping) {
            if (ping(l, err))
                return -1;
            next_ping = mcfs_mono_ms() + PING_MS;
        }
        int rc = mcfs_rpc_receive(l->fd, &l->stream, &msg, next_ping, &l->m->wake, err);
        if (rc < 0)
            return -1;
        if (rc > 0 && msg.kind == 2)
            on_notice(l, &msg);
    }
    return mcfs_fail(err, MCFS_CLIENT_NOT_FOUND, "the master does not know the session any more");
}

static void *session_main(void *arg)
{
    struct mcfs_master *m = arg;
    int reported = MCFS_OK; /* why there is none, as the log has it already */
    int pause_ms = RETRY_FIRST_MS;
    for (;;) {
        struct mcfs_error err = MCFS_ERROR_INIT;
        struct link l = {.m = m};
        {
            MCFS_LOCK_SCOPE(&m->lock);
            if (m->stopping)
                return NULL;
            m->again = false; /* the inventory is asked for from now on */
            /* A wake-up that was meant for the last connection. */
            mcfs_cancel_free(&m->wake);
            mcfs_cancel_init(&m->wake);
        }
        l.fd =
            mcfs_rpc_connect(m->address, m->keys, mcfs_mono_ms() + STEP_TIMEOUT_MS, &m->wake, &err);
        if (l.fd >= 0 && establish(&l, &err) == 0) {
            reported = MCFS_OK;
            pause_ms = RETRY_FIRST_MS;
            set_session(m, l.session, NULL);
            serve(&l, &err);
            set_session(m, 0, &err);
            m->ops->lost(m->ops_arg);
        } else {
            set_session(m, 0, &err);
        }
        if (l.fd >= 0)
            close(l.fd);
        mcfs_rpc_stream_free(&l.stream);
        {
            MCFS_LOCK_SCOPE(&m->lock);
            if (m->stopping)
                return NULL;
            if (m->again)
                continue;
        }
        if (reported != err.code)
            mcfs_warning("no session with the master at %s: %s", m->address, err.msg);
        reported = err.code;
        struct pollfd wake = {.fd = m->wake.fd, .events = POLLIN};
        if (err.code == MCFS_ILLEGAL_CLIENT)
            poll(&wake, 1, REFUSED_RETRY_MS);
        else
            poll(NULL, 0, pause_ms);
        pause_ms = MCFS_MIN(pause_ms * 2, RETRY_MAX_MS);
    }
}

int session_start(struct mcfs_master *m, struct mcfs_error *err)
{
    if (mcfs_cancel_init(&m->wake))
        return mcfs_fail_errno(err, errno, "session");
    int rc = pthread_create(&m->thread, NULL, session_main, m);
    if (rc)
        return mcfs_fail_errno(err, rc, "session thread");
    m->started = true;
    /* A master that restores is there, and will be ready, however long that takes. */
    while (!session_wait(m, mcfs_mono_ms() + m->timeout_ms, NULL, err)) {
        MCFS_LOCK_SCOPE(&m->lock);
        if (m->stopping || m->last.code != MCFS_UNAVAILABLE_IN_CURRENT_STATUS)
            return -1;
    }
    return 0;
}

void session_stop(struct mcfs_master *m)
{
    if (!m->started)
        return;
    {
        MCFS_LOCK_SCOPE(&m->lock);
        m->stopping = true;
        mcfs_cancel_set(&m->wake);
        pthread_cond_broadcast(&m->changed);
    }
    pthread_join(m->thread, NULL);
    mcfs_cancel_free(&m->wake);
}

uint64_t session_wait(struct mcfs_master *m, int64_t deadline_ms, const struct mcfs_cancel *cancel,
                      struct mcfs_error *err)
{
    for (;;) {
        {
            MCFS_LOCK_SCOPE(&m->lock);
            if (m->session)
                return m->session;
            if (m->last.code == MCFS_ILLEGAL_CLIENT) { /* waiting will not change its mind */
                if (err)
                    *err = m->last;
                return 0;
            }
            if (m->stopping || mcfs_mono_ms() >= deadline_ms) {
                mcfs_fail(err, MCFS_RPC_FAIL, "no session with the master at %s%s%s", m->address,
                          m->last.msg[0] ? ": " : "", m->last.msg);
                return 0;
            }
            if (cancel && cancel->watch)
                cancel->watch->ready(); /* this will take a while */
            if (!cancel || cancel->fd < 0) {
                mcfs_cond_wait_until(&m->changed, &m->lock, mcfs_mono_ns() + 100 * 1000000LL);
                continue;
            }
        }
        struct pollfd p = {.fd = cancel->fd, .events = POLLIN};
        if (poll(&p, 1, 10) > 0) {
            mcfs_fail_errno(err, EINTR, "waiting for the master");
            return 0;
        }
    }
}

void mcfs_master_report_again(struct mcfs_master *m)
{
    MCFS_LOCK_SCOPE(&m->lock);
    m->again = true;
    if (!m->session)
        return; /* one is being made; it ends at once */
    m->session = 0;
    mcfs_cancel_set(&m->wake);
}

void session_invalid(struct mcfs_master *m, uint64_t session)
{
    MCFS_LOCK_SCOPE(&m->lock);
    if (m->session == session) {
        m->session = 0;
        mcfs_cancel_set(&m->wake);
    }
}
