/* SPDX-License-Identifier: Apache-2.0 */
/* Uploads of parts that nobody completed: no value shows them, but they are paid for. */
#include "snapshot/s3.h"

#include "common/cleanup.h"

/* The query of a page, with its parameters in the order that signatures want; malloc'ed. */
static char *page_query(const struct s3_store *s, const char *prefix, const char *key,
                        const char *upload)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    if (key) {
        mcfs_buf_append_str(&b, "key-marker=");
        s3_encode(&b, key, false);
        mcfs_buf_append_str(&b, "&");
    }
    mcfs_buf_append_str(&b, "prefix=");
    s3_encode(&b, s->prefix, false);
    s3_encode(&b, prefix, false);
    if (upload) {
        mcfs_buf_append_str(&b, "&upload-id-marker=");
        s3_encode(&b, upload, false);
    }
    mcfs_buf_append_str(&b, "&uploads=");
    mcfs_buf_append(&b, "", 1);
    if (b.failed)
        mcfs_buf_free(&b);
    return (char *)b.data;
}

static int end_one(struct s3_store *s, struct mcfs_slice item, struct mcfs_object_sweep *sweep,
                   struct mcfs_error *err)
{
    struct mcfs_slice key, id, when;
    size_t prefix = strlen(s->prefix);
    if (!s3_xml_find(item, "Key", &key, NULL) || !s3_xml_find(item, "UploadId", &id, NULL) ||
        !s3_xml_find(item, "Initiated", &when, NULL))
        return 0;
    _cleanup_free_ char *name = s3_xml_text(key), *upload = s3_xml_text(id);
    int64_t began_ns = s3_time_ns(when);
    if (!name || !upload)
        return mcfs_fail_errno(err, ENOMEM, "S3 uploads");
    /* One whose time cannot be read may be young. */
    if (began_ns == 0 || began_ns >= sweep->before_ns || strncmp(name, s->prefix, prefix) != 0 ||
        strncmp(name + prefix, sweep->prefix, strlen(sweep->prefix)) != 0 ||
        !sweep->may_go(name + prefix, sweep->arg) || s3_check_name(s, name + prefix, NULL))
        return 0;
    if (s3_end_upload(s, name + prefix, upload, err))
        return -1;
    sweep->removed++;
    return 0;
}

/* The place behind which the next page begins; false when this was the last. */
static bool next_page(struct mcfs_slice xml, char **key, char **upload)
{
    struct mcfs_slice text;
    free(*key);
    free(*upload);
    *key = *upload = NULL;
    if (!s3_xml_find(xml, "IsTruncated", &text, NULL) ||
        !mcfs_slice_eq(text, MCFS_SLICE_LITERAL("true")))
        return false;
    if (s3_xml_find(xml, "NextKeyMarker", &text, NULL))
        *key = s3_xml_text(text);
    if (s3_xml_find(xml, "NextUploadIdMarker", &text, NULL))
        *upload = s3_xml_text(text);
    return *key != NULL;
}

int s3_sweep(struct mcfs_object_store *store, struct mcfs_object_sweep *sweep,
             struct mcfs_error *err)
{
    struct s3_store *s = (struct s3_store *)store;
    _cleanup_free_ char *key = NULL, *upload = NULL;
    for (bool more = true; more;) {
        _cleanup_(s3_response_free) struct s3_response a = {0};
        _cleanup_free_ char *query = page_query(s, sweep->prefix, key, upload);
        struct s3_request q = {.method = "GET", .query = query};
        struct mcfs_slice item;
        size_t after;
        if (!query)
            return mcfs_fail_errno(err, ENOMEM, "S3 uploads");
        if (s3_send(s, &q, &a, err))
            return -1;
        if (a.status == 501 || a.status == 405) /* a server without such a list */
            return 0;
        if (a.status != 200)
            return s3_refused(s, &q, &a, err);
        struct mcfs_slice xml = mcfs_slice(a.body.data, a.body.len);
        more = next_page(xml, &key, &upload);
        while (s3_xml_find(xml, "Upload", &item, &after)) {
            if (end_one(s, item, sweep, err))
                return -1;
            xml = mcfs_slice(xml.data + after, xml.len - after);
        }
    }
    return 0;
}
