/* SPDX-License-Identifier: Apache-2.0 */
/* /api/v1/tenant_quotas: Mooncake's requests and answers. */
#include "common/cleanup.h"
#include "master/admin_http.h"
#include "master/quota.h"

#include <jansson.h>

static json_t *snapshot(struct master *m, struct mcfs_slice tenant, uint64_t quota)
{
    struct tenant_usage u;
    directory_tenant_usage(m->directory, tenant, &u);
    return json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b}", "tenant_id",
                     json_stringn(tenant.data, tenant.len), "requested_quota_bytes",
                     (json_int_t)quota, "effective_quota_bytes", (json_int_t)quota, "used_bytes",
                     (json_int_t)u.bytes, "reserved_bytes", (json_int_t)u.reserved_bytes,
                     "committed_count", (json_int_t)u.objects, "metadata_object_count",
                     (json_int_t)u.objects, "over_quota", (int)(u.bytes > quota),
                     "has_explicit_policy", 1);
}

struct list {
    struct master *m;
    json_t *to;
};

static void add(struct mcfs_slice tenant, uint64_t bytes, void *arg)
{
    struct list *l = arg;
    json_array_append_new(l->to, snapshot(l->m, tenant, bytes));
}

static int put_data(struct mcfs_buf *out, json_t *data, struct mcfs_error *err)
{
    json_t *answer = json_pack("{s:b, s:o}", "success", 1, "data", data);
    char *text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (text)
        mcfs_buf_append_str(out, text);
    bool ok = text && !out->failed;
    free(text);
    json_decref(answer);
    return ok ? 0 : mcfs_fail_errno(err, ENOMEM, "answer");
}

/* {"requested_quota_bytes": N}, or the same as an argument. */
static int read_quota(struct mcfs_slice body, uint64_t *bytes, struct mcfs_error *err)
{
    json_error_t bad;
    json_t *request = json_loadb(body.data, body.len, JSON_REJECT_DUPLICATES, &bad);
    json_t *value = json_object_get(request, "requested_quota_bytes");
    bool ok =
        json_is_integer(value) && json_integer_value(value) > 0 && json_object_size(request) == 1;
    *bytes = ok ? (uint64_t)json_integer_value(value) : 0;
    json_decref(request);
    return ok ? 0
              : mcfs_fail(err, MCFS_TENANT_QUOTA_INVALID,
                          "the body is {\"requested_quota_bytes\": N} with a positive number");
}

static int change(struct master *m, enum quota_request what, struct mcfs_slice tenant,
                  struct mcfs_slice body, struct mcfs_buf *out, struct mcfs_error *err)
{
    struct tenant_usage u;
    uint64_t bytes;
    if (what == QUOTA_PUT) {
        if (read_quota(body, &bytes, err) || quotas_set(m->quotas, tenant, bytes, err))
            return -1;
        return put_data(out, snapshot(m, tenant, bytes), err);
    }
    directory_tenant_usage(m->directory, tenant, &u);
    if (quotas_limit(m->quotas, tenant, &bytes, err))
        return -1;
    if (u.objects || u.reserved_bytes)
        return mcfs_fail(err, MCFS_UNAVAILABLE_IN_CURRENT_STATUS,
                         "TENANT_NOT_EMPTY: the tenant has objects or puts under way");
    return quotas_remove(m->quotas, tenant, err) ? -1 : put_data(out, json_null(), err);
}

int admin_quotas(struct master *m, enum quota_request what, const struct mcfs_slice *tenant,
                 struct mcfs_slice body, struct mcfs_buf *out, struct mcfs_error *err)
{
    uint64_t bytes;
    if (!m->quotas)
        return mcfs_fail(err, MCFS_UNAVAILABLE_IN_CURRENT_MODE,
                         "UNAVAILABLE_IN_CURRENT_MODE: this master has no quotas "
                         "(--enable_multi_tenants)");
    if (what == QUOTA_GET && !tenant) {
        struct list l = {m, json_array()};
        quotas_each(m->quotas, add, &l);
        return put_data(out, l.to, err);
    }
    if (!tenant || !tenant->len)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "?tenant_id= is missing");
    if (what != QUOTA_GET)
        return change(m, what, *tenant, body, out, err);
    if (quotas_limit(m->quotas, *tenant, &bytes, err))
        return -1;
    return put_data(out, snapshot(m, *tenant, bytes), err);
}
