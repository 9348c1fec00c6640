/* SPDX-License-Identifier: Apache-2.0 */
/* The object store over S3: names, reading, removal, and how a bucket is found. */
#include "snapshot/s3.h"

#include "common/cleanup.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <stdio.h>

#define NAME_BYTES 1024 /* of a key in S3 */

int s3_check_name(const struct s3_store *s, const char *name, struct mcfs_error *err)
{
    bool good = *name && *name != '/' && strlen(s->prefix) + strlen(name) <= NAME_BYTES;
    for (const char *p = name; good && p; p = strchr(p, '/'), p = p ? p + 1 : NULL) {
        size_t len = strcspn(p, "/");
        good = !(len == 1 && p[0] == '.') && !(len == 2 && p[0] == '.' && p[1] == '.');
    }
    return good ? 0
                : mcfs_fail(err, MCFS_INVALID_PARAMS, "%.100s: not a name in a snapshot store",
                            name);
}

/* ---- reading ---- */

static ssize_t s3_read(struct mcfs_object_store *store, const char *name, uint64_t off, void *buf,
                       size_t len, struct mcfs_error *err)
{
    struct s3_store *s = (struct s3_store *)store;
    _cleanup_(s3_response_free) struct s3_response a = {0};
    struct s3_request q = {.method = "GET",
                           .name = name,
                           .range_at = off,
                           .range_len = len,
                           .into = mcfs_slice(buf, len)};
    if (s3_check_name(s, name, err))
        return -1;
    if (len == 0)
        return 0;
    if (s3_send(s, &q, &a, err))
        return -1;
    if (a.status == 416) /* behind the end */
        return 0;
    if (a.status == 206 || (a.status == 200 && off == 0))
        return (ssize_t)a.into_len;
    return s3_refused(s, &q, &a, err);
}

int s3_stat(struct mcfs_object_store *store, const char *name, struct mcfs_object_info *info,
            struct mcfs_error *err)
{
    struct s3_store *s = (struct s3_store *)store;
    _cleanup_(s3_response_free) struct s3_response a = {0};
    struct s3_request q = {.method = "HEAD", .name = name};
    if (s3_check_name(s, name, err) || s3_send(s, &q, &a, err))
        return -1;
    if (a.status != 200 || a.content_length < 0)
        return s3_refused(s, &q, &a, err);
    *info = (struct mcfs_object_info){name, (uint64_t)a.content_length,
                                      a.mtime_s > 0 ? a.mtime_s * 1000000000 : 0};
    return 0;
}

static int s3_remove(struct mcfs_object_store *store, const char *name, struct mcfs_error *err)
{
    struct s3_store *s = (struct s3_store *)store;
    _cleanup_(s3_response_free) struct s3_response a = {0};
    struct s3_request q = {.method = "DELETE", .name = name};
    if (s3_check_name(s, name, err) || s3_send(s, &q, &a, err))
        return -1;
    if (a.status / 100 == 2)
        return 0;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    s3_refused(s, &q, &a, &bad);
    if (bad.errnum == ENOENT)
        return 0;
    if (err)
        *err = bad;
    return -1;
}

static void s3_close(struct mcfs_object_store *store)
{
    struct s3_store *s = (struct s3_store *)store;
    for (unsigned i = 0; s->owner == (int)getpid() && i < s->idle_count; i++)
        curl_easy_cleanup(s->idle[i]);
    pthread_mutex_destroy(&s->lock);
    s3_config_free(&s->config);
    free(s->prefix);
    free(s->base_url);
    free(s);
}

const struct mcfs_object_store_ops s3_ops = {
    .name = "s3",
    .read_ahead_bytes = 4 << 20,
    .put_begin = s3_put_begin,
    .put_write = s3_put_write,
    .put_commit = s3_put_commit,
    .put_abort = s3_put_abort,
    .read = s3_read,
    .stat = s3_stat,
    .list = s3_list,
    .remove = s3_remove,
    .sweep = s3_sweep,
    .close = s3_close,
};

/* ---- opening ---- */

/* Whether buckets can be names below this host: not where it is an address. */
static bool has_subdomains(const char *host)
{
    struct in_addr address;
    char copy[256];
    snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(host, ":/"), host);
    return host[0] != '[' && strcmp(copy, "localhost") != 0 &&
           inet_pton(AF_INET, copy, &address) != 1;
}

static char *make_base_url(const struct s3_config *c)
{
    const char *scheme = c->use_https ? "https://" : "http://", *host = c->endpoint;
    char *url = NULL, aws[128];
    if (strncmp(host, "http://", 7) == 0 || strncmp(host, "https://", 8) == 0) {
        scheme = host[4] == 's' ? "https://" : "http://";
        host += strlen(scheme);
    }
    if (!*host) {
        snprintf(aws, sizeof(aws), "s3.%.64s.amazonaws.com", c->region);
        host = aws;
    }
    int len = (int)strlen(host);
    while (len > 0 && host[len - 1] == '/')
        len--;
    int rc = c->virtual_addressing && has_subdomains(host)
                 ? asprintf(&url, "%s%s.%.*s", scheme, c->bucket, len, host)
                 : asprintf(&url, "%s%.*s/%s", scheme, len, host, c->bucket);
    return rc < 0 ? NULL : url;
}

/* "bucket[/prefix]"; without a bucket the environment's. */
static int take_place(struct s3_store *s, const char *place, struct mcfs_error *err)
{
    size_t len = strcspn(place, "/");
    const char *prefix = place[len] ? place + len + 1 : "";
    size_t prefix_len = strlen(prefix);
    while (prefix_len > 0 && prefix[prefix_len - 1] == '/')
        prefix_len--;
    if (len) {
        free(s->config.bucket);
        s->config.bucket = strndup(place, len);
    }
    if (asprintf(&s->prefix, "%.*s%s", (int)prefix_len, prefix, prefix_len ? "/" : "") < 0)
        s->prefix = NULL;
    if (!s->config.bucket || !s->prefix)
        return mcfs_fail_errno(err, ENOMEM, "S3");
    if (!*s->config.bucket || s->config.bucket[strspn(s->config.bucket,
                                                      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQR"
                                                      "STUVWXYZ0123456789._-")])
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "s3://%.100s: no bucket's name", place);
    s->base_url = make_base_url(&s->config);
    return s->base_url ? 0 : mcfs_fail_errno(err, ENOMEM, "S3");
}

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

struct mcfs_object_store *snap_store_s3_open(const char *place, struct mcfs_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct s3_store *s = calloc(1, sizeof(*s));
    if (!s) {
        mcfs_fail_errno(err, ENOMEM, "S3");
        return NULL;
    }
    pthread_once(&once, init_curl);
    pthread_mutex_init(&s->lock, NULL);
    s->base.ops = &s3_ops;
    s->owner = (int)getpid();
    if (s3_config_load(&s->config, err) || take_place(s, place, err)) {
        s3_close(&s->base);
        return NULL;
    }
    return &s->base;
}
