/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/rpc.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/rpc/address.h"
#include "common/rpc/auth.h"
#include "common/rpc/conn.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define LISTENERS_MAX 8
#define RECEIVE_BYTES (256u << 10) /* taken from one connection before the next has its turn */
#define EVENTS_MAX 64
#define SWEEP_MS 500           /* between looks for connections that do not prove a key */
#define COMPLAINTS_PER_S 10    /* about such connections; more are counted */
#define REPLY_FLUSH (1u << 20) /* answers gathered before they are sent */

struct loop {
    struct mcfs_rpc_server *server;
    pthread_t thread;
    bool started;
    int epoll_fd, wake_fd;
    struct mcfs_rpc_conn
        *conns; /* this loop's; loop thread only, others may only be added by accept */
    pthread_mutex_t conns_lock; /* guards conns */
    uint8_t *receive;
    struct mcfs_buf reply;
    _Atomic uint64_t requests;
};

struct listener {
    int fd;
    char *path; /* of a Unix socket, to be removed */
    dev_t dev;
    ino_t ino;
};

struct mcfs_rpc_server {
    struct mcfs_rpc_server_config config;
    struct listener listeners[LISTENERS_MAX];
    unsigned listener_count;
    struct loop *loops;
    atomic_uint next_loop;
    atomic_uint connections;
    atomic_bool stopping;
    pthread_mutex_t complaints_lock; /* guards what follows */
    int64_t complaints_second;
    unsigned complaints;
};

struct mcfs_rpc_server *mcfs_rpc_server_new(const struct mcfs_rpc_server_config *config,
                                            struct mcfs_error *err)
{
    struct mcfs_rpc_server *s = calloc(1, sizeof(*s));
    if (!s || !(s->loops = calloc(config->threads ? config->threads : 1, sizeof(*s->loops)))) {
        free(s);
        mcfs_fail_errno(err, ENOMEM, "server");
        return NULL;
    }
    s->config = *config;
    pthread_mutex_init(&s->complaints_lock, NULL);
    if (!s->config.threads)
        s->config.threads = 1;
    if (!s->config.connections_max)
        s->config.connections_max = 60000;
    if (!s->config.frame_max)
        s->config.frame_max = MCFS_RPC_FRAME_MAX;
    for (uint32_t i = 0; i < s->config.threads; i++) {
        s->loops[i].epoll_fd = s->loops[i].wake_fd = -1;
        s->loops[i].server = s;
        pthread_mutex_init(&s->loops[i].conns_lock, NULL);
    }
    return s;
}

/* A socket file without a listener behind it is what a killed server left. */
static int remove_stale_socket(const char *address, const struct rpc_address *a,
                               struct mcfs_error *err)
{
    const char *path = ((const struct sockaddr_un *)&a->addr)->sun_path;
    struct stat st;
    if (lstat(path, &st))
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s is there and is not a socket", path);
    _cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && (connect(fd, (const struct sockaddr *)&a->addr, a->len) == 0 || errno == EAGAIN))
        return mcfs_fail_errno(err, EADDRINUSE, "%s", address);
    if (unlink(path) && errno != ENOENT)
        return mcfs_fail_errno(err, errno, "%s", path);
    return 0;
}

int mcfs_rpc_server_listen(struct mcfs_rpc_server *s, const char *address, uint16_t *port,
                           struct mcfs_error *err)
{
    struct rpc_address a;
    if (rpc_address_parse(address, &a, err))
        return -1;
    if (s->listener_count == LISTENERS_MAX)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: more than %d listeners", address,
                         LISTENERS_MAX);
    bool is_unix = a.addr.ss_family == AF_UNIX;
    if (is_unix && remove_stale_socket(address, &a, err))
        return -1;
    _cleanup_fd_ int fd = socket(a.addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (fd < 0)
        return mcfs_fail_errno(err, errno, "%s", address);
    if (!is_unix)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&a.addr, a.len) || listen(fd, 1024))
        return mcfs_fail_errno(err, errno, "%s", address);

    struct listener *l = &s->listeners[s->listener_count];
    *l = (struct listener){.fd = fd};
    if (is_unix) {
        const char *path = ((struct sockaddr_un *)&a.addr)->sun_path;
        struct stat st;
        if (!(l->path = strdup(path)) || lstat(path, &st))
            return mcfs_fail_errno(err, errno, "%s", address);
        l->dev = st.st_dev;
        l->ino = st.st_ino;
    } else if (port) {
        socklen_t len = sizeof(a.addr);
        getsockname(fd, (struct sockaddr *)&a.addr, &len);
        *port = ntohs(a.addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a.addr)->sin6_port
                                                   : ((struct sockaddr_in *)&a.addr)->sin_port);
    }
    s->listener_count++;
    mcfs_steal_fd(&fd);
    return 0;
}

/* Tells the log of a caller that was turned away, with its address; a flood of them does not fill
 * it. */
static void complain(struct mcfs_rpc_server *s, int fd, const char *what)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);
    char host[128] = "?", port[16] = "?";
    int64_t second = mcfs_mono_ms() / 1000;
    {
        MCFS_LOCK_SCOPE(&s->complaints_lock);
        if (s->complaints_second != second) {
            if (s->complaints > COMPLAINTS_PER_S)
                mcfs_warning("%u more callers were turned away", s->complaints - COMPLAINTS_PER_S);
            s->complaints_second = second;
            s->complaints = 0;
        }
        if (++s->complaints > COMPLAINTS_PER_S)
            return;
    }
    if (getpeername(fd, (struct sockaddr *)&addr, &len) == 0)
        getnameinfo((struct sockaddr *)&addr, len, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV);
    mcfs_warning("caller %s:%s turned away: %s", host, port, what);
}

static void drop_conn(struct loop *l, struct mcfs_rpc_conn *c)
{
    {
        MCFS_LOCK_SCOPE(&l->conns_lock);
        if (c->prev)
            c->prev->next = c->next;
        else
            l->conns = c->next;
        if (c->next)
            c->next->prev = c->prev;
    }
    epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, c->fd, NULL);
    shutdown(c->fd, SHUT_RDWR);
    conn_shut(c);
    if (l->server->config.disconnected)
        l->server->config.disconnected(l->server->config.arg, c);
    atomic_fetch_sub(&l->server->connections, 1);
    mcfs_rpc_conn_unref(c);
}

static void set_send_buffer(int fd, uint32_t bytes)
{
    int domain = 0, size = (int)bytes;
    socklen_t len = sizeof(domain);
    if (!bytes || getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) || domain != AF_UNIX)
        return;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size,
                   sizeof(size))) /* beyond the limit: root */
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static void accept_one(struct mcfs_rpc_server *s, int fd, bool needs_key)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* no effect on Unix sockets */
    set_send_buffer(fd, s->config.unix_send_bytes);
    struct mcfs_rpc_conn *c = calloc(1, sizeof(*c));
    struct rpc_auth *auth = needs_key && c ? calloc(1, sizeof(*auth)) : NULL;
    if (!c || (needs_key && !auth) || atomic_load(&s->connections) >= s->config.connections_max) {
        free(auth);
        free(c);
        close(fd);
        return;
    }
    struct loop *l = &s->loops[atomic_fetch_add(&s->next_loop, 1) % s->config.threads];
    c->fd = fd;
    c->epoll_fd = l->epoll_fd;
    c->events = EPOLLIN;
    c->auth = auth;
    if (auth)
        auth->deadline_ms = mcfs_mono_ms() + AUTH_TIMEOUT_MS;
    atomic_init(&c->refs, 1);
    pthread_mutex_init(&c->out_lock, NULL);
    atomic_fetch_add(&s->connections, 1);
    {
        MCFS_LOCK_SCOPE(&l->conns_lock);
        c->next = l->conns;
        if (c->next)
            c->next->prev = c;
        l->conns = c;
    }
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &ev))
        mcfs_warning("epoll: %s", strerror(errno));
}

static void accept_all(struct mcfs_rpc_server *s, const struct listener *listener)
{
    for (;;) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            accept_one(s, fd, s->config.keys && !listener->path);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
            /* Out of descriptors: the backlog waits; without a pause the loop would spin on it. */
            usleep(10000);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static bool is_hello(const struct mcfs_rpc_message *m)
{
    return mcfs_slice_eq(m->method, MCFS_SLICE_LITERAL(AUTH_HELLO));
}

/* What a caller says before it is proven; or the beginning of a handshake that is not needed. */
static int authenticate(struct mcfs_rpc_server *s, struct mcfs_rpc_conn *c,
                        struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    if (!c->auth)
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "%s",
                         s->config.keys ? "the handshake is over"
                                        : "this server has no auth_key_file");
    if (rpc_auth_step(c->auth, s->config.keys, r->method, &r->params, r->params_count, r->result,
                      err)) {
        complain(s, c->fd, err->msg);
        return -1;
    }
    if (c->auth->done) {
        c->key = c->auth->key;
        free(c->auth);
        c->auth = NULL;
    }
    return 0;
}

/* Answers one request into the loop's reply buffer.  Returns -1 when the connection must end. */
static int answer(struct loop *l, struct mcfs_rpc_conn *c, const struct mcfs_rpc_message *m)
{
    struct mcfs_rpc_server *s = l->server;
    struct mcfs_error e = MCFS_ERROR_INIT;
    struct mcfs_rpc_request r = {.conn = c,
                                 .msgid = m->msgid,
                                 .notification = m->kind == 2,
                                 .method = m->method,
                                 .params = mp_reader(m->body.data, m->body.len),
                                 .result = &l->reply,
                                 .file = {.fd = -1}};
    size_t begin = l->reply.len;
    mp_read_array(&r.params, &r.params_count);
    if (m->kind == 0) {
        mp_put_array(&l->reply, 4);
        mp_put_uint(&l->reply, 1);
        mp_put_uint(&l->reply, m->msgid);
    }
    size_t at = l->reply.len;
    mp_put_nil(&l->reply);
    int rc = c->auth || is_hello(m) ? authenticate(s, c, &r, &e)
                                    : s->config.handler(s->config.arg, &r, &e);
    bool refused = rc && c->auth;
    atomic_fetch_add_explicit(&l->requests, 1, memory_order_relaxed);
    if (m->kind == 2 || r.later) {
        l->reply.len = begin;
        return refused ? -1 : 0;
    }
    if (rc == 0 && l->reply.failed) {
        mcfs_buf_free(&l->reply);
        return -1;
    }
    if (rc) {
        l->reply.len = at;
        rpc_put_error(&l->reply, &e);
    }
    if (refused)
        return -1; /* its caller sends the answer first */
    if (r.file.fd >= 0) {
        rc = conn_send(c, l->reply.data, l->reply.len, &r.file);
        mcfs_buf_reset(&l->reply);
        return rc;
    }
    return 0;
}

static int send_replies(struct loop *l, struct mcfs_rpc_conn *c)
{
    int rc = l->reply.len ? conn_send(c, l->reply.data, l->reply.len, NULL) : 0;
    if (l->reply.cap > 4 * REPLY_FLUSH)
        mcfs_buf_free(&l->reply);
    mcfs_buf_reset(&l->reply);
    return rc;
}

/* Answers every whole frame in data; *taken gets the bytes used. */
static int answer_all(struct loop *l, struct mcfs_rpc_conn *c, const uint8_t *data, size_t len,
                      size_t *taken)
{
    *taken = 0;
    while (*taken < len) {
        struct mcfs_rpc_message m;
        int64_t n = mp_scan(&c->scan, data + *taken, len - *taken,
                            c->auth ? AUTH_FRAME_MAX : l->server->config.frame_max);
        if (n == 0)
            break;
        if (n < 0 || mcfs_rpc_parse(data + *taken, (size_t)n, &m) || m.kind == 1) {
            if (c->auth)
                complain(l->server, c->fd, "what it sent is no handshake");
            return -1;
        }
        c->scan = (struct mp_scan){0};
        *taken += (size_t)n;
        if (answer(l, c, &m) || (l->reply.len > REPLY_FLUSH && send_replies(l, c)))
            return -1;
    }
    return 0;
}

static int on_readable(struct loop *l, struct mcfs_rpc_conn *c)
{
    bool pieces = c->in.len > 0;
    uint8_t *to = pieces ? mcfs_buf_reserve(&c->in, RECEIVE_BYTES) : l->receive;
    if (!to)
        return -1;
    ssize_t n = recv(c->fd, to, RECEIVE_BYTES, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) {
        if (c->auth)
            complain(l->server, c->fd, "it left in the middle of the handshake");
        return -1;
    }
    const uint8_t *data = to;
    size_t len = (size_t)n, taken;
    if (pieces) {
        c->in.len += (size_t)n;
        data = c->in.data;
        len = c->in.len;
    }
    int rc = answer_all(l, c, data, len, &taken);
    if (rc) {
        send_replies(l, c);
        return -1;
    }
    if (taken == len) {
        mcfs_buf_free(&c->in);
    } else if (!pieces) {
        mcfs_buf_append(&c->in, data + taken, len - taken);
    } else if (taken) {
        memmove(c->in.data, c->in.data + taken, len - taken);
        c->in.len = len - taken;
    }
    return c->in.failed ? -1 : send_replies(l, c);
}

/* Ends the connections that have not proven a key in time. */
static void sweep(struct loop *l)
{
    int64_t now = mcfs_mono_ms();
    for (;;) {
        struct mcfs_rpc_conn *late;
        {
            MCFS_LOCK_SCOPE(&l->conns_lock);
            late = l->conns;
            while (late && !(late->auth && late->auth->deadline_ms <= now))
                late = late->next;
        }
        if (!late)
            return;
        complain(l->server, late->fd, "it did not finish the handshake in time");
        drop_conn(l, late);
    }
}

static void *loop_main(void *arg)
{
    struct loop *l = arg;
    struct mcfs_rpc_server *s = l->server;
    struct epoll_event events[EVENTS_MAX];
    int64_t next_sweep_ms = 0;
    while (!atomic_load(&s->stopping)) {
        if (s->config.keys && mcfs_mono_ms() >= next_sweep_ms) {
            sweep(l);
            next_sweep_ms = mcfs_mono_ms() + SWEEP_MS;
        }
        int n = epoll_wait(l->epoll_fd, events, EVENTS_MAX, s->config.keys ? SWEEP_MS : -1);
        for (int i = 0; i < n; i++) {
            struct listener *listener = NULL;
            for (unsigned k = 0; k < s->listener_count; k++)
                if (events[i].data.ptr == &s->listeners[k])
                    listener = &s->listeners[k];
            if (listener) {
                accept_all(s, listener);
                continue;
            }
            struct mcfs_rpc_conn *c = events[i].data.ptr;
            if (!c)
                continue; /* woken up to stop */
            int rc = events[i].events & EPOLLOUT ? conn_flush(c) : 0;
            if (rc == 0 && events[i].events & EPOLLIN)
                rc = on_readable(l, c);
            else if (rc == 0 && events[i].events & (EPOLLHUP | EPOLLERR))
                rc = -1;
            if (rc)
                drop_conn(l, c);
        }
    }
    return NULL;
}

int mcfs_rpc_server_start(struct mcfs_rpc_server *s, struct mcfs_error *err)
{
    for (uint32_t i = 0; i < s->config.threads; i++) {
        struct loop *l = &s->loops[i];
        struct epoll_event wake = {.events = EPOLLIN};
        l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        l->receive = malloc(RECEIVE_BYTES);
        if (l->epoll_fd < 0 || l->wake_fd < 0 || !l->receive ||
            epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->wake_fd, &wake))
            return mcfs_fail_errno(err, errno, "event loop");
    }
    for (unsigned k = 0; k < s->listener_count; k++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &s->listeners[k]};
        if (epoll_ctl(s->loops[0].epoll_fd, EPOLL_CTL_ADD, s->listeners[k].fd, &ev))
            return mcfs_fail_errno(err, errno, "event loop");
    }
    for (uint32_t i = 0; i < s->config.threads; i++) {
        int rc = pthread_create(&s->loops[i].thread, NULL, loop_main, &s->loops[i]);
        if (rc)
            return mcfs_fail_errno(err, rc, "event loop thread");
        s->loops[i].started = true;
    }
    return 0;
}

void mcfs_rpc_server_stop(struct mcfs_rpc_server *s)
{
    if (!s)
        return;
    atomic_store(&s->stopping, true);
    for (uint32_t i = 0; i < s->config.threads; i++) {
        struct loop *l = &s->loops[i];
        uint64_t one = 1;
        if (l->started && write(l->wake_fd, &one, sizeof(one)) == sizeof(one))
            pthread_join(l->thread, NULL);
    }
    /* Only now: until its end the first loop hands connections to the others. */
    for (uint32_t i = 0; i < s->config.threads; i++) {
        struct loop *l = &s->loops[i];
        while (l->conns)
            drop_conn(l, l->conns);
        if (l->epoll_fd >= 0)
            close(l->epoll_fd);
        if (l->wake_fd >= 0)
            close(l->wake_fd);
        free(l->receive);
        mcfs_buf_free(&l->reply);
        pthread_mutex_destroy(&l->conns_lock);
    }
    for (unsigned k = 0; k < s->listener_count; k++) {
        struct listener *l = &s->listeners[k];
        struct stat st;
        close(l->fd);
        /* Only our own socket: another server may have taken the name over. */
        if (l->path && lstat(l->path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
            unlink(l->path);
        free(l->path);
    }
    free(s->loops);
    pthread_mutex_destroy(&s->complaints_lock);
    free(s);
}

void mcfs_rpc_server_forget_in_child(struct mcfs_rpc_server *s)
{
    for (unsigned k = 0; k < s->listener_count; k++)
        close(s->listeners[k].fd);
    for (uint32_t i = 0; i < s->config.threads; i++) {
        for (struct mcfs_rpc_conn *c = s->loops[i].conns; c; c = c->next)
            close(c->fd);
        close(s->loops[i].epoll_fd);
        close(s->loops[i].wake_fd);
    }
}

void mcfs_rpc_server_counts(struct mcfs_rpc_server *s, uint64_t *connections, uint64_t *requests)
{
    *connections = atomic_load(&s->connections);
    *requests = 0;
    for (uint32_t i = 0; i < s->config.threads; i++)
        *requests += atomic_load(&s->loops[i].requests);
}
