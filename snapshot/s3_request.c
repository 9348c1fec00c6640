/* SPDX-License-Identifier: Apache-2.0 */
/* One S3 request: signed, sent, and sent again while that may help. */
#include "snapshot/s3.h"

#include "common/cleanup.h"

#include <curl/curl.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#define TRIES 6
#define PAUSE_MS 100 /* doubled each time, and as much again by chance */
#define PAUSE_MAX_MS 5000
#define BODY_MAX (32u << 20) /* of what is collected */

/* ---- connections ---- */

static CURL *take_connection(struct s3_store *s)
{
    MCFS_LOCK_SCOPE(&s->lock);
    return s->idle_count ? s->idle[--s->idle_count] : curl_easy_init();
}

static void give_connection(struct s3_store *s, CURL *c)
{
    {
        MCFS_LOCK_SCOPE(&s->lock);
        if (s->idle_count < MCFS_ARRAY_SIZE(s->idle)) {
            s->idle[s->idle_count++] = c;
            return;
        }
    }
    curl_easy_cleanup(c);
}

/* A child of fork: its parent's connections are left alone, not even closed, and a thread of the
 * parent may hold the lock for ever.  The first request of a child comes from one thread. */
static void notice_fork(struct s3_store *s)
{
    if (s->owner == (int)getpid())
        return;
    pthread_mutex_init(&s->lock, NULL);
    s->idle_count = 0;
    s->owner = (int)getpid();
}

/* ---- one attempt ---- */

struct attempt {
    const struct s3_request *q;
    struct s3_response *a;
    CURL *curl;
    size_t sent;
    bool overflow;
};

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    struct attempt *t = arg;
    size_t len = size * n;
    long status = 0;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (t->q->range_len && status / 100 == 2) {
        if (len > t->q->range_len - t->a->into_len) {
            t->overflow = true;
            return 0;
        }
        memcpy((char *)(uintptr_t)t->q->into.data + t->a->into_len, data, len);
        t->a->into_len += len;
        return len;
    }
    if (t->a->body.len + len > BODY_MAX)
        return 0;
    mcfs_buf_append(&t->a->body, data, len);
    return t->a->body.failed ? 0 : len;
}

static size_t on_send(char *to, size_t size, size_t n, void *arg)
{
    struct attempt *t = arg;
    size_t len = MCFS_MIN(size * n, t->q->body.len - t->sent);
    if (len)
        memcpy(to, t->q->body.data + t->sent, len);
    t->sent += len;
    return len;
}

static int on_rewind(void *arg, curl_off_t offset, int origin)
{
    struct attempt *t = arg;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->q->body.len)
        return CURL_SEEKFUNC_CANTSEEK;
    t->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
    struct attempt *t = arg;
    size_t len = size * n;
    if (len > 5 && strncasecmp(line, "etag:", 5) == 0) {
        const char *p = line + 5, *end = line + len;
        while (p < end && (*p == ' ' || *p == '\t'))
            p++;
        while (end > p && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
            end--;
        snprintf(t->a->etag, sizeof(t->a->etag), "%.*s", (int)MCFS_MIN(end - p, 127), p);
    }
    return len;
}

static void add_header(struct curl_slist **list, bool *failed, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    *failed |= !more;
    *list = more ? more : *list;
}

/* Headers that are signed, in whatever order: curl sorts them. */
static struct curl_slist *headers_of(const struct s3_store *s, const struct s3_request *q)
{
    struct curl_slist *list = NULL;
    bool failed = false;
    unsigned char sum[SHA256_DIGEST_LENGTH];
    char line[128] = "x-amz-content-sha256: ";
    SHA256((const unsigned char *)(q->body.len ? q->body.data : ""), q->body.len, sum);
    char *to = line + strlen(line);
    for (size_t i = 0; i < sizeof(sum); i++)
        to += sprintf(to, "%02x", sum[i]);
    add_header(&list, &failed, line);
    if (*s->config.session_token) {
        _cleanup_free_ char *token = NULL;
        if (asprintf(&token, "x-amz-security-token: %s", s->config.session_token) < 0)
            token = NULL;
        else
            add_header(&list, &failed, token);
        failed |= !token;
    }
    if (failed) {
        curl_slist_free_all(list);
        return NULL;
    }
    return list;
}

static void set_method(CURL *c, const struct s3_request *q)
{
    if (strcmp(q->method, "HEAD") == 0) {
        curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    } else if (strcmp(q->method, "PUT") == 0) {
        curl_easy_setopt(c, CURLOPT_UPLOAD, 1L);
        curl_easy_setopt(c, CURLOPT_INFILESIZE_LARGE, (curl_off_t)q->body.len);
    } else if (strcmp(q->method, "POST") == 0) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->body.len ? q->body.data : "");
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body.len);
    } else if (strcmp(q->method, "DELETE") == 0) {
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, "DELETE");
    }
}

static void set_up(const struct s3_store *s, struct attempt *t, const char *url,
                   struct curl_slist *headers, const char *provider, const char *secret)
{
    CURL *c = t->curl;
    curl_easy_reset(c); /* options only: the connection stays */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)s->config.connect_timeout_ms);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)s->config.request_timeout_ms);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_AWS_SIGV4, provider);
    curl_easy_setopt(c, CURLOPT_USERPWD, secret);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_READFUNCTION, on_send);
    curl_easy_setopt(c, CURLOPT_READDATA, t);
    curl_easy_setopt(c, CURLOPT_SEEKFUNCTION, on_rewind);
    curl_easy_setopt(c, CURLOPT_SEEKDATA, t);
    curl_easy_setopt(c, CURLOPT_FILETIME, 1L);
    if (*s->config.ca_bundle)
        curl_easy_setopt(c, CURLOPT_CAINFO, s->config.ca_bundle);
    set_method(c, t->q);
    if (t->q->range_len) {
        char range[64];
        snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)t->q->range_at,
                 (unsigned long long)(t->q->range_at + t->q->range_len - 1));
        curl_easy_setopt(c, CURLOPT_RANGE, range);
    }
}

static CURLcode perform(struct s3_store *s, struct attempt *t, const char *url,
                        struct curl_slist *headers, char *why)
{
    _cleanup_free_ char *provider = NULL, *secret = NULL;
    struct s3_response *a = t->a;
    mcfs_buf_reset(&a->body);
    a->into_len = 0;
    a->status = 0;
    if (asprintf(&provider, "aws:amz:%s:s3", s->config.region) < 0 ||
        asprintf(&secret, "%s:%s", s->config.access_key, s->config.secret_key) < 0)
        return CURLE_OUT_OF_MEMORY;
    set_up(s, t, url, headers, provider, secret);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, why);
    CURLcode rc = curl_easy_perform(t->curl);
    curl_off_t length = -1, mtime = -1;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &a->status);
    curl_easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    curl_easy_getinfo(t->curl, CURLINFO_FILETIME_T, &mtime);
    a->content_length = length;
    a->mtime_s = mtime;
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, NULL);
    return rc;
}

/* ---- all attempts ---- */

static bool may_help(CURLcode rc, long status)
{
    switch (rc) {
    case CURLE_OK:
        return (status >= 500 && status != 501) || status == 429 || status == 408;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_WRITE_ERROR:
        return false;
    default:
        return true;
    }
}

static void pause_before(unsigned attempt)
{
    uint32_t chance = 0;
    uint64_t ms = MCFS_MIN((uint64_t)PAUSE_MS << attempt, (uint64_t)PAUSE_MAX_MS);
    if (getrandom(&chance, sizeof(chance), 0) != sizeof(chance))
        chance = 0;
    ms += chance % ms;
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static char *url_of(const struct s3_store *s, const struct s3_request *q)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    mcfs_buf_append_str(&b, s->base_url);
    mcfs_buf_append_str(&b, "/");
    if (q->name) {
        s3_encode(&b, s->prefix, true);
        s3_encode(&b, q->name, true);
    }
    if (q->query) {
        mcfs_buf_append_str(&b, "?");
        mcfs_buf_append_str(&b, q->query);
    }
    mcfs_buf_append(&b, "", 1);
    if (b.failed)
        mcfs_buf_free(&b);
    return (char *)b.data;
}

static int no_answer(const struct s3_store *s, const struct s3_request *q, CURLcode rc,
                     const char *why, struct mcfs_error *err)
{
    bool late = rc == CURLE_OPERATION_TIMEDOUT;
    return mcfs_fail(err, late ? MCFS_RPC_TIMEOUT : MCFS_RPC_FAIL, "s3://%s/%s%s: %s: %s",
                     s->config.bucket, q->name ? s->prefix : "", q->name ? q->name : "", q->method,
                     *why ? why : curl_easy_strerror(rc));
}

int s3_send(struct s3_store *s, const struct s3_request *q, struct s3_response *a,
            struct mcfs_error *err)
{
    char why[CURL_ERROR_SIZE] = "";
    CURLcode rc = CURLE_OUT_OF_MEMORY;
    *a = (struct s3_response){0};
    notice_fork(s);
    _cleanup_free_ char *url = url_of(s, q);
    struct curl_slist *headers = headers_of(s, q);
    struct attempt t = {.q = q, .a = a, .curl = url && headers ? take_connection(s) : NULL};
    for (; t.curl && a->tries < TRIES; a->tries++) {
        if (a->tries)
            pause_before(a->tries - 1);
        t.sent = 0;
        t.overflow = false;
        why[0] = 0;
        rc = perform(s, &t, url, headers, why);
        if (!may_help(rc, a->status))
            break;
    }
    if (t.curl)
        give_connection(s, t.curl);
    curl_slist_free_all(headers);
    if (rc == CURLE_WRITE_ERROR && t.overflow)
        return mcfs_fail(err, MCFS_INVALID_READ, "%s/%s: the server does not honour ranges",
                         s->base_url, q->name);
    if (rc != CURLE_OK)
        return no_answer(s, q, rc, why, err);
    if (may_help(rc, a->status) || a->status == 401 || a->status == 403)
        return s3_refused(s, q, a, err);
    return 0;
}

void s3_response_free(struct s3_response *a)
{
    mcfs_buf_free(&a->body);
}

/* What an operator is to do about it, where more is known than the status says. */
static const char *meaning_of(long status, struct mcfs_slice code)
{
    static const struct {
        const char *code, *meaning;
    } known[] = {{"ExpiredToken", "the credentials have expired"},
                 {"ExpiredTokenException", "the credentials have expired"},
                 {"TokenRefreshRequired", "the credentials have expired"},
                 {"RequestExpired", "the credentials have expired"},
                 {"RequestTimeTooSkewed", "this machine's clock and the server's differ"},
                 {"InvalidAccessKeyId", "the access key is unknown"},
                 {"SignatureDoesNotMatch", "the secret key is wrong"},
                 {"NoSuchBucket", "there is no such bucket"}};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(known); i++)
        if (mcfs_slice_eq(code, mcfs_slice_str(known[i].code)))
            return known[i].meaning;
    return status == 401 || status == 403 ? "access is denied" : "refused";
}

/* A server's words on one line. */
static void one_line(struct mcfs_slice text, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len && n + 1 < cap; i++)
        out[n++] = (unsigned char)text.data[i] < ' ' ? ' ' : text.data[i];
    out[n] = 0;
}

int s3_refused(const struct s3_store *s, const struct s3_request *q, const struct s3_response *a,
               struct mcfs_error *err)
{
    struct mcfs_slice xml = mcfs_slice(a->body.data, a->body.len), code = {NULL, 0}, text = code;
    char code_line[61], text_line[81];
    s3_xml_find(xml, "Code", &code, NULL);
    s3_xml_find(xml, "Message", &text, NULL);
    one_line(code, code_line, sizeof(code_line));
    one_line(text, text_line, sizeof(text_line));
    const char *meaning = meaning_of(a->status, code);
    bool absent = a->status == 404 && strcmp(code_line, "NoSuchBucket") != 0;
    bool denied = a->status == 401 || a->status == 403 || strstr(meaning, "credentials");
    int errnum = absent ? ENOENT : denied ? EACCES : EIO;
    mcfs_fail(err, mcfs_code_from_errno(errnum), "s3://%s/%s%s: %s: %s (HTTP status %ld%s%s%s%s)",
              s->config.bucket, q->name ? s->prefix : "", q->name ? q->name : "", q->method,
              meaning, a->status, *code_line ? ", " : "", code_line, *text_line ? ": " : "",
              text_line);
    if (err)
        err->errnum = errnum;
    return -1;
}
