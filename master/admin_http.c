/* SPDX-License-Identifier: Apache-2.0 */
#include "master/admin_http.h"

#include "common/cleanup.h"
#include "common/file.h"
#include "common/log.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define TOKEN_MIN 16
#define TOKEN_MAX 4096
#define CONNECTIONS_MAX 64
#define IDLE_SECONDS 30
#define BODY_MAX 4096 /* of a request that changes something */

struct admin_http {
    struct master *m;
    struct MHD_Daemon *daemon;
    char *token; /* NULL: none is asked for */
    struct sockaddr_storage addr;
    int listen_fd;
    atomic_int fds[CONNECTIONS_MAX]; /* open connections, for a forked child; -1: none */
};

static int read_token(struct admin_http *a, const char *path, struct mcfs_error *err)
{
    _cleanup_free_ char *text = NULL;
    ssize_t n = mcfs_read_file_alloc(path, TOKEN_MAX, &text, err);
    if (n < 0)
        return -1;
    while (n > 0 && strchr(" \r\n\t", text[n - 1]))
        n--;
    if (n < TOKEN_MIN || memchr(text, 0, (size_t)n))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: a token has at least %d characters", path,
                         TOKEN_MIN);
    a->token = strndup(text, (size_t)n);
    return a->token ? 0 : mcfs_fail_errno(err, ENOMEM, "%s", path);
}

static bool is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)addr)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)addr)->sin6_addr);
}

static int resolve(struct admin_http *a, struct mcfs_error *err)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char port[16];
    const char *host = a->m->flags.metrics_host;
    snprintf(port, sizeof(port), "%u", a->m->flags.metrics_port);
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc || !found)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "metrics_host '%s': %s", host, gai_strerror(rc));
    memcpy(&a->addr, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (!a->token && !is_loopback(&a->addr))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "metrics_host '%s': beyond loopback admin HTTP needs --metrics_token_file",
                         host);
    return 0;
}

struct admin_http *admin_http_new(struct master *m, struct mcfs_error *err)
{
    struct admin_http *a = calloc(1, sizeof(*a));
    if (!a) {
        mcfs_fail_errno(err, ENOMEM, "admin HTTP");
        return NULL;
    }
    a->m = m;
    a->listen_fd = -1;
    for (int i = 0; i < CONNECTIONS_MAX; i++)
        atomic_init(&a->fds[i], -1);
    const char *path = m->flags.metrics_token_file;
    if ((path && read_token(a, path, err)) || resolve(a, err)) {
        admin_http_free(a);
        return NULL;
    }
    return a;
}

/* Takes as long for a wrong token as for the right one. */
static bool may_ask(const struct admin_http *a, struct MHD_Connection *c)
{
    static const char bearer[] = "Bearer ";
    if (!a->token)
        return true;
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    if (!given || strncmp(given, bearer, sizeof(bearer) - 1) != 0)
        return false;
    given += sizeof(bearer) - 1;
    size_t len = strlen(given), want = strlen(a->token);
    unsigned differ = len != want;
    for (size_t i = 0; i < want; i++)
        differ |= (unsigned char)a->token[i] ^ (unsigned char)(i < len ? given[i] : 0);
    return !differ;
}

static enum MHD_Result reply(struct MHD_Connection *c, unsigned status, const char *type,
                             struct mcfs_buf *body)
{
    if (body->failed)
        return MHD_NO;
    struct MHD_Response *r =
        MHD_create_response_from_buffer(body->len, body->data, MHD_RESPMEM_MUST_COPY);
    if (!r)
        return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    if (status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, "Allow", "GET, HEAD");
    enum MHD_Result rc = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result reply_text(struct MHD_Connection *c, unsigned status, const char *text)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    mcfs_buf_printf(&b, "%s\n", text);
    return reply(c, status, "text/plain; charset=utf-8", &b);
}

/* ---- /get_all_keys: a shard at a time, so that ten million keys need no more memory than a
 * shard's ---- */

struct key_stream {
    struct master *m;
    char tenant[MCFS_TENANT_MAX];
    size_t tenant_len, sent;
    uint32_t shard;
    struct mcfs_buf text;
};

static void add_line(struct mcfs_slice key, void *arg)
{
    struct mcfs_buf *b = arg;
    admin_put_key(b, key);
    mcfs_buf_append_str(b, "\n");
}

static ssize_t read_keys(void *arg, uint64_t pos, char *to, size_t max)
{
    struct key_stream *s = arg;
    (void)pos;
    while (s->sent == s->text.len) {
        if (s->shard == MCFS_SHARD_COUNT)
            return MHD_CONTENT_READER_END_OF_STREAM;
        mcfs_buf_reset(&s->text);
        s->sent = 0;
        unsigned slot = directory_enter(s->m->directory);
        directory_shard_keys(s->m->directory, mcfs_slice(s->tenant, s->tenant_len), s->shard++,
                             add_line, &s->text);
        directory_leave(s->m->directory, slot);
        if (s->text.failed)
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    size_t n = MCFS_MIN(max, s->text.len - s->sent);
    memcpy(to, s->text.data + s->sent, n);
    s->sent += n;
    return (ssize_t)n;
}

static void free_keys(void *arg)
{
    struct key_stream *s = arg;
    mcfs_buf_free(&s->text);
    free(s);
}

static enum MHD_Result reply_keys(struct admin_http *a, struct MHD_Connection *c,
                                  struct mcfs_slice tenant)
{
    struct key_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return MHD_NO;
    s->m = a->m;
    s->tenant_len = tenant.len;
    memcpy(s->tenant, tenant.data, tenant.len);
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 64 << 10, read_keys, s, free_keys);
    if (!r) {
        free_keys(s);
        return MHD_NO;
    }
    MHD_add_response_header(r, "Content-Type", "text/plain");
    enum MHD_Result rc = MHD_queue_response(c, MHD_HTTP_OK, r);
    MHD_destroy_response(r);
    return rc;
}

/* ---- paths ---- */

static bool argument(struct MHD_Connection *c, const char *name, struct mcfs_slice *value)
{
    const char *text = NULL;
    size_t len = 0;
    if (MHD_lookup_connection_value_n(c, MHD_GET_ARGUMENT_KIND, name, strlen(name), &text, &len) !=
            MHD_YES ||
        !text)
        return false;
    *value = mcfs_slice(text, len);
    return true;
}

/* Paths that ask for one thing named by an argument. */
static enum MHD_Result reply_query(struct admin_http *a, struct MHD_Connection *c, const char *path,
                                   struct mcfs_slice tenant)
{
    static const char text[] = "text/plain; charset=utf-8", json[] = "application/json";
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_slice value;
    const char *type = json;
    int rc;
    if (strcmp(path, "/get_segments_detail") == 0) {
        rc = admin_segments_detail(a->m, &b, &err);
    } else if (strcmp(path, "/query_key") == 0) {
        if (!argument(c, "key", &value))
            return reply_text(c, MHD_HTTP_BAD_REQUEST, "?key= is missing");
        rc = admin_query_key(a->m, tenant, value, &b, &err);
    } else if (strcmp(path, "/batch_query_keys") == 0) {
        if (!argument(c, "keys", &value))
            return reply_text(c, MHD_HTTP_BAD_REQUEST, "?keys= is missing");
        rc = admin_query_keys(a->m, tenant, value, &b, &err);
    } else if (strcmp(path, "/query_segment") == 0) {
        if (!argument(c, "segment", &value))
            return reply_text(c, MHD_HTTP_BAD_REQUEST, "?segment= is missing");
        rc = admin_query_segment(a->m, value, &b, &err);
        type = text;
    } else {
        return reply_text(c, MHD_HTTP_NOT_FOUND, "no such path");
    }
    if (rc)
        return reply_text(c,
                          err.errnum == ENOENT   ? MHD_HTTP_NOT_FOUND
                          : err.errnum == ENOMEM ? MHD_HTTP_INTERNAL_SERVER_ERROR
                                                 : MHD_HTTP_BAD_REQUEST,
                          err.msg);
    return reply(c, MHD_HTTP_OK, type, &b);
}

static enum MHD_Result reply_quotas(struct admin_http *a, struct MHD_Connection *c,
                                    const char *method, const struct mcfs_buf *body)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_slice tenant;
    bool get = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    bool put = strcmp(method, "PUT") == 0;
    if (!get && !put && strcmp(method, "DELETE") != 0)
        return reply_text(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET, HEAD, PUT and DELETE");
    if (body->failed || body->len > BODY_MAX)
        return reply_text(c, MHD_HTTP_CONTENT_TOO_LARGE, "the request's body is too long");
    bool named = argument(c, "tenant_id", &tenant);
    if (admin_quotas(a->m,
                     get   ? QUOTA_GET
                     : put ? QUOTA_PUT
                           : QUOTA_DELETE,
                     named ? &tenant : NULL, mcfs_slice(body->data, body->len), &b, &err) == 0)
        return reply(c, MHD_HTTP_OK, "application/json; charset=utf-8", &b);
    switch (err.code) {
    case MCFS_TENANT_NOT_REGISTERED:
        return reply_text(c, MHD_HTTP_NOT_FOUND, err.msg);
    case MCFS_UNAVAILABLE_IN_CURRENT_MODE:
    case MCFS_UNAVAILABLE_IN_CURRENT_STATUS:
        return reply_text(c, MHD_HTTP_CONFLICT, err.msg);
    case MCFS_TENANT_QUOTA_INVALID:
    case MCFS_INVALID_PARAMS:
        return reply_text(c, MHD_HTTP_BAD_REQUEST, err.msg);
    default: /* the policy file could not be written */
        return reply_text(c, MHD_HTTP_INTERNAL_SERVER_ERROR, err.msg);
    }
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *body,
                                  size_t *body_len, void **state)
{
    struct admin_http *a = arg;
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    struct mcfs_slice tenant = mcfs_slice_str(MCFS_DEFAULT_TENANT);
    (void)version;
    /* The first call is for the headers alone; an answer is given once the request is whole. */
    struct mcfs_buf *request = *state;
    if (!request) {
        *state = calloc(1, sizeof(struct mcfs_buf));
        return *state ? MHD_YES : MHD_NO;
    }
    if (*body_len) {
        if (request->len <= BODY_MAX) /* one byte more tells that it was too long */
            mcfs_buf_append(request, body, MCFS_MIN(*body_len, BODY_MAX + 1 - request->len));
        *body_len = 0;
        return MHD_YES;
    }
    if (strcmp(path, "/health") != 0 && !may_ask(a, c))
        return reply_text(c, MHD_HTTP_UNAUTHORIZED, "token missing or wrong");
    if (strcmp(path, "/api/v1/tenant_quotas") == 0)
        return reply_quotas(a, c, method, request);
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return reply_text(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
    argument(c, "tenant", &tenant);
    if (tenant.len > MCFS_TENANT_MAX)
        return reply_text(c, MHD_HTTP_BAD_REQUEST, "tenant name too long");
    struct mcfs_error wait = MCFS_ERROR_INIT;
    bool figures = strncmp(path, "/metrics", 8) == 0;
    if (!figures && restoring_check(a->m->restoring, &wait))
        return reply_text(c, MHD_HTTP_SERVICE_UNAVAILABLE, wait.msg);
    if (strcmp(path, "/health") == 0)
        return reply_text(c, MHD_HTTP_OK, "OK");
    if (strcmp(path, "/role") == 0)
        return reply_text(c, MHD_HTTP_OK, "leader");
    if (strcmp(path, "/ha_status") == 0)
        return reply_text(c, MHD_HTTP_OK, "disabled");
    if (strcmp(path, "/get_all_keys") == 0)
        return reply_keys(a, c, tenant);
    if (strcmp(path, "/metrics") == 0) {
        admin_metrics(a->m, &b);
        return reply(c, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", &b);
    }
    if (strcmp(path, "/metrics/summary") == 0)
        admin_metrics_summary(a->m, &b);
    else if (strcmp(path, "/get_all_segments") == 0)
        admin_segments(a->m, &b);
    else if (strcmp(path, "/leader") == 0)
        mcfs_buf_printf(&b, "%s:%u\n", a->m->flags.rpc_address, a->m->flags.rpc_port);
    else
        return reply_query(a, c, path, tenant);
    return reply(c, MHD_HTTP_OK, "text/plain; charset=utf-8", &b);
}

/* ---- life ---- */

static void on_completed(void *arg, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode how)
{
    (void)arg;
    (void)c;
    (void)how;
    if (*state)
        mcfs_buf_free(*state);
    free(*state);
    *state = NULL;
}

static void on_connection(void *arg, struct MHD_Connection *c, void **state,
                          enum MHD_ConnectionNotificationCode what)
{
    struct admin_http *a = arg;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*state)
            atomic_store((atomic_int *)*state, -1);
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    for (int i = 0; info && i < CONNECTIONS_MAX; i++) {
        int none = -1;
        if (atomic_compare_exchange_strong(&a->fds[i], &none, info->connect_fd)) {
            *state = &a->fds[i];
            return;
        }
    }
}

static int listen_on(struct admin_http *a, struct mcfs_error *err)
{
    int one = 1;
    bool v6 = a->addr.ss_family == AF_INET6;
    _cleanup_fd_ int fd = socket(a->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd < 0 ||
        bind(fd, (struct sockaddr *)&a->addr,
             v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)) ||
        listen(fd, CONNECTIONS_MAX))
        return mcfs_fail_errno(err, errno, "admin HTTP on %s port %u (--metrics_port)",
                               a->m->flags.metrics_host, a->m->flags.metrics_port);
    a->listen_fd = mcfs_steal_fd(&fd);
    return 0;
}

int admin_http_start(struct admin_http *a, struct mcfs_error *err)
{
    if (listen_on(a, err))
        return -1;
    /* Its own socket, so that a child can close it; MHD closes it at the end. */
    a->daemon =
        MHD_start_daemon(MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, on_request,
                         a, MHD_OPTION_LISTEN_SOCKET, a->listen_fd, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)IDLE_SECONDS, MHD_OPTION_NOTIFY_CONNECTION, on_connection, a,
                         MHD_OPTION_NOTIFY_COMPLETED, on_completed, a, MHD_OPTION_END);
    if (!a->daemon)
        return mcfs_fail_errno(err, errno ? errno : EIO, "admin HTTP");
    return 0;
}

void admin_http_forget_in_child(struct admin_http *a)
{
    if (!a)
        return;
    if (a->listen_fd >= 0)
        close(a->listen_fd);
    for (int i = 0; i < CONNECTIONS_MAX; i++) {
        int fd = atomic_load(&a->fds[i]);
        if (fd >= 0)
            close(fd);
    }
}

void admin_http_free(struct admin_http *a)
{
    if (!a)
        return;
    if (a->daemon)
        MHD_stop_daemon(a->daemon);
    else if (a->listen_fd >= 0)
        close(a->listen_fd);
    free(a->token);
    free(a);
}
