/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/rpc.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/rpc/address.h"
#include "common/rpc/auth.h"
#include "common/rpc/client_private.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define RECEIVE_CHUNK 65536 /* bytes asked for at a time, at least */
#define SPIN_NS 40000       /* about what a sleep and a wake-up cost */
#define RETRY_FIRST_MS 2    /* wait before the second attempt; doubles */
#define RETRY_MAX_MS 100

int mcfs_cancel_init(struct mcfs_cancel *c)
{
    c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return c->fd < 0 ? -1 : 0;
}

void mcfs_cancel_set(struct mcfs_cancel *c)
{
    uint64_t one = 1;
    if (c->fd >= 0 && write(c->fd, &one, sizeof(one)) < 0)
        return; /* set already */
}

void mcfs_cancel_free(struct mcfs_cancel *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

int rpc_wait_for(int fd, short events, int64_t deadline_ms, const struct mcfs_cancel *cancel,
                 struct mcfs_error *err)
{
    const struct mcfs_watch *watch = cancel ? cancel->watch : NULL;
    struct pollfd p[3] = {{.fd = fd, .events = events},
                          {.fd = cancel ? cancel->fd : -1, .events = POLLIN},
                          {.fd = watch ? watch->fd : -1, .events = POLLIN}};
    int64_t spin_until_ns = watch ? mcfs_mono_ns() + SPIN_NS : 0;
    for (;;) {
        int64_t left = deadline_ms - mcfs_mono_ms();
        bool spin = p[2].fd >= 0 && mcfs_mono_ns() < spin_until_ns;
        int n = poll(p, 3, left <= 0 || spin ? 0 : left > 60000 ? 60000 : (int)left);
        if (n < 0 && errno != EINTR)
            return mcfs_fail_errno(err, errno, "poll");
        if (n > 0 && p[1].revents)
            return mcfs_fail_errno(err, EINTR, "interrupted");
        if (n > 0 && p[0].revents)
            return 1;
        if (n > 0 && watch && p[2].revents) {
            watch->ready();
            p[2].fd = -1;
        }
        if (mcfs_mono_ms() >= deadline_ms)
            return 0;
    }
}

int mcfs_rpc_connect(const char *address, const struct mcfs_rpc_keys *keys, int64_t deadline_ms,
                     const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct rpc_address a;
    if (rpc_address_parse(address, &a, err))
        return -1;
    _cleanup_fd_ int fd = socket(a.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", address);
    if (connect(fd, (struct sockaddr *)&a.addr, a.len) && errno != EINPROGRESS)
        return mcfs_fail_errno(err, errno, "%s", address);
    int rc = rpc_wait_for(fd, POLLOUT, deadline_ms, cancel, err);
    if (rc < 0)
        return -1;
    int errnum = 0;
    socklen_t len = sizeof(errnum);
    if (rc == 0)
        return mcfs_fail_errno(err, ETIMEDOUT, "%s", address);
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &errnum, &len) || errnum)
        return mcfs_fail_errno(err, errnum ? errnum : errno, "%s", address);
    int one = 1;
    if (a.addr.ss_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (keys && a.addr.ss_family != AF_UNIX &&
        rpc_auth_prove(fd, address, keys, deadline_ms, cancel, err))
        return -1;
    return mcfs_steal_fd(&fd);
}

int mcfs_rpc_send(int fd, const void *data, size_t len, int64_t deadline_ms,
                  const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    const char *p = data;
    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            p += n;
            len -= (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            return mcfs_fail_errno(err, errno, "send");
        int rc = rpc_wait_for(fd, POLLOUT, deadline_ms, cancel, err);
        if (rc < 0)
            return -1;
        if (rc == 0)
            return mcfs_fail_errno(err, ETIMEDOUT, "send");
    }
    return 0;
}

/* The whole frame at the front of the stream: 1, 0 not there yet, -1 malformed. */
static int next_frame(struct mcfs_rpc_stream *s, struct mcfs_rpc_message *m, struct mcfs_error *err)
{
    int64_t n = mp_scan(&s->scan, s->in.data, s->in.len, MCFS_RPC_FRAME_MAX);
    if (n == 0)
        return 0;
    if (n < 0 || mcfs_rpc_parse(s->in.data, (size_t)n, m))
        return mcfs_fail(err, MCFS_RPC_FAIL, "peer sent something that is not MessagePack-RPC");
    s->taken = (size_t)n;
    s->scan = (struct mp_scan){0};
    return 1;
}

int mcfs_rpc_receive(int fd, struct mcfs_rpc_stream *s, struct mcfs_rpc_message *m,
                     int64_t deadline_ms, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (s->taken) {
        memmove(s->in.data, s->in.data + s->taken, s->in.len - s->taken);
        s->in.len -= s->taken;
        s->taken = 0;
    }
    for (;;) {
        if (s->in.len > 0) {
            int rc = next_frame(s, m, err);
            if (rc)
                return rc;
        }
        /* A long message is read in ever larger pieces. */
        uint8_t *to = mcfs_buf_reserve(&s->in, MCFS_MAX(RECEIVE_CHUNK, s->in.len / 2));
        if (!to)
            return mcfs_fail_errno(err, ENOMEM, "receive");
        ssize_t n = recv(fd, to, s->in.cap - s->in.len, MSG_DONTWAIT);
        if (n > 0) {
            s->in.len += (size_t)n;
            continue;
        }
        if (n == 0)
            return mcfs_fail_errno(err, ECONNRESET, "peer closed the connection");
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return mcfs_fail_errno(err, errno, "receive");
        int rc = rpc_wait_for(fd, POLLIN, deadline_ms, cancel, err);
        if (rc <= 0)
            return rc;
    }
}

void mcfs_rpc_stream_free(struct mcfs_rpc_stream *s)
{
    mcfs_buf_free(&s->in);
    *s = (struct mcfs_rpc_stream){0};
}

void mcfs_rpc_reply_free(struct mcfs_rpc_reply *reply)
{
    mcfs_rpc_stream_free(&reply->stream);
}

struct mcfs_rpc_client *mcfs_rpc_client_new(const char *address, const struct mcfs_rpc_keys *keys,
                                            uint32_t timeout_ms, struct mcfs_error *err)
{
    struct rpc_address a;
    if (rpc_address_parse(address, &a, err))
        return NULL;
    struct mcfs_rpc_client *c = calloc(1, sizeof(*c));
    if (!c || !(c->address = strdup(address))) {
        free(c);
        mcfs_fail_errno(err, ENOMEM, "%s", address);
        return NULL;
    }
    c->keys = keys;
    c->timeout_ms = timeout_ms;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void mcfs_rpc_client_free(struct mcfs_rpc_client *c)
{
    if (!c)
        return;
    mcfs_rpc_client_reset(c);
    pthread_mutex_destroy(&c->lock);
    free(c->address);
    free(c);
}

const char *mcfs_rpc_client_address(const struct mcfs_rpc_client *c)
{
    return c->address;
}

void mcfs_rpc_client_reset(struct mcfs_rpc_client *c)
{
    MCFS_LOCK_SCOPE(&c->lock);
    while (c->idle_count > 0)
        close(c->idle[--c->idle_count]);
}

static int take_idle(struct mcfs_rpc_client *c, uint32_t *msgid)
{
    MCFS_LOCK_SCOPE(&c->lock);
    *msgid = c->next_id++;
    return c->idle_count > 0 ? c->idle[--c->idle_count] : -1;
}

void rpc_client_give_back(struct mcfs_rpc_client *c, int fd)
{
    {
        MCFS_LOCK_SCOPE(&c->lock);
        if (c->idle_count < IDLE_MAX) {
            c->idle[c->idle_count++] = fd;
            return;
        }
    }
    close(fd);
}

/* One attempt on one connection. */
static int attempt(int fd, uint32_t msgid, const struct mcfs_buf *frame,
                   const struct rpc_hearing *hearing, int64_t deadline_ms,
                   const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    if (mcfs_rpc_send(fd, frame->data, frame->len, deadline_ms, cancel, err))
        return -1;
    return hearing->hear(hearing->arg, fd, msgid, deadline_ms, cancel, err);
}

/* What an attempt came to: whether to come again. */
enum verdict { ANSWERED, AGAIN_AT_ONCE, AGAIN_LATER, GIVE_UP };

static enum verdict judge(int fd, int rc, bool pooled, const struct mcfs_error *e)
{
    if (rc == 1) /* UNAVAILABLE: not carried out, the peer is not ready yet */
        return e->code == MCFS_UNAVAILABLE_IN_CURRENT_STATUS ? AGAIN_LATER : ANSWERED;
    if (rc < 0 && e->errnum == EINTR)
        return GIVE_UP;
    if (fd < 0 && e->code == MCFS_ILLEGAL_CLIENT) /* asking again will not help */
        return GIVE_UP;
    /* A connection that died while idle says nothing about the peer. */
    return pooled && rc < 0 ? AGAIN_AT_ONCE : AGAIN_LATER;
}

/* Between two attempts; false when cancelled. */
static bool sleep_for(int64_t ms, const struct mcfs_cancel *cancel)
{
    struct pollfd p = {.fd = cancel ? cancel->fd : -1, .events = POLLIN};
    return poll(&p, 1, (int)ms) <= 0;
}

int rpc_client_call(struct mcfs_rpc_client *c, const char *method, const struct mcfs_buf *params,
                    const struct rpc_hearing *hearing, int *kept, bool *repeated,
                    const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t deadline = mcfs_mono_ms() + c->timeout_ms, pause_ms = RETRY_FIRST_MS;
    struct mcfs_error last = MCFS_ERROR_INIT;
    _cleanup_buf_ struct mcfs_buf frame = MCFS_BUF_INIT;
    bool sent = false;
    *repeated = false;
    for (;;) {
        uint32_t msgid;
        int fd = take_idle(c, &msgid), rc = -1;
        bool pooled = fd >= 0;
        if (!pooled)
            fd = mcfs_rpc_connect(c->address, c->keys, deadline, cancel, &last);
        if (fd >= 0) {
            mcfs_buf_reset(&frame);
            mcfs_rpc_put_request(&frame, msgid, method, params);
            if (frame.failed) {
                close(fd);
                return mcfs_fail_errno(err, ENOMEM, "%s", method);
            }
            *repeated = sent;
            sent = true;
            rc = attempt(fd, msgid, &frame, hearing, deadline, cancel, &last);
            if (rc == 1 && kept && last.code == MCFS_OK)
                *kept = fd;
            else if (rc == 1)
                rpc_client_give_back(c, fd);
            else
                close(fd);
        }
        enum verdict v = judge(fd, rc, pooled, &last);
        if (v == ANSWERED && last.code == MCFS_OK)
            return 0;
        if (v == ANSWERED || (v == GIVE_UP && last.errnum != EINTR)) {
            if (err)
                *err = last;
            return -1;
        }
        if (v == GIVE_UP)
            return mcfs_fail_errno(err, EINTR, "%s", method);
        if (v == AGAIN_AT_ONCE)
            continue;
        if (mcfs_mono_ms() + pause_ms >= deadline)
            break;
        if (!sleep_for(pause_ms, cancel))
            return mcfs_fail_errno(err, EINTR, "%s", method);
        pause_ms = MCFS_MIN(pause_ms * 2, RETRY_MAX_MS);
    }
    return mcfs_fail(err, MCFS_RPC_FAIL, "%s: %s did not answer within %u ms%s%s", method,
                     c->address, c->timeout_ms, last.msg[0] ? ": " : "", last.msg);
}

int rpc_hear_reply(void *arg, int fd, uint32_t msgid, int64_t deadline_ms,
                   const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_rpc_reply *reply = arg;
    struct mcfs_rpc_message m = {0};
    reply->stream.in.len = reply->stream.taken = 0;
    reply->stream.scan = (struct mp_scan){0};
    do {
        int rc = mcfs_rpc_receive(fd, &reply->stream, &m, deadline_ms, cancel, err);
        if (rc <= 0)
            return rc;
        if (m.kind == 1 && m.msgid != msgid)
            return mcfs_fail(err, MCFS_RPC_FAIL, "answer to another request");
    } while (m.kind != 1);
    *err = m.error;
    reply->result = mp_reader(m.body.data, m.body.len);
    return 1;
}

int mcfs_rpc_call(struct mcfs_rpc_client *c, const char *method, const struct mcfs_buf *params,
                  struct mcfs_rpc_reply *reply, const struct mcfs_cancel *cancel,
                  struct mcfs_error *err)
{
    const struct rpc_hearing hearing = {rpc_hear_reply, reply};
    return rpc_client_call(c, method, params, &hearing, NULL, &reply->repeated, cancel, err);
}
