/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/conn.h"

#include "common/cleanup.h"

#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#define OUT_PAUSE (4u << 20)   /* bytes queued from which the peer is not read from */
#define OUT_LIMIT (256u << 20) /* bytes queued from which notifications fail */

static void chunk_free(struct out_chunk *k)
{
    if (k->file.fd >= 0 && k->file.release)
        k->file.release(k->file.arg);
    mcfs_buf_free(&k->buf);
    free(k);
}

/* Watches for room in the socket while something is queued, and for requests unless too much is. */
static void update_events_locked(struct mcfs_rpc_conn *c)
{
    uint32_t events = (c->out_head ? EPOLLOUT : 0u) | (c->out_bytes < OUT_PAUSE ? EPOLLIN : 0u);
    if (events == c->events || c->gone)
        return;
    c->events = events;
    struct epoll_event ev = {.events = events, .data.ptr = c};
    epoll_ctl(c->epoll_fd, EPOLL_CTL_MOD, c->fd, &ev);
}

/* Returns 1 when all is sent, 0 when the socket is full, -1 when it is broken. */
static int send_bytes(int fd, const uint8_t *data, size_t len, size_t *sent, bool more)
{
    while (*sent < len) {
        ssize_t n = send(fd, data + *sent, len - *sent,
                         MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        *sent += (size_t)n;
    }
    return 1;
}

static int send_file(int fd, struct mcfs_rpc_file *file)
{
    while (file->length > 0) {
        off_t off = (off_t)file->offset;
        ssize_t n = sendfile(fd, file->fd, &off, file->length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -1;
        if (n == 0)
            return -1; /* shorter than announced: the stream cannot be put right */
        file->offset += (uint64_t)n;
        file->length -= (uint64_t)n;
    }
    return 1;
}

static int flush_locked(struct mcfs_rpc_conn *c)
{
    while (c->out_head) {
        struct out_chunk *k = c->out_head;
        size_t before = k->sent;
        int rc = send_bytes(c->fd, k->buf.data, k->buf.len, &k->sent, k->file.fd >= 0);
        c->out_bytes -= k->sent - before;
        if (rc > 0 && k->file.fd >= 0)
            rc = send_file(c->fd, &k->file);
        if (rc <= 0)
            return rc;
        c->out_head = k->next;
        if (!c->out_head)
            c->out_tail = NULL;
        chunk_free(k);
    }
    return 1;
}

static int queue_locked(struct mcfs_rpc_conn *c, const void *data, size_t len,
                        const struct mcfs_rpc_file *file)
{
    struct out_chunk *k = c->out_tail;
    if (!k || k->file.fd >= 0) {
        k = calloc(1, sizeof(*k));
        if (!k)
            return -1;
        k->file.fd = -1;
        if (c->out_tail)
            c->out_tail->next = k;
        else
            c->out_head = k;
        c->out_tail = k;
    }
    mcfs_buf_append(&k->buf, data, len);
    if (k->buf.failed)
        return -1;
    c->out_bytes += len;
    if (file && file->fd >= 0)
        k->file = *file;
    return 0;
}

int conn_send(struct mcfs_rpc_conn *c, const void *data, size_t len,
              const struct mcfs_rpc_file *file)
{
    bool has_file = file && file->fd >= 0;
    MCFS_LOCK_SCOPE(&c->out_lock);
    size_t sent = 0;
    int rc = c->gone ? -1 : 0;
    if (rc == 0 && !c->out_head) {
        rc = send_bytes(c->fd, data, len, &sent, has_file);
        if (rc > 0 && !has_file)
            return 0;
    }
    if (rc < 0 || queue_locked(c, (const uint8_t *)data + sent, len - sent, file)) {
        if (has_file && file->release)
            file->release(file->arg);
        return -1;
    }
    if (flush_locked(c) < 0)
        return -1;
    update_events_locked(c);
    return 0;
}

int conn_flush(struct mcfs_rpc_conn *c)
{
    MCFS_LOCK_SCOPE(&c->out_lock);
    if (flush_locked(c) < 0)
        return -1;
    update_events_locked(c);
    return 0;
}

void conn_shut(struct mcfs_rpc_conn *c)
{
    MCFS_LOCK_SCOPE(&c->out_lock);
    c->gone = true;
    while (c->out_head) {
        struct out_chunk *k = c->out_head;
        c->out_head = k->next;
        chunk_free(k);
    }
    c->out_tail = NULL;
    c->out_bytes = 0;
}

struct mcfs_rpc_conn *mcfs_rpc_conn_ref(struct mcfs_rpc_conn *c)
{
    atomic_fetch_add(&c->refs, 1);
    return c;
}

void mcfs_rpc_conn_unref(struct mcfs_rpc_conn *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    conn_shut(c);
    mcfs_buf_free(&c->in);
    free(c->auth);
    if (c->fd >= 0)
        close(c->fd);
    pthread_mutex_destroy(&c->out_lock);
    free(c);
}

int mcfs_rpc_conn_notify(struct mcfs_rpc_conn *c, const char *method, const struct mcfs_buf *params)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    mp_put_array(&b, 3);
    mp_put_uint(&b, 2);
    mp_put_cstr(&b, method);
    mcfs_buf_append(&b, params->data, params->len);
    if (b.failed || params->failed)
        return -1;
    {
        MCFS_LOCK_SCOPE(&c->out_lock);
        if (c->out_bytes > OUT_LIMIT)
            return -1;
    }
    return conn_send(c, b.data, b.len, NULL);
}

const struct mcfs_rpc_key *mcfs_rpc_conn_key(const struct mcfs_rpc_conn *c)
{
    return c->key;
}

void mcfs_rpc_conn_set_tag(struct mcfs_rpc_conn *c, uint64_t tag)
{
    atomic_store(&c->tag, tag);
}

uint64_t mcfs_rpc_conn_tag(const struct mcfs_rpc_conn *c)
{
    return atomic_load(&c->tag);
}
