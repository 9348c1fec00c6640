/* SPDX-License-Identifier: Apache-2.0 */
/* Which snapshots there are, which is the latest, in which order they are tried. */
#include "snapshot/repository.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <limits.h>
#include <stdio.h>

ssize_t snap_repo_read(struct mcfs_object_store *store, const char *cluster, const char *id,
                       const char *file, uint64_t off, void *buf, size_t len,
                       struct mcfs_error *err)
{
    char path[PATH_MAX];
    if (names_check(cluster, id, err))
        return -1;
    if (strlen(file) > NAME_MAX || strchr(file, '/'))
        return mcfs_fail(err, MCFS_FILE_NOT_FOUND, "%.100s: no file of a snapshot", file);
    snap_path(path, sizeof(path), cluster, id, file);
    return store->ops->read(store, path, off, buf, len, err);
}

int snap_repo_files(struct mcfs_object_store *store, const char *cluster, const char *id,
                    mcfs_object_list_fn fn, void *arg, struct mcfs_error *err)
{
    char prefix[SNAP_PATH_MAX];
    struct mcfs_object_info info;
    if (names_check(cluster, id, err))
        return -1;
    snap_path(prefix, sizeof(prefix), cluster, id, "");
    if (store->ops->list(store, prefix, fn, arg, err))
        return -1;
    /* A deletion takes the descriptor first: while it is there, so was all that was listed. */
    snap_path(prefix, sizeof(prefix), cluster, id, "descriptor.txt");
    return store->ops->stat(store, prefix, &info, err);
}

/* ---- listing ---- */

struct listing {
    size_t prefix_len; /* of the cluster's folder */
    struct repo_item *items;
    size_t count, cap;
    bool failed;
};

static struct repo_item *item_for(struct listing *l, const char id[SNAP_ID_SIZE])
{
    /* Names come in order, so that an id's files are neighbours. */
    if (l->count && strcmp(l->items[l->count - 1].entry.id, id) == 0)
        return &l->items[l->count - 1];
    if (l->count == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        struct repo_item *more = realloc(l->items, cap * sizeof(*more));
        if (!more)
            return NULL;
        l->items = more;
        l->cap = cap;
    }
    struct repo_item *item = &l->items[l->count++];
    *item = (struct repo_item){0};
    memcpy(item->entry.id, id, SNAP_ID_SIZE);
    return item;
}

/* "<prefix><id>/<file>" */
static bool add_file(const struct mcfs_object_info *info, void *arg)
{
    struct listing *l = arg;
    char id[SNAP_ID_SIZE];
    const char *name = info->name + l->prefix_len, *slash = strchr(name, '/');
    if (!slash || slash - name != SNAP_ID_SIZE - 1)
        return true;
    memcpy(id, name, SNAP_ID_SIZE - 1);
    id[SNAP_ID_SIZE - 1] = 0;
    if (!snap_id_is_valid(id))
        return true;
    struct repo_item *item = item_for(l, id);
    if (!item) {
        l->failed = true;
        return false;
    }
    item->entry.bytes += info->size;
    item->newest_ns = MCFS_MAX(item->newest_ns, info->mtime_ns);
    item->has_descriptor |= strcmp(slash, "/descriptor.txt") == 0;
    return true;
}

static int newest_first(const void *a, const void *b)
{
    return strcmp(((const struct repo_item *)b)->entry.id, ((const struct repo_item *)a)->entry.id);
}

int repo_items(struct mcfs_object_store *store, const char *cluster, struct repo_item **items,
               size_t *count, struct mcfs_error *err)
{
    char prefix[SNAP_PATH_MAX];
    if (names_check(cluster, NULL, err))
        return -1;
    snap_path(prefix, sizeof(prefix), cluster, NULL, "");
    struct listing l = {.prefix_len = strlen(prefix)};
    int rc = store->ops->list(store, prefix, add_file, &l, err);
    if (rc == 0 && l.failed)
        rc = mcfs_fail_errno(err, ENOMEM, "list of snapshots");
    if (rc) {
        free(l.items);
        return -1;
    }
    if (l.count)
        qsort(l.items, l.count, sizeof(*l.items), newest_first);
    *items = l.items;
    *count = l.count;
    return 0;
}

int snap_repo_list(struct mcfs_object_store *store, const char *cluster, struct snap_entry **list,
                   size_t *count, struct mcfs_error *err)
{
    _cleanup_free_ struct repo_item *items = NULL;
    size_t n;
    *list = NULL;
    *count = 0;
    if (repo_items(store, cluster, &items, &n, err))
        return -1;
    *list = calloc(n + 1, sizeof(**list));
    if (!*list)
        return mcfs_fail_errno(err, ENOMEM, "list of snapshots");
    for (size_t i = 0; i < n; i++) {
        char text[128];
        struct snap_entry *e = &items[i].entry;
        if (items[i].has_descriptor &&
            text_read(store, cluster, e->id, "descriptor.txt", text, sizeof(text), NULL) == 0 &&
            descriptor_parse(text, &e->info))
            (*list)[(*count)++] = *e;
    }
    return 0;
}

/* ---- latest ---- */

bool snap_repo_latest(struct mcfs_object_store *store, const char *cluster, char id[SNAP_ID_SIZE])
{
    char text[128];
    if (names_check(cluster, NULL, NULL) ||
        text_read(store, cluster, NULL, "latest.txt", text, sizeof(text), NULL))
        return false;
    const char *p = text + strspn(text, " \t\r\n\v\f");
    if (!snap_id_is_valid(p))
        return false;
    memcpy(id, p, SNAP_ID_SIZE);
    return true;
}

int snap_repo_candidates(struct mcfs_object_store *store, const char *cluster,
                         char (**ids)[SNAP_ID_SIZE], size_t *count, struct mcfs_error *err)
{
    _cleanup_free_ struct snap_entry *list = NULL;
    char latest[SNAP_ID_SIZE] = "";
    size_t n;
    *count = 0;
    if (snap_repo_list(store, cluster, &list, &n, err))
        return -1;
    bool has_latest = snap_repo_latest(store, cluster, latest);
    *ids = calloc(n + 1, SNAP_ID_SIZE);
    if (!*ids)
        return mcfs_fail_errno(err, ENOMEM, "list of snapshots");
    if (has_latest)
        memcpy((*ids)[(*count)++], latest, SNAP_ID_SIZE);
    for (size_t i = 0; i < n; i++)
        if (!has_latest || strcmp(list[i].id, latest) < 0)
            memcpy((*ids)[(*count)++], list[i].id, SNAP_ID_SIZE);
    return 0;
}

/* ---- new ids ---- */

static void format_id(const struct tm *tm, unsigned ms, char id[SNAP_ID_SIZE])
{
    char when[32];
    strftime(when, sizeof(when), "%Y%m%d_%H%M%S", tm);
    snprintf(id, SNAP_ID_SIZE, "%.15s_%03u", when, ms % 1000);
}

/* The id one ms later, in the calendar's own arithmetic: an hour that comes twice when summer time
 * ends does not bring an id back. */
static void id_after(const char *id, char next[SNAP_ID_SIZE])
{
    struct tm tm = {0};
    unsigned ms = 0;
    if (sscanf(id, "%4d%2d%2d_%2d%2d%2d_%3u", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour,
               &tm.tm_min, &tm.tm_sec, &ms) != 7)
        return;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    time_t sec = timegm(&tm) + (ms == 999);
    gmtime_r(&sec, &tm);
    format_id(&tm, ms + 1, next);
}

int snap_repo_new_id(struct mcfs_object_store *store, const char *cluster, char id[SNAP_ID_SIZE],
                     struct mcfs_error *err)
{
    _cleanup_free_ struct repo_item *items = NULL;
    size_t count;
    if (repo_items(store, cluster, &items, &count, err))
        return -1;
    int64_t ms = mcfs_wall_ms();
    time_t sec = (time_t)(ms / 1000);
    struct tm tm;
    localtime_r(&sec, &tm);
    format_id(&tm, (unsigned)(ms % 1000), id);
    /* Ids sort as text: a new one is the greatest even when the clock went back. */
    if (count && strcmp(id, items[0].entry.id) <= 0)
        id_after(items[0].entry.id, id);
    return 0;
}
