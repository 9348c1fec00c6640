/* SPDX-License-Identifier: Apache-2.0 */
/* Values on their way into a bucket.  One of up to a part's size is a single PUT.  A larger one
 * goes up in parts while it is written, a few at a time, and becomes visible, whole, when it is
 * completed.  Memory is one part that fills and those in flight, whatever the value's size. */
#include "snapshot/s3.h"

#include "common/cleanup.h"

#include <stdio.h>

#define PART_BYTES (8u << 20) /* S3 takes 10,000 parts: 78 GiB */
#define FLIGHTS 3

/* A part on its way, by a thread of its own. */
struct flight {
    struct mcfs_object_store_put *put;
    pthread_t thread;
    bool busy;
    unsigned number; /* of the part, from 1 */
    struct mcfs_buf body;
    int rc;
    struct mcfs_error err;
    char etag[128];
};

struct mcfs_object_store_put {
    struct s3_store *store;
    char *name, *upload;        /* upload: the server's id for it; NULL: none yet */
    struct mcfs_buf part, list; /* list: <Part>s that have arrived, in order */
    unsigned parts;
    uint64_t size;
    struct flight flights[FLIGHTS]; /* part n in (n - 1) % FLIGHTS */
    bool failed;
    struct mcfs_error err; /* the first */
};

static void put_free(struct mcfs_object_store_put *p)
{
    for (size_t i = 0; i < FLIGHTS; i++)
        mcfs_buf_free(&p->flights[i].body);
    mcfs_buf_free(&p->part);
    mcfs_buf_free(&p->list);
    free(p->name);
    free(p->upload);
    free(p);
}

struct mcfs_object_store_put *s3_put_begin(struct mcfs_object_store *store, const char *name,
                                           struct mcfs_error *err)
{
    struct s3_store *s = (struct s3_store *)store;
    if (s3_check_name(s, name, err))
        return NULL;
    struct mcfs_object_store_put *p = calloc(1, sizeof(*p));
    if (!p || !(p->name = strdup(name))) {
        free(p);
        mcfs_fail_errno(err, ENOMEM, "%s", name);
        return NULL;
    }
    p->store = s;
    for (size_t i = 0; i < FLIGHTS; i++)
        p->flights[i].put = p;
    return p;
}

/* ---- parts ---- */

static int begin_parts(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    _cleanup_(s3_response_free) struct s3_response a = {0};
    struct s3_request q = {.method = "POST", .name = p->name, .query = "uploads="};
    struct mcfs_slice id;
    if (s3_send(p->store, &q, &a, err))
        return -1;
    if (a.status != 200 || !s3_xml_find(mcfs_slice(a.body.data, a.body.len), "UploadId", &id, NULL))
        return s3_refused(p->store, &q, &a, err);
    p->upload = s3_xml_text(id);
    return p->upload ? 0 : mcfs_fail_errno(err, ENOMEM, "%s", p->name);
}

/* "[partNumber=<n>&]uploadId=<id>"; malloc'ed. */
static char *upload_query(unsigned part, const char *upload)
{
    struct mcfs_buf b = MCFS_BUF_INIT;
    if (part)
        mcfs_buf_printf(&b, "partNumber=%u&", part);
    mcfs_buf_append_str(&b, "uploadId=");
    s3_encode(&b, upload, false);
    mcfs_buf_append(&b, "", 1);
    if (b.failed)
        mcfs_buf_free(&b);
    return (char *)b.data;
}

static int send_part(struct flight *f, struct mcfs_error *err)
{
    struct mcfs_object_store_put *p = f->put;
    _cleanup_(s3_response_free) struct s3_response a = {0};
    _cleanup_free_ char *query = upload_query(f->number, p->upload);
    struct s3_request q = {.method = "PUT",
                           .name = p->name,
                           .query = query,
                           .body = mcfs_slice(f->body.data, f->body.len)};
    if (!query)
        return mcfs_fail_errno(err, ENOMEM, "%s", p->name);
    if (s3_send(p->store, &q, &a, err))
        return -1;
    if (a.status != 200 || !a.etag[0])
        return s3_refused(p->store, &q, &a, err);
    memcpy(f->etag, a.etag, sizeof(f->etag));
    return 0;
}

static void *flight_main(void *arg)
{
    struct flight *f = arg;
    f->rc = send_part(f, &f->err);
    return NULL;
}

/* Takes note of how the part fared. */
static void arrived(struct flight *f)
{
    struct mcfs_object_store_put *p = f->put;
    if (f->rc == 0)
        mcfs_buf_printf(&p->list, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>",
                        f->number, f->etag);
    else if (!p->failed)
        p->err = f->err;
    p->failed |= f->rc != 0;
    mcfs_buf_reset(&f->body);
}

static void land(struct flight *f)
{
    if (!f->busy)
        return;
    pthread_join(f->thread, NULL);
    f->busy = false;
    arrived(f);
}

/* The oldest first, so that the list is in order. */
static void land_all(struct mcfs_object_store_put *p)
{
    for (unsigned i = 0; i < FLIGHTS; i++)
        land(&p->flights[(p->parts + i) % FLIGHTS]);
}

/* Sends the part that has filled; the error may be an earlier one's. */
static int launch(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    if (!p->upload && !p->failed && begin_parts(p, err))
        return -1;
    struct flight *f = &p->flights[p->parts % FLIGHTS];
    land(f);
    if (p->failed) {
        if (err)
            *err = p->err;
        return -1;
    }
    struct mcfs_buf empty = f->body;
    f->body = p->part;
    p->part = empty;
    f->number = ++p->parts;
    f->err = (struct mcfs_error)MCFS_ERROR_INIT;
    f->busy = pthread_create(&f->thread, NULL, flight_main, f) == 0;
    if (!f->busy) { /* no thread: by this one, when those before it are there */
        for (unsigned i = 1; i < FLIGHTS; i++)
            land(&p->flights[(p->parts - 1 + i) % FLIGHTS]);
        flight_main(f);
        arrived(f);
    }
    return 0;
}

int s3_put_write(struct mcfs_object_store_put *p, const void *data, size_t len,
                 struct mcfs_error *err)
{
    const char *from = data;
    p->size += len;
    while (len > 0) {
        if (p->part.len == PART_BYTES && launch(p, err))
            return -1;
        size_t n = MCFS_MIN(len, PART_BYTES - p->part.len);
        mcfs_buf_append(&p->part, from, n);
        if (p->part.failed)
            return mcfs_fail_errno(err, ENOMEM, "%s", p->name);
        from += n;
        len -= n;
    }
    return 0;
}

/* ---- the end ---- */

static int put_whole(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    _cleanup_(s3_response_free) struct s3_response a = {0};
    struct s3_request q = {
        .method = "PUT", .name = p->name, .body = mcfs_slice(p->part.data, p->part.len)};
    if (s3_send(p->store, &q, &a, err))
        return -1;
    return a.status == 200 ? 0 : s3_refused(p->store, &q, &a, err);
}

static int land_last(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    int rc = launch(p, err);
    land_all(p);
    if (rc == 0 && p->failed) {
        if (err)
            *err = p->err;
        return -1;
    }
    return rc;
}

/* Completing answers 200 before it is done, and may say in the body that it failed. */
static int complete_parts(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    _cleanup_(s3_response_free) struct s3_response a = {0};
    _cleanup_buf_ struct mcfs_buf body = MCFS_BUF_INIT;
    struct mcfs_object_info info = {0};
    if (land_last(p, err))
        return -1;
    mcfs_buf_append_str(&body, "<CompleteMultipartUpload>");
    mcfs_buf_append(&body, p->list.data, p->list.len);
    mcfs_buf_append_str(&body, "</CompleteMultipartUpload>");
    _cleanup_free_ char *query = upload_query(0, p->upload);
    if (body.failed || p->list.failed || !query)
        return mcfs_fail_errno(err, ENOMEM, "%s", p->name);
    struct s3_request q = {
        .method = "POST", .name = p->name, .query = query, .body = mcfs_slice(body.data, body.len)};
    if (s3_send(p->store, &q, &a, err))
        return -1;
    struct mcfs_slice code;
    if (a.status == 200 && !s3_xml_find(mcfs_slice(a.body.data, a.body.len), "Code", &code, NULL))
        return 0;
    /* The first answer may have been lost after the upload was completed. */
    if (a.status == 404 && a.tries > 0 && s3_stat(&p->store->base, p->name, &info, NULL) == 0 &&
        info.size == p->size)
        return 0;
    return s3_refused(p->store, &q, &a, err);
}

int s3_end_upload(struct s3_store *s, const char *name, const char *upload, struct mcfs_error *err)
{
    _cleanup_(s3_response_free) struct s3_response a = {0};
    _cleanup_free_ char *query = upload_query(0, upload);
    struct s3_request q = {.method = "DELETE", .name = name, .query = query};
    if (!query)
        return mcfs_fail_errno(err, ENOMEM, "%s", name);
    if (s3_send(s, &q, &a, err))
        return -1;
    return a.status / 100 == 2 || a.status == 404 ? 0 : s3_refused(s, &q, &a, err);
}

void s3_put_abort(struct mcfs_object_store_put *p)
{
    /* A part that arrives behind the end of its upload would be kept, and paid for. */
    land_all(p);
    if (p->upload)
        s3_end_upload(p->store, p->name, p->upload, NULL);
    put_free(p);
}

int s3_put_commit(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    int rc;
    if (p->size == 0)
        rc = mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: nothing to store", p->name);
    else
        rc = p->upload ? complete_parts(p, err) : put_whole(p, err);
    if (rc)
        s3_put_abort(p);
    else
        put_free(p);
    return rc;
}
