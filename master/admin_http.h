/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_ADMIN_HTTP_H
#define MCFS_MASTER_ADMIN_HTTP_H

/*
 * The admin HTTP server: Mooncake's paths, on a thread of its own, so that a scrape
 * never takes a request's turn.  Answers only loopback addresses unless a token is configured; then
 * every path but /health needs it.
 */

#include "common/buf.h"
#include "master/master.h"

#include <jansson.h>
#include <microhttpd.h>

struct admin_http;

/* Reads the token and checks the address (metrics_host, metrics_port of m's flags).  NULL with err
 * for an address beyond loopback without a token, or a token file that cannot be used. */
struct admin_http *admin_http_new(struct master *m, struct mcfs_error *err);

/* Listens and answers from here on; m must be complete. */
int admin_http_start(struct admin_http *a, struct mcfs_error *err);

/* In a forked child: lets go of the parent's sockets. */
void admin_http_forget_in_child(struct admin_http *a);

/* Stops and frees; NULL is allowed. */
void admin_http_free(struct admin_http *a);

/* ---- what the paths answer with (admin_metrics.c, admin_query.c) ---- */

/* Everything countable in Prometheus' text format, and the same as one line for people. */
void admin_metrics(struct master *m, struct mcfs_buf *out);
void admin_metrics_summary(struct master *m, struct mcfs_buf *out);

/* A key as one line of text: control bytes and '%' as %XX, everything else as it is. */
void admin_put_key(struct mcfs_buf *out, struct mcfs_slice key);

/* JSON of one object, or of several by key. */
int admin_query_key(struct master *m, struct mcfs_slice tenant, struct mcfs_slice key,
                    struct mcfs_buf *out, struct mcfs_error *err);
int admin_query_keys(struct master *m, struct mcfs_slice tenant, struct mcfs_slice keys,
                     struct mcfs_buf *out, struct mcfs_error *err);

/* /api/v1/tenant_quotas: lists the quotas (tenant NULL), shows, sets or takes out one; body is what
 * a PUT came with. */
enum quota_request { QUOTA_GET, QUOTA_PUT, QUOTA_DELETE };
int admin_quotas(struct master *m, enum quota_request what, const struct mcfs_slice *tenant,
                 struct mcfs_slice body, struct mcfs_buf *out, struct mcfs_error *err);

/* A text that need not be UTF-8: other bytes as %XX. */
json_t *admin_json_text(const char *data, size_t len);

/* Memory segments (admin_segment.c): their names; what those of a name or an id hold together
 * (false: there is none); all of them as JSON; their figures. */
void admin_memory_names(struct master *m, struct mcfs_buf *out);
bool admin_memory_query(struct master *m, struct mcfs_slice name, uint64_t *used,
                        uint64_t *capacity);
void admin_memory_details(struct master *m, json_t *list);
void admin_memory_metrics(struct master *m, struct mcfs_buf *out);

/* Storage of nodes, and memory segments: names, one by name (a node's name or id), all as JSON. */
void admin_segments(struct master *m, struct mcfs_buf *out);
int admin_query_segment(struct master *m, struct mcfs_slice name, struct mcfs_buf *out,
                        struct mcfs_error *err);
int admin_segments_detail(struct master *m, struct mcfs_buf *out, struct mcfs_error *err);

#endif
