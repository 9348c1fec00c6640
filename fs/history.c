/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/history.h"

#include "common/cleanup.h"
#include "fs/history_index.h"
#include "fs/namespace.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#define OPEN_MAX 4     /* indexes that are kept mapped */
#define STILL_THERE 10 /* seconds for which a snapshot's names are cached */

struct history {
    char *dir;
    pthread_mutex_t making; /* one index is made at a time */
    pthread_mutex_t lock;   /* guards the rest */
    struct slot {
        struct history_index *index;
        uint32_t users;
        uint64_t used; /* for the least recently used to go */
    } slots[OPEN_MAX];
    uint64_t clock;
};

struct history *history_new(const char *dir)
{
    struct history *h = calloc(1, sizeof(*h));
    if (!h || !(h->dir = strdup(dir))) {
        free(h);
        return NULL;
    }
    pthread_mutex_init(&h->making, NULL);
    pthread_mutex_init(&h->lock, NULL);
    return h;
}

void history_free(struct history *h)
{
    if (!h)
        return;
    for (int i = 0; i < OPEN_MAX; i++)
        history_index_close(h->slots[i].index);
    pthread_mutex_destroy(&h->making);
    pthread_mutex_destroy(&h->lock);
    free(h->dir);
    free(h);
}

/* ---- indexes in use ---- */

static bool cancelled(void *arg)
{
    const struct mcfs_cancel *c = arg;
    struct pollfd p = {.fd = c ? c->fd : -1, .events = POLLIN};
    return p.fd >= 0 && poll(&p, 1, 0) > 0;
}

static struct history_index *find_open(struct history *h, const char *id)
{
    MCFS_LOCK_SCOPE(&h->lock);
    for (int i = 0; i < OPEN_MAX; i++)
        if (h->slots[i].index && strcmp(history_index_id(h->slots[i].index), id) == 0) {
            h->slots[i].users++;
            h->slots[i].used = ++h->clock;
            return h->slots[i].index;
        }
    return NULL;
}

/* Takes a slot from the one that has not been used for longest; where all are in use the index is
 * its user's alone. */
static void keep_open(struct history *h, struct history_index *x)
{
    struct slot *oldest = NULL;
    MCFS_LOCK_SCOPE(&h->lock);
    for (int i = 0; i < OPEN_MAX; i++)
        if (!h->slots[i].users && (!oldest || h->slots[i].used < oldest->used))
            oldest = &h->slots[i];
    if (!oldest)
        return;
    history_index_close(oldest->index);
    *oldest = (struct slot){x, 1, ++h->clock};
}

static void put_index(struct history *h, struct history_index *x)
{
    MCFS_LOCK_SCOPE(&h->lock);
    for (int i = 0; i < OPEN_MAX; i++)
        if (h->slots[i].index == x) {
            h->slots[i].users--;
            return;
        }
    history_index_close(x);
}

/* Indexes of snapshots that are no more. */
static void sweep(struct fs *fs, struct mcfs_object_store *store)
{
    struct snap_entry *list;
    size_t count;
    DIR *dir = opendir(fs->history->dir);
    struct dirent *e;
    if (!dir)
        return;
    if (snap_repo_list(store, "", &list, &count, NULL) == 0) {
        while ((e = readdir(dir))) {
            bool known = e->d_name[0] == '.';
            for (size_t i = 0; i < count && !known; i++)
                known = strncmp(e->d_name, list[i].id, SNAP_ID_SIZE - 1) == 0;
            if (!known)
                unlinkat(dirfd(dir), e->d_name, 0);
        }
        free(list);
    }
    closedir(dir);
}

static struct history_index *get_index(struct fs *fs, const char *id,
                                       const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct history *h = fs->history;
    struct history_index *x = find_open(h, id);
    struct timespec until;
    if (x)
        return x;
    do {
        if (cancelled((void *)(uintptr_t)cancel)) {
            mcfs_fail_errno(err, EINTR, "history");
            return NULL;
        }
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
    } while (pthread_mutex_timedlock(&h->making, &until));
    x = find_open(h, id);
    struct mcfs_object_store *store =
        x ? NULL : mcfs_master_snapshot_store(node_master(fs->node), err);
    if (store) {
        x = history_index_open(h->dir, store, "", id, cancelled, (void *)(uintptr_t)cancel, err);
        if (x)
            keep_open(h, x);
        sweep(fs, store);
        store->ops->close(store);
    }
    pthread_mutex_unlock(&h->making);
    return x;
}

/* ---- names ---- */

/* Where an inode of a snapshot's directory lies: its name's tenant is "<id>/<tenant>". */
struct where {
    char id[SNAP_ID_SIZE];
    struct mcfs_slice tenant;
    uint32_t number; /* of the tenant */
    struct history_index *index;
};

static int enter(struct fs *fs, const struct inode *inode, struct where *w,
                 const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_slice name = inode_tenant(inode);
    const char *tenant;
    snprintf(w->id, sizeof(w->id), "%.*s", (int)MCFS_MIN(name.len, (size_t)SNAP_ID_SIZE - 1),
             name.data);
    w->tenant = mcfs_slice(name.data + SNAP_ID_SIZE, name.len - SNAP_ID_SIZE);
    w->index = get_index(fs, w->id, cancel, err);
    if (!w->index)
        return -1;
    for (w->number = 0; (tenant = history_index_tenant(w->index, w->number)); w->number++)
        if (mcfs_slice_eq(mcfs_slice_str(tenant), w->tenant))
            return 0;
    put_index(fs->history, w->index);
    return mcfs_fail_errno(err, ENOENT, "history/%s", w->id);
}

static const struct history_entry *find_key(const struct where *w, struct mcfs_slice key)
{
    uint64_t i = history_index_find(w->index, w->number, key, false);
    if (i >= history_index_end(w->index, w->number))
        return NULL;
    const struct history_entry *e = history_index_entry(w->index, i);
    return mcfs_slice_eq(history_index_key(w->index, e), key) ? e : NULL;
}

static bool has_below(const struct where *w, struct mcfs_slice prefix)
{
    return history_index_find(w->index, w->number, prefix, false) <
           history_index_find(w->index, w->number, prefix, true);
}

static int give(struct fs *fs, struct inode *inode, struct fuse_entry_param *e,
                struct mcfs_error *err)
{
    if (!inode)
        return mcfs_fail_errno(err, ENOMEM, "lookup");
    fs_fill_entry(fs, inode, STILL_THERE, e);
    inode_give_to_kernel(fs->inodes, inode);
    return 0;
}

static void init_file(struct inode *inode, void *arg)
{
    const struct history_entry *e = arg;
    inode->size = e->size;
    inode->attr = (struct mcfs_attr){e->mode & 07777, e->uid, e->gid, e->mtime_ns};
}

static int lookup_key(struct fs *fs, struct inode *parent, const char *name, struct where *w,
                      struct fuse_entry_param *e, struct mcfs_error *err)
{
    struct mcfs_slice prefix = inode_key(parent), tenant = inode_tenant(parent);
    _cleanup_buf_ struct mcfs_buf key = MCFS_BUF_INIT;
    mcfs_buf_append(&key, prefix.data, prefix.len);
    enum name_kind kind = namespace_decode(mcfs_slice_str(name), &key);
    if (kind == NAME_SELF && key.len && key.data[key.len - 1] == '/')
        key.len--;
    else if (kind == NAME_PLAIN)
        mcfs_buf_append(&key, "/", 1);
    if (key.failed)
        return mcfs_fail_errno(err, ENOMEM, "lookup");
    if (!key.data)
        return mcfs_fail_errno(err, ENOENT, "%s", name);
    bool dir =
        (kind == NAME_PLAIN || kind == NAME_PIECE) && has_below(w, mcfs_slice(key.data, key.len));
    if (dir)
        return give(fs,
                    inode_get(fs->inodes, INODE_HISTORY_DIR, tenant, mcfs_slice(key.data, key.len),
                              0, NULL, NULL),
                    e, err);
    key.len -= kind == NAME_PLAIN;
    const struct history_entry *found =
        kind == NAME_PLAIN || kind == NAME_SELF ? find_key(w, mcfs_slice(key.data, key.len)) : NULL;
    if (!found)
        return mcfs_fail_errno(err, ENOENT, "%s", name);
    return give(fs,
                inode_get(fs->inodes, INODE_HISTORY_FILE, tenant, mcfs_slice(key.data, key.len),
                          found->version, init_file, (void *)(uintptr_t)found),
                e, err);
}

/* Whether this mount may see the tenant. */
static bool may_see(const struct fs *fs, const char *tenant)
{
    return !fs->options->tenant || strcmp(fs->options->tenant, tenant) == 0;
}

static int lookup_tenant(struct fs *fs, struct inode *parent, const char *name,
                         const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                         struct mcfs_error *err)
{
    struct mcfs_slice id = inode_key(parent);
    char both[SNAP_ID_SIZE + MCFS_TENANT_MAX + 2], text[SNAP_ID_SIZE];
    const char *tenant;
    bool found = false;
    snprintf(text, sizeof(text), "%.*s", MCFS_SLICE_ARG(id));
    struct history_index *x = get_index(fs, text, cancel, err);
    if (!x)
        return -1;
    for (uint32_t i = 0; !found && (tenant = history_index_tenant(x, i)); i++)
        found = strcmp(tenant, name) == 0 && may_see(fs, tenant);
    put_index(fs->history, x);
    if (!found)
        return mcfs_fail_errno(err, ENOENT, "%s", name);
    snprintf(both, sizeof(both), "%s/%s", text, name);
    return give(fs,
                inode_get(fs->inodes, INODE_HISTORY_DIR, mcfs_slice_str(both), mcfs_slice("", 0), 0,
                          NULL, NULL),
                e, err);
}

struct match {
    const char *id;
    int64_t created_ms;
    bool found;
};

static void match_id(const struct mcfs_master_snapshot *s, void *arg)
{
    struct match *m = arg;
    if (strcmp(s->id, m->id) != 0)
        return;
    m->found = true;
    m->created_ms = s->created_ms;
}

int history_lookup(struct fs *fs, struct inode *parent, const char *name,
                   const struct mcfs_cancel *cancel, struct fuse_entry_param *e,
                   struct mcfs_error *err)
{
    if (parent->kind == INODE_HISTORY_SNAPSHOT)
        return lookup_tenant(fs, parent, name, cancel, e, err);
    if (parent->kind == INODE_HISTORY_DIR) {
        struct where w;
        if (enter(fs, parent, &w, cancel, err))
            return -1;
        int rc = lookup_key(fs, parent, name, &w, e, err);
        put_index(fs->history, w.index);
        return rc;
    }
    struct match m = {.id = name};
    if (mcfs_master_snapshots(node_master(fs->node), match_id, &m, cancel, err))
        return -1;
    if (!m.found)
        return mcfs_fail_errno(err, ENOENT, "%s", name);
    struct inode *inode = inode_get(fs->inodes, INODE_HISTORY_SNAPSHOT, mcfs_slice("", 0),
                                    mcfs_slice_str(name), 0, NULL, NULL);
    if (inode) {
        MCFS_LOCK_SCOPE(&inode->lock);
        inode->attr.mtime_ns = m.created_ms * 1000000;
    }
    return give(fs, inode, e, err);
}

/* ---- listing ---- */

struct emitter {
    void (*emit)(const char *name, enum inode_kind kind, uint64_t size, int64_t mtime_ns,
                 void *arg);
    void *arg;
};

static void emit_snapshot(const struct mcfs_master_snapshot *s, void *arg)
{
    const struct emitter *em = arg;
    em->emit(s->id, INODE_HISTORY_SNAPSHOT, 0, s->created_ms * 1000000, em->arg);
}

/* Emits one child of the directory and returns the place of the entry behind all that is below. */
static uint64_t list_child(const struct where *w, struct mcfs_slice prefix, uint64_t at,
                           struct mcfs_buf *name, const struct emitter *em)
{
    const struct history_entry *e = history_index_entry(w->index, at);
    struct mcfs_slice key = history_index_key(w->index, e);
    struct mcfs_slice rest = mcfs_slice(key.data + prefix.len, key.len - prefix.len);
    const char *slash = rest.len ? memchr(rest.data, '/', rest.len) : NULL;
    struct mcfs_slice part = mcfs_slice(rest.data, slash ? (size_t)(slash - rest.data) : rest.len);
    mcfs_buf_reset(name);
    size_t covered = namespace_encode_piece(part, 0, name);
    mcfs_buf_append(name, "", 1);
    bool piece = covered < part.len;
    /* The prefix of what is below: the part with its '/', or the piece of it. */
    char below[MCFS_KEY_MAX + 1];
    size_t len = prefix.len + (piece ? covered : part.len);
    memcpy(below, key.data, len);
    if (!piece)
        below[len++] = '/';
    if (name->failed)
        return at + 1;
    if (piece || slash || has_below(w, mcfs_slice(below, len))) {
        em->emit((char *)name->data, INODE_HISTORY_DIR, 0, 0, em->arg);
        /* The object itself, if there is one, is shown in its directory as "%=". */
        return slash || piece
                   ? history_index_find(w->index, w->number, mcfs_slice(below, len), true)
                   : at + 1;
    }
    em->emit((char *)name->data, INODE_HISTORY_FILE, e->size, e->mtime_ns, em->arg);
    return at + 1;
}

/* Whether the directory was emitted for its object already: then not once more. */
static bool shown_by_object(const struct where *w, struct mcfs_slice prefix, uint64_t at)
{
    struct mcfs_slice key = history_index_key(w->index, history_index_entry(w->index, at));
    const char *slash = memchr(key.data + prefix.len, '/', key.len - prefix.len);
    return slash && find_key(w, mcfs_slice(key.data, (size_t)(slash - key.data)));
}

static void list_keys(const struct where *w, struct mcfs_slice prefix, const struct emitter *em)
{
    _cleanup_buf_ struct mcfs_buf name = MCFS_BUF_INIT;
    uint64_t at = history_index_find(w->index, w->number, prefix, false);
    uint64_t end = history_index_find(w->index, w->number, prefix, true);
    if (prefix.len && prefix.data[prefix.len - 1] == '/') {
        const struct history_entry *self = find_key(w, mcfs_slice(prefix.data, prefix.len - 1));
        if (self)
            em->emit("%=", INODE_HISTORY_FILE, self->size, self->mtime_ns, em->arg);
    }
    while (at < end) {
        struct mcfs_slice key = history_index_key(w->index, history_index_entry(w->index, at));
        if (key.len < prefix.len || key.len > MCFS_KEY_MAX) {
            at++; /* a damaged entry */
        } else if (shown_by_object(w, prefix, at)) {
            const char *slash = memchr(key.data + prefix.len, '/', key.len - prefix.len);
            at = history_index_find(w->index, w->number,
                                    mcfs_slice(key.data, (size_t)(slash - key.data) + 1), true);
        } else {
            at = list_child(w, prefix, at, &name, em);
        }
    }
}

static int list_tenants(struct fs *fs, struct inode *dir, const struct emitter *em,
                        const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    char id[SNAP_ID_SIZE];
    const char *tenant;
    snprintf(id, sizeof(id), "%.*s", MCFS_SLICE_ARG(inode_key(dir)));
    struct history_index *x = get_index(fs, id, cancel, err);
    if (!x)
        return -1;
    for (uint32_t i = 0; (tenant = history_index_tenant(x, i)); i++)
        if (*tenant && !strchr(tenant, '/') && may_see(fs, tenant))
            em->emit(tenant, INODE_HISTORY_DIR, 0, 0, em->arg);
    put_index(fs->history, x);
    return 0;
}

int history_list(struct fs *fs, struct inode *dir,
                 void (*emit)(const char *name, enum inode_kind kind, uint64_t size,
                              int64_t mtime_ns, void *arg),
                 void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct emitter em = {emit, arg};
    struct where w;
    if (dir->kind == INODE_HISTORY)
        return mcfs_master_snapshots(node_master(fs->node), emit_snapshot, &em, cancel, err);
    if (dir->kind == INODE_HISTORY_SNAPSHOT)
        return list_tenants(fs, dir, &em, cancel, err);
    if (enter(fs, dir, &w, cancel, err))
        return -1;
    list_keys(&w, inode_key(dir), &em);
    put_index(fs->history, w.index);
    return 0;
}

/* ---- bytes and extended attributes ---- */

static struct mcfs_slice real_tenant(const struct inode *inode)
{
    struct mcfs_slice name = inode_tenant(inode);
    return mcfs_slice(name.data + SNAP_ID_SIZE, name.len - SNAP_ID_SIZE);
}

struct replica_reader *history_open(struct fs *fs, const struct inode *inode,
                                    const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_slice tenant = real_tenant(inode), key = inode_key(inode);
    struct mcfs_master_object object;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    /* The master's word comes first: it gives the lease under which the bytes stay. */
    struct replica_reader *r = node_open(fs->node, tenant, key, &object, cancel, &bad);
    if (r && object.version == inode->version)
        return r;
    node_reader_close(r);
    if (r || bad.code == MCFS_OBJECT_NOT_FOUND || bad.errnum == ENOENT)
        mcfs_fail_errno(err, ENODATA, "%.*s: no replica of that version is left",
                        (int)MCFS_MIN(key.len, 160), key.data);
    else
        *err = bad;
    return NULL;
}

struct replicas_of {
    struct mcfs_slice tenant, key;
    json_t *list;
};

static int collect_replicas(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct replicas_of *f = arg;
    (void)err;
    if (!mcfs_slice_eq(o->key, f->key) || !mcfs_slice_eq(o->tenant, f->tenant))
        return 0;
    for (uint32_t i = 0; i < o->replica_count; i++)
        json_array_append_new(
            f->list,
            json_pack("{s:I, s:i, s:i, s:I, s:o}", "id", (json_int_t)o->replicas[i].id, "type",
                      (int)o->replicas[i].type, "status", (int)o->replicas[i].status, "size",
                      (json_int_t)o->replicas[i].size, "endpoint",
                      json_stringn(o->replicas[i].endpoint.data, o->replicas[i].endpoint.len)));
    return 0;
}

/* Its shard is decoded once more: nobody asks for all objects' replicas. */
static int put_replicas(struct fs *fs, const struct where *w, const struct history_entry *e,
                        struct mcfs_buf *out, struct mcfs_error *err)
{
    struct mcfs_object_store *store = mcfs_master_snapshot_store(node_master(fs->node), err);
    struct replicas_of f = {w->tenant, history_index_key(w->index, e), json_array()};
    struct snap_reader *r = store ? snap_reader_open_lazily(store, "", w->id, err) : NULL;
    int rc = r ? snap_reader_shard(r, e->place, collect_replicas, &f, err) : -1;
    char *text = rc == 0 ? json_dumps(f.list, JSON_COMPACT) : NULL;
    if (text)
        mcfs_buf_append_str(out, text);
    free(text);
    json_decref(f.list);
    snap_reader_close(r);
    if (store)
        store->ops->close(store);
    return rc;
}

int history_xattr(struct fs *fs, const struct inode *inode, const char *name,
                  const struct mcfs_cancel *cancel, struct mcfs_buf *out, struct mcfs_error *err)
{
    struct where w;
    if (enter(fs, inode, &w, cancel, err))
        return -1;
    const struct history_entry *e = find_key(&w, inode_key(inode));
    int rc = 0;
    if (!e)
        rc = mcfs_fail_errno(err, ENODATA, "xattr");
    else if (strcmp(name, "key") == 0)
        mcfs_buf_append(out, inode_key(inode).data, inode_key(inode).len);
    else if (strcmp(name, "tenant") == 0)
        mcfs_buf_append(out, w.tenant.data, w.tenant.len);
    else if (strcmp(name, "size") == 0)
        mcfs_buf_printf(out, "%" PRIu64, e->size);
    else if (strcmp(name, "version") == 0)
        mcfs_buf_printf(out, "%" PRIu64, e->version);
    else if (strcmp(name, "data_type") == 0)
        mcfs_buf_printf(out, "%u", e->data_type);
    else if (strcmp(name, "hard_pin") == 0)
        mcfs_buf_printf(out, "%u", e->hard_pin);
    else if (strcmp(name, "replicas") == 0)
        rc = put_replicas(fs, &w, e, out, err);
    else
        rc = mcfs_fail_errno(err, ENODATA, "xattr");
    put_index(fs->history, w.index);
    return rc;
}
