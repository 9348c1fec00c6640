/* SPDX-License-Identifier: Apache-2.0 */
/* Which snapshots there are, which is the latest, which go. */
#include "snapshot/snapshot.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#define ROOT "mooncake_master_snapshot"

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

ssize_t snap_repo_read(struct mcfs_object_store *store, const char *cluster, const char *id,
                       const char *file, uint64_t off, void *buf, size_t len,
                       struct mcfs_error *err)
{
    char path[PATH_MAX];
    snap_path(path, sizeof(path), cluster, id, file);
    return store->ops->read(store, path, off, buf, len, err);
}

/* ---- listing ---- */

struct listing {
    const char *prefix; /* of the cluster's folder */
    struct snap_entry *list;
    size_t count, cap;
    bool failed;
};

/* "<prefix><id>/<file>": adds up the sizes by id; names come in order. */
static bool add_file(const struct mcfs_object_info *info, void *arg)
{
    struct listing *l = arg;
    char id[SNAP_ID_SIZE];
    const char *name = info->name + strlen(l->prefix);
    const char *slash = strchr(name, '/');
    if (!slash || slash - name != SNAP_ID_SIZE - 1)
        return true;
    snprintf(id, sizeof(id), "%s", name);
    if (!snap_id_is_valid(id))
        return true;
    if (l->count == 0 || strcmp(l->list[l->count - 1].id, id) != 0) {
        if (l->count == l->cap) {
            size_t cap = l->cap ? l->cap * 2 : 16;
            struct snap_entry *more = realloc(l->list, cap * sizeof(*more));
            if (!more) {
                l->failed = true;
                return false;
            }
            l->list = more;
            l->cap = cap;
        }
        l->list[l->count] = (struct snap_entry){0};
        memcpy(l->list[l->count++].id, id, sizeof(id));
    }
    l->list[l->count - 1].bytes += info->size;
    return true;
}

static int newest_first(const void *a, const void *b)
{
    return strcmp(((const struct snap_entry *)b)->id, ((const struct snap_entry *)a)->id);
}

/* Everything with an id, published or not. */
static int list_all(struct mcfs_object_store *store, const char *cluster, struct listing *l,
                    struct mcfs_error *err)
{
    char prefix[PATH_MAX];
    snap_path(prefix, sizeof(prefix), cluster, NULL, "");
    *l = (struct listing){.prefix = prefix};
    int rc = store->ops->list(store, prefix, add_file, l, err);
    if (rc == 0 && l->failed)
        rc = mcfs_fail_errno(err, ENOMEM, "list of snapshots");
    if (rc) {
        free(l->list);
        return -1;
    }
    if (l->count)
        qsort(l->list, l->count, sizeof(*l->list), newest_first);
    l->prefix = NULL;
    return 0;
}

static bool read_descriptor(struct mcfs_object_store *store, const char *cluster,
                            struct snap_entry *e)
{
    char text[128];
    ssize_t n =
        snap_repo_read(store, cluster, e->id, "descriptor.txt", 0, text, sizeof(text) - 1, NULL);
    if (n <= 0)
        return false;
    text[n] = 0;
    return sscanf(text, "%" SCNu64 "|%" SCNu64 "|%" SCNd64, &e->info.last_included_seq,
                  &e->info.producer_view_version, &e->info.created_ms) == 3;
}

int snap_repo_list(struct mcfs_object_store *store, const char *cluster, struct snap_entry **list,
                   size_t *count, struct mcfs_error *err)
{
    struct listing l;
    if (list_all(store, cluster, &l, err))
        return -1;
    size_t kept = 0;
    for (size_t i = 0; i < l.count; i++)
        if (read_descriptor(store, cluster, &l.list[i]))
            l.list[kept++] = l.list[i];
    *list = l.list;
    *count = kept;
    return 0;
}

/* What latest.txt names; false when it is absent or no id. */
static bool read_latest(struct mcfs_object_store *store, const char *cluster, char id[SNAP_ID_SIZE])
{
    char path[PATH_MAX], text[128];
    snap_path(path, sizeof(path), cluster, NULL, "latest.txt");
    ssize_t n = store->ops->read(store, path, 0, text, sizeof(text) - 1, NULL);
    if (n < 0)
        return false;
    text[n] = 0;
    char *p = text;
    while (isspace((unsigned char)*p))
        p++;
    for (char *end = p + strlen(p); end > p && isspace((unsigned char)end[-1]); end--)
        end[-1] = 0;
    snprintf(id, SNAP_ID_SIZE, "%s", p);
    return strlen(p) == SNAP_ID_SIZE - 1 && snap_id_is_valid(id);
}

int snap_repo_candidates(struct mcfs_object_store *store, const char *cluster,
                         char (**ids)[SNAP_ID_SIZE], size_t *count, struct mcfs_error *err)
{
    struct listing l;
    char latest[SNAP_ID_SIZE] = "";
    if (list_all(store, cluster, &l, err))
        return -1;
    bool has_latest = read_latest(store, cluster, latest);
    *count = 0;
    *ids = calloc(l.count + 1, SNAP_ID_SIZE);
    if (!*ids) {
        free(l.list);
        return mcfs_fail_errno(err, ENOMEM, "list of snapshots");
    }
    if (has_latest)
        memcpy((*ids)[(*count)++], latest, SNAP_ID_SIZE);
    for (size_t i = 0; i < l.count; i++)
        if (!has_latest || strcmp(l.list[i].id, latest) < 0)
            memcpy((*ids)[(*count)++], l.list[i].id, SNAP_ID_SIZE);
    free(l.list);
    return 0;
}

/* The time that an id names, ms since the epoch. */
static int64_t id_ms(const char *id)
{
    struct tm tm = {.tm_isdst = -1};
    int ms;
    if (sscanf(id, "%4d%2d%2d_%2d%2d%2d_%3d", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
               &tm.tm_min, &tm.tm_sec, &ms) != 7)
        return 0;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return (int64_t)mktime(&tm) * 1000 + ms;
}

int snap_repo_new_id(struct mcfs_object_store *store, const char *cluster, char id[SNAP_ID_SIZE],
                     struct mcfs_error *err)
{
    struct listing l;
    if (list_all(store, cluster, &l, err))
        return -1;
    int64_t ms = mcfs_wall_ms();
    if (l.count) /* ids sort as text: a new one is the greatest, even when the clock went back */
        ms = MCFS_MAX(ms, id_ms(l.list[0].id) + 1);
    free(l.list);
    time_t sec = (time_t)(ms / 1000);
    struct tm tm;
    char when[32];
    localtime_r(&sec, &tm);
    strftime(when, sizeof(when), "%Y%m%d_%H%M%S", &tm);
    snprintf(id, SNAP_ID_SIZE, "%.15s_%03d", when, (int)(ms % 1000));
    return 0;
}

/* ---- removal ---- */

struct names {
    char **v;
    size_t count, cap;
};

static bool add_name(const struct mcfs_object_info *info, void *arg)
{
    struct names *n = arg;
    if (n->count == n->cap) {
        size_t cap = n->cap ? n->cap * 2 : 16;
        char **v = realloc(n->v, cap * sizeof(char *));
        if (!v)
            return false;
        n->v = v;
        n->cap = cap;
    }
    n->v[n->count] = strdup(info->name);
    return n->v[n->count++] != NULL;
}

static int point_latest_elsewhere(struct mcfs_object_store *store, const char *cluster,
                                  const char *id, struct mcfs_error *err)
{
    struct snap_entry *list;
    size_t count;
    char path[PATH_MAX];
    const char *next = NULL;
    if (snap_repo_list(store, cluster, &list, &count, err))
        return -1;
    for (size_t i = 0; i < count && !next; i++)
        if (strcmp(list[i].id, id) != 0)
            next = list[i].id;
    snap_path(path, sizeof(path), cluster, NULL, "latest.txt");
    int rc;
    struct mcfs_object_store_put *p = NULL;
    if (!next) {
        rc = store->ops->remove(store, path, err);
    } else if (!(p = store->ops->put_begin(store, path, err))) {
        rc = -1;
    } else if (store->ops->put_write(p, next, strlen(next), err)) {
        store->ops->put_abort(p);
        rc = -1;
    } else {
        rc = store->ops->put_commit(p, err);
    }
    free(list);
    return rc;
}

int snap_repo_delete(struct mcfs_object_store *store, const char *cluster, const char *id,
                     struct mcfs_error *err)
{
    char latest[SNAP_ID_SIZE], prefix[PATH_MAX], path[PATH_MAX];
    struct names n = {0};
    if (!snap_id_is_valid(id))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%s' is not a snapshot's id", id);
    if (read_latest(store, cluster, latest) && strcmp(latest, id) == 0 &&
        point_latest_elsewhere(store, cluster, id, err))
        return -1;
    /* Without its descriptor it is no snapshot any more, whatever happens after this. */
    snap_path(path, sizeof(path), cluster, id, "descriptor.txt");
    snap_path(prefix, sizeof(prefix), cluster, id, "");
    int rc = store->ops->remove(store, path, err);
    if (rc == 0)
        rc = store->ops->list(store, prefix, add_name, &n, err);
    for (size_t i = 0; i < n.count; i++) {
        if (rc == 0 && store->ops->remove(store, n.v[i], err))
            rc = -1;
        free(n.v[i]);
    }
    free(n.v);
    return rc;
}

int snap_repo_retain(struct mcfs_object_store *store, const char *cluster, const char *current,
                     uint32_t keep, struct mcfs_error *err)
{
    struct snap_entry *list;
    size_t count;
    int rc = 0;
    if (snap_repo_list(store, cluster, &list, &count, err))
        return -1;
    for (size_t i = MCFS_MAX(keep, 1u); i < count; i++)
        if (strcmp(list[i].id, current) != 0 &&
            snap_repo_delete(store, cluster, list[i].id, rc ? NULL : err))
            rc = -1;
    free(list);
    return rc;
}

int snap_repo_files(struct mcfs_object_store *store, const char *cluster, const char *id,
                    mcfs_object_list_fn fn, void *arg, struct mcfs_error *err)
{
    char prefix[PATH_MAX];
    snap_path(prefix, sizeof(prefix), cluster, id, "");
    return store->ops->list(store, prefix, fn, arg, err);
}
