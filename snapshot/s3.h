/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_SNAPSHOT_S3_H
#define MCFS_SNAPSHOT_S3_H

/*
 * Snapshots in an S3 bucket.  One request at a time per connection; connections are kept and shared
 * by threads, but never across fork: a child starts with none, because what it inherited is its
 * parent's conversation.
 */

#include "common/buf.h"
#include "snapshot/snapshot.h"

#include <pthread.h>

struct s3_config {
    char *region, *endpoint, *bucket, *access_key, *secret_key, *session_token, *ca_bundle;
    bool virtual_addressing, use_https;
    uint64_t connect_timeout_ms, request_timeout_ms;
};

struct s3_store {
    struct mcfs_object_store base;
    struct s3_config config;
    char *prefix;         /* "" or with a '/' behind it */
    char *base_url;       /* scheme, host and, with path addressing, the bucket; no '/' behind it */
    pthread_mutex_t lock; /* guards idle */
    void *idle[16];       /* CURL *, with their connections */
    unsigned idle_count;
    int owner; /* process that idle belongs to */
};

/* MOONCAKE_AWS_*, then AWS_*. */
int s3_config_load(struct s3_config *c, struct mcfs_error *err);
void s3_config_free(struct s3_config *c);

struct s3_request {
    const char *method;     /* GET, HEAD, PUT, POST, DELETE */
    const char *name;       /* of the value, without the prefix; NULL: the bucket itself */
    const char *query;      /* canonical: sorted and percent-encoded; or NULL */
    struct mcfs_slice body; /* PUT, POST */
    uint64_t range_at;      /* GET, when range_len is not 0 */
    size_t range_len;
    struct mcfs_slice into; /* GET with a range: where its bytes go; else they are collected */
};

struct s3_response {
    long status;
    struct mcfs_buf body; /* what the server says, or an error's XML */
    size_t into_len;      /* bytes written to `into` */
    int64_t content_length, mtime_s;
    char etag[128];
    unsigned tries;
};

/* Sends it, again after a pause while that may help, and returns 0 with any answer that is final,
 * or -1 when none came or access was refused. */
int s3_send(struct s3_store *s, const struct s3_request *q, struct s3_response *a,
            struct mcfs_error *err);
void s3_response_free(struct s3_response *a);

/* The error in an answer whose status is not what was hoped for; returns -1. */
int s3_refused(const struct s3_store *s, const struct s3_request *q, const struct s3_response *a,
               struct mcfs_error *err);

/* Percent-encodes as signatures want it; slashes stay when keep_slashes. */
void s3_encode(struct mcfs_buf *out, const char *text, bool keep_slashes);

/* The text between <name> and </name> from `from` on; false when there is none.  *after is behind
 * it. */
bool s3_xml_find(struct mcfs_slice xml, const char *name, struct mcfs_slice *text, size_t *after);
/* Without XML's entities; malloc'ed. */
char *s3_xml_text(struct mcfs_slice text);
/* "2026-12-01T06:52:03.000Z" as ns since the Unix epoch; 0: no time. */
int64_t s3_time_ns(struct mcfs_slice text);

/* Whether a name can be one in S3, and stays below the prefix. */
int s3_check_name(const struct s3_store *s, const char *name, struct mcfs_error *err);

/* Parts of an object store's operations (mooncakefs/object_store.h): s3_upload.c, s3_sweep.c,
 * s3_list.c. */
struct mcfs_object_store_put *s3_put_begin(struct mcfs_object_store *store, const char *name,
                                           struct mcfs_error *err);
int s3_put_write(struct mcfs_object_store_put *p, const void *data, size_t len,
                 struct mcfs_error *err);
int s3_put_commit(struct mcfs_object_store_put *p, struct mcfs_error *err);
void s3_put_abort(struct mcfs_object_store_put *p);
int s3_stat(struct mcfs_object_store *store, const char *name, struct mcfs_object_info *info,
            struct mcfs_error *err);
int s3_sweep(struct mcfs_object_store *store, struct mcfs_object_sweep *sweep,
             struct mcfs_error *err);
/* Ends an upload of parts; its id as the server says it. */
int s3_end_upload(struct s3_store *s, const char *name, const char *upload, struct mcfs_error *err);
int s3_list(struct mcfs_object_store *store, const char *prefix, mcfs_object_list_fn fn, void *arg,
            struct mcfs_error *err);

extern const struct mcfs_object_store_ops s3_ops;

#endif
