/* SPDX-License-Identifier: Apache-2.0 */
/* Listing a bucket page by page, and the little XML that takes. */
#include "snapshot/s3.h"

#include "common/cleanup.h"

#include <ctype.h>
#include <stdio.h>
#include <time.h>

void s3_encode(struct mcfs_buf *out, const char *text, bool keep_slashes)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (isalnum(*p) || strchr("-._~", *p) || (*p == '/' && keep_slashes))
            mcfs_buf_append(out, p, 1);
        else
            mcfs_buf_printf(out, "%%%02X", *p);
    }
}

bool s3_xml_find(struct mcfs_slice xml, const char *name, struct mcfs_slice *text, size_t *after)
{
    char open[64], close[64];
    snprintf(open, sizeof(open), "<%s>", name);
    snprintf(close, sizeof(close), "</%s>", name);
    const char *start = xml.len ? memmem(xml.data, xml.len, open, strlen(open)) : NULL;
    if (!start)
        return false;
    start += strlen(open);
    size_t left = xml.len - (size_t)(start - xml.data);
    const char *end = memmem(start, left, close, strlen(close));
    if (!end)
        return false;
    *text = mcfs_slice(start, (size_t)(end - start));
    if (after)
        *after = (size_t)(end - xml.data) + strlen(close);
    return true;
}

/* One entity at p, of which the character is put to *to; the bytes it takes, 0 when it is none. */
static size_t entity(const char *p, size_t left, char *to)
{
    static const struct {
        const char *text;
        char c;
    } known[] = {{"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(known); i++) {
        size_t len = strlen(known[i].text);
        if (left >= len && memcmp(p, known[i].text, len) == 0) {
            *to = known[i].c;
            return len;
        }
    }
    if (left < 4 || p[1] != '#')
        return 0;
    bool hex = p[2] == 'x';
    unsigned v = 0;
    size_t i = hex ? 3 : 2;
    for (; i < left && i < 8 && isxdigit((unsigned char)p[i]); i++)
        v = v * (hex ? 16 : 10) +
            (unsigned)(isdigit((unsigned char)p[i]) ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    if (i >= left || p[i] != ';' || v == 0 || v > 127)
        return 0;
    *to = (char)v;
    return i + 1;
}

char *s3_xml_text(struct mcfs_slice text)
{
    char *out = malloc(text.len + 1), *to = out;
    for (size_t i = 0; out && i < text.len; to++) {
        size_t n = text.data[i] == '&' ? entity(text.data + i, text.len - i, to) : 0;
        if (!n)
            *to = text.data[i];
        i += n ? n : 1;
    }
    if (out)
        *to = 0;
    return out;
}

int64_t s3_time_ns(struct mcfs_slice text)
{
    char copy[40];
    struct tm tm = {0};
    snprintf(copy, sizeof(copy), "%.*s", (int)MCFS_MIN(text.len, sizeof(copy) - 1), text.data);
    return strptime(copy, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm) * 1000000000 : 0;
}

static uint64_t parse_size(struct mcfs_slice text)
{
    uint64_t v = 0;
    for (size_t i = 0; i < text.len && isdigit((unsigned char)text.data[i]); i++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(text.data[i] - '0'), &v))
            return 0;
    return v;
}

static int visit_page(struct s3_store *s, struct mcfs_slice xml, mcfs_object_list_fn fn, void *arg,
                      bool *more, struct mcfs_error *err)
{
    struct mcfs_slice item, key, size = {NULL, 0}, when = {NULL, 0};
    size_t after, prefix = strlen(s->prefix);
    while (*more && s3_xml_find(xml, "Contents", &item, &after)) {
        if (s3_xml_find(item, "Key", &key, NULL)) {
            s3_xml_find(item, "Size", &size, NULL);
            s3_xml_find(item, "LastModified", &when, NULL);
            _cleanup_free_ char *name = s3_xml_text(key);
            if (!name)
                return mcfs_fail_errno(err, ENOMEM, "S3 listing");
            if (strncmp(name, s->prefix, prefix) == 0) {
                struct mcfs_object_info info = {name + prefix, parse_size(size), s3_time_ns(when)};
                *more = fn(&info, arg);
            }
        }
        xml = mcfs_slice(xml.data + after, xml.len - after);
    }
    return 0;
}

/* The query of a page, with its parameters in the order that signatures want. */
static char *page_query(const struct s3_store *s, const char *prefix, const char *token)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    if (token) {
        mcfs_buf_append_str(&b, "continuation-token=");
        s3_encode(&b, token, false);
        mcfs_buf_append_str(&b, "&");
    }
    mcfs_buf_append_str(&b, "list-type=2&prefix=");
    s3_encode(&b, s->prefix, false);
    s3_encode(&b, prefix, false);
    mcfs_buf_append(&b, "", 1);
    if (b.failed)
        mcfs_buf_free(&b);
    return (char *)b.data;
}

int s3_list(struct mcfs_object_store *store, const char *prefix, mcfs_object_list_fn fn, void *arg,
            struct mcfs_error *err)
{
    struct s3_store *s = (struct s3_store *)store;
    _cleanup_free_ char *token = NULL;
    bool more = true;
    while (more) {
        _cleanup_free_ char *query = page_query(s, prefix, token);
        _cleanup_(s3_response_free) struct s3_response a = {0};
        struct s3_request q = {.method = "GET", .query = query};
        if (!query)
            return mcfs_fail_errno(err, ENOMEM, "S3 listing");
        if (s3_send(s, &q, &a, err))
            return -1;
        if (a.status != 200)
            return s3_refused(s, &q, &a, err);
        struct mcfs_slice xml = mcfs_slice(a.body.data, a.body.len), next;
        if (visit_page(s, xml, fn, arg, &more, err))
            return -1;
        free(token);
        token = NULL;
        if (!s3_xml_find(xml, "NextContinuationToken", &next, NULL))
            break;
        token = s3_xml_text(next);
        if (!token)
            return mcfs_fail_errno(err, ENOMEM, "S3 listing");
    }
    return 0;
}
