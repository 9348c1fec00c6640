/* SPDX-License-Identifier: Apache-2.0 */
/* What snapshots and their files are called, and the text files. */
#include "snapshot/names.h"

#include <ctype.h>
#include <stdio.h>

#define ROOT "mooncake_master_snapshot"
#define CLUSTER_MAX 255

void snap_path(char *out, size_t cap, const char *cluster, const char *id, const char *file)
{
    snprintf(out, cap, ROOT "/%s%s%s%s%s", cluster, *cluster ? "/" : "", id ? id : "",
             id ? "/" : "", file);
}

bool snap_id_is_valid(const char *id)
{
    if (strlen(id) != SNAP_ID_SIZE - 1)
        return false;
    for (size_t i = 0; i < SNAP_ID_SIZE - 1; i++)
        if (i == 8 || i == 15 ? id[i] != '_' : !isdigit((unsigned char)id[i]))
            return false;
    return true;
}

/* A component of a name that is no name of its own. */
static bool is_odd(const char *part, size_t len)
{
    return len == 0 || (len == 1 && part[0] == '.') ||
           (len == 2 && part[0] == '.' && part[1] == '.');
}

int names_check(const char *cluster, const char *id, struct mcfs_error *err)
{
    size_t len = strlen(cluster);
    bool good = len <= CLUSTER_MAX;
    for (const char *p = cluster; good && len; p = strchr(p, '/') + 1) {
        size_t part = strcspn(p, "/");
        good = !is_odd(p, part);
        if (!p[part])
            break;
    }
    if (!good)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%.100s' cannot be a cluster's id", cluster);
    if (id && !snap_id_is_valid(id))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%.100s' is not a snapshot's id", id);
    return 0;
}

/* One decimal number and the character behind it. */
static const char *number(const char *p, char end, uint64_t *v)
{
    const char *start = p;
    for (*v = 0; isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(*v, 10, v) ||
            __builtin_add_overflow(*v, (uint64_t)(*p - '0'), v))
            return NULL;
    return p > start && *p == end ? p + 1 : NULL;
}

bool descriptor_parse(const char *text, struct snap_info *info)
{
    uint64_t created;
    const char *p = number(text, '|', &info->last_included_seq);
    p = p ? number(p, '|', &info->producer_view_version) : NULL;
    p = p ? number(p, 0, &created) : NULL;
    if (!p || created > INT64_MAX)
        return false;
    info->created_ms = (int64_t)created;
    return true;
}

int text_read(struct mcfs_object_store *store, const char *cluster, const char *id,
              const char *file, char *out, size_t cap, struct mcfs_error *err)
{
    char path[SNAP_PATH_MAX];
    snap_path(path, sizeof(path), cluster, id, file);
    ssize_t n = store->ops->read(store, path, 0, out, cap - 1, err);
    if (n < 0)
        return -1;
    while (n > 0 && isspace((unsigned char)out[n - 1]))
        n--;
    out[n] = 0;
    if (strlen(out) != (size_t)n)
        return mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: not a text", path);
    return 0;
}

int value_write(struct mcfs_object_store *store, const char *path, struct mcfs_slice content,
                struct mcfs_error *err)
{
    struct mcfs_object_store_put *p = store->ops->put_begin(store, path, err);
    if (!p)
        return -1;
    if (store->ops->put_write(p, content.data, content.len, err)) {
        store->ops->put_abort(p);
        return -1;
    }
    return store->ops->put_commit(p, err);
}
