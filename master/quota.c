/* SPDX-License-Identifier: Apache-2.0 */
#include "master/quota.h"

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/file.h"
#include "common/flags.h"
#include "common/yaml_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>

#define TENANTS_MAX 65535

struct quota {
    char *name;
    uint64_t bytes;
};

struct quotas {
    pthread_mutex_t change_lock; /* one change at a time, its file included; taken first */
    pthread_rwlock_t lock;       /* guards what follows */
    struct quota *list;          /* by name */
    size_t count, cap;
    char *path;
};

static size_t place_of(const struct quotas *q, struct mcfs_slice name, bool *found)
{
    size_t low = 0, high = q->count;
    *found = false;
    while (low < high) {
        size_t mid = (low + high) / 2;
        int c = mcfs_slice_cmp(mcfs_slice_str(q->list[mid].name), name);
        if (c == 0) {
            *found = true;
            return mid;
        }
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int check(struct mcfs_slice name, uint64_t bytes, struct mcfs_error *err)
{
    bool ok = name.len > 0 && name.len <= MCFS_TENANT_MAX && name.data[0] != '_';
    for (size_t i = 0; ok && i < name.len; i++)
        ok = (unsigned char)name.data[i] >= ' ' && name.data[i] != 127 && name.data[i] != '/';
    json_t *text = ok ? json_stringn(name.data, name.len) : NULL; /* NULL: not UTF-8 */
    ok = text != NULL;
    json_decref(text);
    if (!ok)
        return mcfs_fail(err, MCFS_TENANT_QUOTA_INVALID,
                         "a tenant with a quota has a name of 1 to %d bytes of UTF-8 without '/' "
                         "and control characters that does not begin with '_'",
                         MCFS_TENANT_MAX);
    if (bytes == 0 || bytes > INT64_MAX)
        return mcfs_fail(err, MCFS_TENANT_QUOTA_INVALID,
                         "a tenant's quota is a positive number of bytes below 2^63");
    return 0;
}

/* The caller holds the lock for writing. */
static int set_locked(struct quotas *q, struct mcfs_slice name, uint64_t bytes,
                      struct mcfs_error *err)
{
    bool found;
    size_t at = place_of(q, name, &found);
    if (found) {
        q->list[at].bytes = bytes;
        return 0;
    }
    if (q->count == TENANTS_MAX)
        return mcfs_fail(err, MCFS_TENANT_QUOTA_INVALID, "more than %d tenants", TENANTS_MAX);
    if (q->count == q->cap) {
        size_t cap = q->cap ? 2 * q->cap : 16;
        struct quota *more = realloc(q->list, cap * sizeof(*more));
        if (!more)
            return mcfs_fail_errno(err, ENOMEM, "quotas");
        q->list = more;
        q->cap = cap;
    }
    char *copy = strndup(name.data, name.len);
    if (!copy)
        return mcfs_fail_errno(err, ENOMEM, "quotas");
    memmove(&q->list[at + 1], &q->list[at], (q->count - at) * sizeof(*q->list));
    q->list[at] = (struct quota){copy, bytes};
    q->count++;
    return 0;
}

/* ---- the file ---- */

static int read_tenant(struct quotas *q, struct mcfs_yaml *y, const yaml_node_t *entry,
                       struct mcfs_error *err)
{
    yaml_node_t *key, *value;
    const char *name = NULL, *quota = NULL;
    uint64_t bytes = 0;
    bool found;
    if (entry->type != YAML_MAPPING_NODE)
        return mcfs_yaml_fail(y, entry, err, "a tenant is a mapping of name and quota");
    for (size_t i = 0; mcfs_yaml_pair(y, entry, i, &key, &value); i++) {
        const char *what = mcfs_yaml_text(key), *text = mcfs_yaml_text(value);
        const char **to = what && strcmp(what, "name") == 0    ? &name
                          : what && strcmp(what, "quota") == 0 ? &quota
                                                               : NULL;
        if (!to || *to || !text)
            return mcfs_yaml_fail(y, key, err, "a tenant has one name and one quota, and no more");
        *to = text;
    }
    if (!name || !quota)
        return mcfs_yaml_fail(y, entry, err, "a tenant needs a name and a quota");
    size_t digits = strspn(quota, "0123456789");
    bool unit = strcasecmp(quota + digits, "B") == 0;
    char number[32];
    snprintf(number, sizeof(number), "%.*s", (int)MCFS_MIN(digits, sizeof(number) - 1), quota);
    if (!digits || mcfs_parse_size(unit ? number : quota, &bytes))
        return mcfs_yaml_fail(y, entry, err, "'%.40s' is not a number of bytes", quota);
    struct mcfs_error why = MCFS_ERROR_INIT;
    if (check(mcfs_slice_str(name), bytes, &why))
        return mcfs_yaml_fail(y, entry, err, "%s", why.msg);
    place_of(q, mcfs_slice_str(name), &found);
    if (found)
        return mcfs_yaml_fail(y, entry, err, "a second tenant '%.60s'", name);
    return set_locked(q, mcfs_slice_str(name), bytes, err);
}

static int read_policy(struct quotas *q, struct mcfs_yaml *y, struct mcfs_error *err)
{
    yaml_node_t *root = mcfs_yaml_root(y), *key, *value, *entry;
    bool version = false;
    if (!root || root->type != YAML_MAPPING_NODE)
        return mcfs_yaml_fail(y, root, err, "a policy has version and tenants");
    for (size_t i = 0; mcfs_yaml_pair(y, root, i, &key, &value); i++) {
        const char *name = mcfs_yaml_text(key), *text = mcfs_yaml_text(value);
        if (name && strcmp(name, "version") == 0) {
            if (!text || strcmp(text, "1") != 0)
                return mcfs_yaml_fail(y, value, err, "the version of a policy is 1");
            version = true;
        } else if (name && strcmp(name, "tenants") == 0) {
            if (value->type != YAML_SEQUENCE_NODE && (!text || *text))
                return mcfs_yaml_fail(y, value, err, "tenants is a list");
            for (size_t k = 0; mcfs_yaml_item(y, value, k, &entry); k++)
                if (read_tenant(q, y, entry, err))
                    return -1;
        } else {
            return mcfs_yaml_fail(y, key, err, "a policy has version and tenants, and no more");
        }
    }
    return version ? 0 : mcfs_yaml_fail(y, root, err, "the policy names no version");
}

static struct quotas *make(const char *path, struct mcfs_error *err)
{
    struct quotas *q = calloc(1, sizeof(*q));
    if (!q || !(q->path = strdup(path))) {
        free(q);
        mcfs_fail_errno(err, ENOMEM, "quotas");
        return NULL;
    }
    pthread_mutex_init(&q->change_lock, NULL);
    pthread_rwlock_init(&q->lock, NULL);
    return q;
}

struct quotas *quotas_parse(const char *text, size_t len, const char *path, struct mcfs_error *err)
{
    _cleanup_(mcfs_yaml_free) struct mcfs_yaml y = MCFS_YAML_INIT;
    struct quotas *q = make(path, err);
    if (!q || (mcfs_yaml_parse(&y, text, len, path, err) == 0 && read_policy(q, &y, err) == 0))
        return q;
    quotas_free(q);
    return NULL;
}

struct quotas *quotas_load(const char *path, struct mcfs_error *err)
{
    _cleanup_(mcfs_yaml_free) struct mcfs_yaml y = MCFS_YAML_INIT;
    struct mcfs_error e = MCFS_ERROR_INIT;
    struct quotas *q = make(path, err);
    if (!q)
        return NULL;
    if (mcfs_yaml_load(&y, path, &e) == 0 ? read_policy(q, &y, &e) == 0 : e.errnum == ENOENT)
        return q;
    if (err)
        *err = e;
    quotas_free(q);
    return NULL;
}

/* Writes the policy as it will be: with `name` at `bytes`, or without it for 0.  The caller holds
 * the change lock, so nothing else changes it. */
static int write_policy(const struct quotas *q, struct mcfs_slice name, uint64_t bytes,
                        struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    bool found;
    size_t at = place_of(q, name, &found);
    mcfs_buf_append_str(&b,
                        "# Written by mooncakefs-master; see mooncakefs-master(8).\n"
                        "version: 1\ntenants:\n");
    for (size_t i = 0; i <= q->count; i++) {
        bool here = i == at, old = i < q->count && !(found && here);
        struct mcfs_slice names[2] = {name, old ? mcfs_slice_str(q->list[i].name) : name};
        uint64_t sizes[2] = {here ? bytes : 0, old ? q->list[i].bytes : 0};
        for (int k = 0; k < 2; k++) {
            if (!sizes[k])
                continue;
            json_t *text = json_stringn(names[k].data, names[k].len);
            char *quoted = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
            json_decref(text);
            if (!quoted)
                return mcfs_fail_errno(err, ENOMEM, "%s", q->path);
            mcfs_buf_printf(&b, "  - name: %s\n    quota: %" PRIu64 "\n", quoted, sizes[k]);
            free(quoted);
        }
    }
    if (b.failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", q->path);
    return mcfs_write_file(q->path, b.data, b.len, 0644, 1, err);
}

/* ---- the rest ---- */

void quotas_free(struct quotas *q)
{
    if (!q)
        return;
    for (size_t i = 0; i < q->count; i++)
        free(q->list[i].name);
    free(q->list);
    free(q->path);
    pthread_mutex_destroy(&q->change_lock);
    pthread_rwlock_destroy(&q->lock);
    free(q);
}

static int not_registered(struct mcfs_slice tenant, struct mcfs_error *err)
{
    return mcfs_fail(err, MCFS_TENANT_NOT_REGISTERED, "tenant '%.*s' has no quota here",
                     (int)MCFS_MIN(tenant.len, 64), tenant.data);
}

int quotas_limit(struct quotas *q, struct mcfs_slice tenant, uint64_t *bytes,
                 struct mcfs_error *err)
{
    bool found;
    pthread_rwlock_rdlock(&q->lock);
    size_t at = place_of(q, tenant, &found);
    *bytes = found ? q->list[at].bytes : 0;
    pthread_rwlock_unlock(&q->lock);
    return found ? 0 : not_registered(tenant, err);
}

int quotas_set(struct quotas *q, struct mcfs_slice tenant, uint64_t bytes, struct mcfs_error *err)
{
    if (check(tenant, bytes, err))
        return -1;
    MCFS_LOCK_SCOPE(&q->change_lock);
    if (write_policy(q, tenant, bytes, err))
        return -1;
    pthread_rwlock_wrlock(&q->lock);
    int rc = set_locked(q, tenant, bytes, err);
    pthread_rwlock_unlock(&q->lock);
    return rc;
}

int quotas_remove(struct quotas *q, struct mcfs_slice tenant, struct mcfs_error *err)
{
    bool found;
    MCFS_LOCK_SCOPE(&q->change_lock);
    size_t at = place_of(q, tenant, &found);
    if (!found)
        return not_registered(tenant, err);
    if (write_policy(q, tenant, 0, err))
        return -1;
    pthread_rwlock_wrlock(&q->lock);
    free(q->list[at].name);
    q->count--;
    memmove(&q->list[at], &q->list[at + 1], (q->count - at) * sizeof(*q->list));
    pthread_rwlock_unlock(&q->lock);
    return 0;
}

void quotas_each(struct quotas *q, void (*fn)(struct mcfs_slice tenant, uint64_t bytes, void *arg),
                 void *arg)
{
    pthread_rwlock_rdlock(&q->lock);
    for (size_t i = 0; i < q->count; i++)
        fn(mcfs_slice_str(q->list[i].name), q->list[i].bytes, arg);
    pthread_rwlock_unlock(&q->lock);
}
