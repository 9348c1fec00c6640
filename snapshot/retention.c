/* SPDX-License-Identifier: Apache-2.0 */
/* Which snapshots go, and what is cleared away with them. */
#include "snapshot/repository.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <stdio.h>
#include <string.h>

#define CLOCK_SLACK_MS 60000

struct names {
    char **v;
    size_t count, cap;
    bool failed;
};

static void names_free(struct names *n)
{
    for (size_t i = 0; i < n->count; i++)
        free(n->v[i]);
    free(n->v);
}

static bool add_name(const struct mcfs_object_info *info, void *arg)
{
    struct names *n = arg;
    if (n->count == n->cap) {
        size_t cap = n->cap ? n->cap * 2 : 16;
        char **v = realloc(n->v, cap * sizeof(*v));
        n->failed |= !v;
        if (!v)
            return false;
        n->v = v;
        n->cap = cap;
    }
    char *copy = strdup(info->name);
    n->failed |= !copy;
    if (copy)
        n->v[n->count++] = copy;
    return copy != NULL;
}

/* Makes latest.txt name the newest of those that are older than `id`, else the newest that is left;
 * removes it when none is. */
static int move_latest_from(struct mcfs_object_store *store, const char *cluster, const char *id,
                            struct mcfs_error *err)
{
    _cleanup_free_ struct snap_entry *list = NULL;
    size_t count;
    char path[SNAP_PATH_MAX];
    const char *next = NULL, *newest = NULL;
    if (snap_repo_list(store, cluster, &list, &count, err))
        return -1;
    for (size_t i = 0; i < count; i++) {
        int c = strcmp(list[i].id, id);
        if (c != 0 && !newest)
            newest = list[i].id;
        if (c < 0 && !next)
            next = list[i].id;
    }
    next = next ? next : newest;
    snap_path(path, sizeof(path), cluster, NULL, "latest.txt");
    return next ? value_write(store, path, mcfs_slice_str(next), err)
                : store->ops->remove(store, path, err);
}

/* The descriptor goes first: without it the rest is no snapshot, whatever happens after this. */
static int remove_files(struct mcfs_object_store *store, const char *cluster, const char *id,
                        uint32_t *removed, struct mcfs_error *err)
{
    char path[SNAP_PATH_MAX];
    _cleanup_(names_free) struct names n = {0};
    snap_path(path, sizeof(path), cluster, id, "descriptor.txt");
    if (store->ops->remove(store, path, err))
        return -1;
    snap_path(path, sizeof(path), cluster, id, "");
    if (store->ops->list(store, path, add_name, &n, err))
        return -1;
    if (n.failed)
        return mcfs_fail_errno(err, ENOMEM, "snapshot %s", id);
    for (size_t i = 0; i < n.count; i++) {
        if (store->ops->remove(store, n.v[i], err))
            return -1;
        *removed += 1;
    }
    return 0;
}

int snap_repo_delete(struct mcfs_object_store *store, const char *cluster, const char *id,
                     struct mcfs_error *err)
{
    char latest[SNAP_ID_SIZE];
    uint32_t removed = 0;
    if (names_check(cluster, id, err))
        return -1;
    if (snap_repo_latest(store, cluster, latest) && strcmp(latest, id) == 0 &&
        move_latest_from(store, cluster, id, err))
        return -1;
    return remove_files(store, cluster, id, &removed, err);
}

/* Keeps the newest `keep`, `current` and what latest.txt names. */
static int delete_old(struct mcfs_object_store *store, const char *cluster, const char *current,
                      uint32_t keep, uint32_t *deleted, struct mcfs_error *err)
{
    _cleanup_free_ struct snap_entry *list = NULL;
    char latest[SNAP_ID_SIZE] = "";
    size_t count;
    int rc = 0;
    if (snap_repo_list(store, cluster, &list, &count, err))
        return -1;
    snap_repo_latest(store, cluster, latest);
    /* One that cannot be deleted does not keep the others. */
    for (size_t i = MCFS_MAX(keep, 1u); i < count; i++) {
        if (strcmp(list[i].id, current) == 0 || strcmp(list[i].id, latest) == 0)
            continue;
        if (snap_repo_delete(store, cluster, list[i].id, rc ? NULL : err))
            rc = -1;
        else
            ++*deleted;
    }
    return rc;
}

int snap_repo_retain(struct mcfs_object_store *store, const char *cluster, const char *current,
                     uint32_t keep, struct mcfs_error *err)
{
    uint32_t deleted = 0;
    return delete_old(store, cluster, current, keep, &deleted, err);
}

/* Of this cluster: others may lie below its folder. */
static bool is_of_cluster(const char *name, void *arg)
{
    const char *rest = name + strlen(arg);
    char id[SNAP_ID_SIZE];
    snprintf(id, sizeof(id), "%s", rest);
    return (strncmp(rest, "latest.txt", 10) == 0 && !strchr(rest, '/')) ||
           (snap_id_is_valid(id) && rest[SNAP_ID_SIZE - 1] == '/');
}

int snap_repo_clear(struct mcfs_object_store *store, const char *cluster, int64_t min_age_ms,
                    uint32_t *files, struct mcfs_error *err)
{
    _cleanup_free_ struct repo_item *items = NULL;
    char prefix[SNAP_PATH_MAX], latest[SNAP_ID_SIZE] = "";
    size_t count;
    int64_t age_ns, before_ns;
    if (__builtin_mul_overflow(min_age_ms, 1000000, &age_ns) ||
        __builtin_sub_overflow(mcfs_wall_ns(), age_ns, &before_ns))
        before_ns = min_age_ms > 0 ? INT64_MIN : INT64_MAX;
    *files = 0;
    if (repo_items(store, cluster, &items, &count, err))
        return -1;
    snap_repo_latest(store, cluster, latest);
    for (size_t i = 0; i < count; i++)
        if (!items[i].has_descriptor && items[i].newest_ns < before_ns &&
            strcmp(items[i].entry.id, latest) != 0 &&
            remove_files(store, cluster, items[i].entry.id, files, err))
            return -1;
    snap_path(prefix, sizeof(prefix), cluster, NULL, "");
    struct mcfs_object_sweep sweep = {
        .prefix = prefix, .before_ns = before_ns, .may_go = is_of_cluster, .arg = prefix};
    int rc = store->ops->sweep ? store->ops->sweep(store, &sweep, err) : 0;
    *files += sweep.removed;
    return rc;
}

int snap_repo_prune(struct mcfs_object_store *store, const char *cluster, uint32_t keep,
                    int64_t min_age_ms, uint32_t *snapshots, uint32_t *files,
                    struct mcfs_error *err)
{
    *snapshots = *files = 0;
    if (keep && delete_old(store, cluster, "", keep, snapshots, err))
        return -1;
    return snap_repo_clear(store, cluster, min_age_ms, files, err);
}

int snap_repo_clear_dead(struct mcfs_object_store *store, const char *cluster, int64_t life_ms,
                         int *owner, uint32_t *files, struct mcfs_error *err)
{
    char folder[SNAP_PATH_MAX];
    *files = 0;
    if (names_check(cluster, NULL, err))
        return -1;
    snap_path(folder, sizeof(folder), cluster, NULL, "");
    if (*owner < 0 && store->ops->own)
        *owner = store->ops->own(store, folder, NULL);
    /* Whoever else wrote there is dead when it is ours; a clock's last tick is not waited for. */
    return snap_repo_clear(store, cluster, *owner >= 0 ? -CLOCK_SLACK_MS : life_ms, files, err);
}
