/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing.  A directory of keys is listed in three parts: "." and ".."; what only this mount has
 * (kept directories, temporary names, the directory's own object "%="), taken down when the
 * directory is opened; and what the master lists, batch by batch.  Offsets say part and place, and
 * the master's places are stable, so that a listing resumes anywhere.
 */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/table.h"
#include "fs/fs.h"
#include "fs/namespace.h"

#include <dirent.h>

#define BATCH_FIRST 512
#define BATCH_MAX 8192
#define PART_SHIFT 60
#define PART_DOTS 0ull
#define PART_LOCAL 1ull
#define PART_MASTER 2ull
#define PLACE_MASK ((1ull << PART_SHIFT) - 1)

struct item {
    uint32_t name; /* encoded, in the list's names */
    enum inode_kind kind;
    ino_t ino;
    uint64_t next; /* offset behind it */
};

struct items {
    struct item *v;
    size_t count, cap;
    struct mcfs_buf names; /* each ends in NUL */
    bool failed;
};

struct dir_handle {
    struct opened opened;
    pthread_mutex_t lock; /* one reader of a handle at a time */
    struct inode *inode;
    struct items local;
    struct items batch;   /* of the master */
    uint32_t batch_size;  /* entries to ask for */
    uint64_t batch_start; /* cookie that the batch begins behind */
    uint64_t batch_next;  /* cookie to go on with; 0: this is the last one */
    size_t batch_at;      /* the entry that was listed last, for the next request */
    bool begun;           /* `local` is filled */
    bool listed;          /* something has been read since */
    bool have_batch;
    struct mcfs_table pieces; /* of long names that were listed already */
    struct plus_answer plus;
};

static struct dir_handle *dir_of(const struct fuse_file_info *fi)
{
    return (struct dir_handle *)(uintptr_t)fi->fh;
}

static const char *item_name(const struct items *list, const struct item *item)
{
    return (const char *)list->names.data + item->name;
}

/* Adds an entry whose encoded name the caller has appended to the list's names from `name` on. */
static struct item *items_add(struct items *list, size_t name, enum inode_kind kind, ino_t ino)
{
    mcfs_buf_append(&list->names, "", 1);
    if (list->count == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 64;
        struct item *v = realloc(list->v, cap * sizeof(*v));
        list->failed |= !v;
        if (!v)
            return NULL;
        list->v = v;
        list->cap = cap;
    }
    list->failed |= list->names.failed;
    if (list->failed)
        return NULL;
    list->v[list->count] = (struct item){.name = (uint32_t)name, .kind = kind, .ino = ino};
    return &list->v[list->count++];
}

static void items_clear(struct items *list)
{
    mcfs_buf_reset(&list->names);
    list->count = 0;
    list->failed = false;
}

static void items_free(struct items *list)
{
    mcfs_buf_free(&list->names);
    free(list->v);
}

static uint64_t piece_hash(const void *e)
{
    return mcfs_hash(e, strlen(e));
}

static bool piece_eq(const void *e, const void *key)
{
    return strcmp(e, key) == 0;
}

/* Whether this piece is listed for the first time on this handle. */
static bool piece_is_new(struct dir_handle *d, const char *name)
{
    if (mcfs_table_find(&d->pieces, piece_hash(name), piece_eq, name))
        return false;
    char *copy = strdup(name);
    if (copy && mcfs_table_add(&d->pieces, copy))
        free(copy);
    return true;
}

static bool is_whole_prefix(struct mcfs_slice prefix)
{
    return prefix.len == 0 || prefix.data[prefix.len - 1] == '/';
}

/* Inode number of an entry: its key is the directory's prefix and a raw name. */
static ino_t entry_ino(const struct inode *dir, struct mcfs_slice name, bool is_dir)
{
    char text[2 * MCFS_KEY_MAX];
    struct mcfs_slice prefix = inode_key(dir);
    size_t len = prefix.len + name.len;
    if (len + 1 > sizeof(text))
        return 2;
    memcpy(text, prefix.data, prefix.len);
    memcpy(text + prefix.len, name.data, name.len);
    text[len] = '/';
    return fs_ino(inode_tenant(dir), mcfs_slice(text, len + (is_dir && dir->kind == INODE_DIR)),
                  is_dir);
}

/* ---- what only this mount has ---- */

static void add_encoded(struct dir_handle *d, struct mcfs_slice raw, enum inode_kind kind)
{
    size_t at = d->local.names.len;
    namespace_encode(raw, &d->local.names);
    if (d->local.names.len - at > NAME_PIECE_MAX)
        d->local.names.len = at;
    else
        items_add(&d->local, at, kind, entry_ino(d->inode, raw, kind == INODE_DIR));
}

static void add_kept(struct mcfs_slice name, const struct mcfs_attr *attr, void *arg)
{
    (void)attr;
    add_encoded(arg, name, INODE_DIR);
}

static void add_temp(struct mcfs_slice name, struct inode *inode, void *arg)
{
    (void)inode;
    add_encoded(arg, name, INODE_TEMP);
}

static void add_view(const char *name, enum inode_kind kind, uint64_t size, int64_t mtime_ns,
                     void *arg)
{
    struct dir_handle *d = arg;
    size_t at = d->local.names.len;
    (void)size;
    (void)mtime_ns;
    mcfs_buf_append_str(&d->local.names, name);
    items_add(&d->local, at, kind,
              entry_ino(d->inode, mcfs_slice_str(name), inode_kind_is_dir(kind)));
}

static int gather_local(struct fs *fs, struct dir_handle *d, const struct mcfs_cancel *cancel,
                        struct mcfs_error *err)
{
    struct inode *inode = d->inode;
    struct mcfs_slice tenant = inode_tenant(inode), prefix = inode_key(inode);
    if (inode->kind != INODE_DIR)
        return view_list(fs, inode, add_view, d, cancel, err);
    if (!is_whole_prefix(prefix))
        return 0;
    local_dirs_children(fs->dirs, tenant, prefix, add_kept, d);
    temp_names_children(fs->temps, tenant, prefix, add_temp, d);
    if (prefix.len > 1) {
        struct mcfs_master_lookup found;
        struct mcfs_slice key = mcfs_slice(prefix.data, prefix.len - 1);
        if (mcfs_master_lookup(node_master(fs->node), tenant, key, &found, cancel, err))
            return -1;
        if (found.has_object) {
            size_t at = d->local.names.len;
            mcfs_buf_append_str(&d->local.names, "%=");
            items_add(&d->local, at, INODE_FILE, fs_ino(tenant, key, false));
        }
    }
    return d->local.failed ? mcfs_fail_errno(err, ENOMEM, "opendir") : 0;
}

/* ---- what the master lists ---- */

struct fill {
    struct fs *fs;
    struct dir_handle *d;
    struct mcfs_slice within; /* of a piece's directory: the beginning of the component */
};

static bool is_kept(const struct fill *f, struct mcfs_slice name)
{
    struct mcfs_slice prefix = inode_key(f->d->inode);
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    mcfs_buf_append(&b, prefix.data, prefix.len);
    mcfs_buf_append(&b, name.data, name.len);
    mcfs_buf_append(&b, "/", 1);
    return !b.failed && local_dirs_get(f->fs->dirs, inode_tenant(f->d->inode),
                                       mcfs_slice(b.data, b.len), NULL, NULL);
}

static void add_entry(const struct mcfs_master_name *e, void *arg)
{
    struct fill *f = arg;
    struct items *list = &f->d->batch;
    if (e->shadowed)
        return; /* the directory of that name shows it as "%=" */
    if (e->name.len < f->within.len || memcmp(e->name.data, f->within.data, f->within.len) != 0 ||
        (f->within.len && e->name.len == f->within.len))
        return;
    struct mcfs_slice rest = mcfs_slice(e->name.data + f->within.len, e->name.len - f->within.len);
    if (e->is_dir && !f->within.len && is_kept(f, e->name))
        return; /* listed among the local ones */
    size_t at = list->names.len, covered = namespace_encode_piece(rest, 0, &list->names);
    bool whole = covered == rest.len, is_dir = e->is_dir || !whole;
    ino_t ino = entry_ino(f->d->inode, mcfs_slice(rest.data, covered), is_dir && whole);
    struct item *item = items_add(list, at, is_dir ? INODE_DIR : INODE_FILE, ino);
    if (!item)
        return;
    item->next = e->cookie;
    if (!whole && !piece_is_new(f->d, item_name(list, item))) {
        list->count--;
        list->names.len = at;
    }
}

static int fetch(struct fs *fs, struct dir_handle *d, uint64_t cookie,
                 const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_slice prefix = inode_key(d->inode);
    struct fill f = {fs, d, {"", 0}};
    if (!is_whole_prefix(prefix)) {
        const char *slash = memrchr(prefix.data, '/', prefix.len);
        size_t dir = slash ? (size_t)(slash - prefix.data) + 1 : 0;
        f.within = mcfs_slice(prefix.data + dir, prefix.len - dir);
        prefix.len = dir;
    }
    d->batch_start = cookie;
    d->batch_at = 0;
    d->have_batch = true;
    /* Who has come so far is likely to go on. */
    d->batch_size = d->batch_size ? MCFS_MIN(d->batch_size * 2, BATCH_MAX) : BATCH_FIRST;
    do {
        items_clear(&d->batch);
        if (mcfs_master_list_names(node_master(fs->node), inode_tenant(d->inode), prefix, cookie,
                                   d->batch_size, add_entry, &f, &d->batch_next, cancel, err)) {
            d->have_batch = false;
            if (!err || err->code != MCFS_OBJECT_NOT_FOUND)
                return -1;
            d->batch_next = 0; /* kept by this mount, empty for the master */
            d->have_batch = true;
            return 0;
        }
        cookie = d->batch_next;
    } while (d->batch.count == 0 && d->batch_next && !d->batch.failed);
    return d->batch.failed ? mcfs_fail_errno(err, ENOMEM, "readdir") : 0;
}

/* ---- replies ---- */

static void forget_pieces(struct dir_handle *d)
{
    char *piece;
    for (size_t i = 0; (piece = mcfs_table_next(&d->pieces, &i));)
        free(piece);
    mcfs_table_free(&d->pieces);
    d->pieces = (struct mcfs_table)MCFS_TABLE_INIT(piece_hash);
}

/* A listing begins, for the first time or again (rewinddir): with what is there now. */
static int begin_listing(struct fs *fs, struct dir_handle *d, const struct mcfs_cancel *cancel,
                         struct mcfs_error *err)
{
    forget_pieces(d);
    items_clear(&d->local);
    d->have_batch = false;
    d->begun = gather_local(fs, d, cancel, err) == 0;
    d->listed = false;
    return d->begun ? 0 : -1;
}

static void dir_free(struct fs *fs, struct dir_handle *d)
{
    opened_remove(&fs->opened, &d->opened);
    plus_done(fs->plus, &d->plus);
    forget_pieces(d);
    items_free(&d->local);
    items_free(&d->batch);
    inode_unref(fs->inodes, d->inode);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static void release_opened(struct fs *fs, struct opened *o)
{
    dir_free(fs, MCFS_CONTAINER_OF(o, struct dir_handle, opened));
}

void fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct dir_handle *d = calloc(1, sizeof(*d));
    if (!d) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    pthread_mutex_init(&d->lock, NULL);
    d->inode = inode_ref(fs->inodes, inode);
    d->opened.release = release_opened;
    opened_add(&fs->opened, &d->opened);
    d->pieces = (struct mcfs_table)MCFS_TABLE_INIT(piece_hash);
    fi->fh = (uint64_t)(uintptr_t)d;
    struct fs_cancel c;
    struct mcfs_error err = MCFS_ERROR_INIT;
    fs_cancel_begin(&c, req);
    /* Here already: readdir(3) takes ENOENT for the end of the directory. */
    int rc = begin_listing(fs, d, &c.cancel, &err);
    fs_cancel_end(&c);
    if (rc) {
        dir_free(fs, d);
        fs_reply_error(req, &err);
    } else if (fuse_reply_open(req, fi) == -ENOENT) {
        dir_free(fs, d);
    }
}

void fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    (void)ino;
    dir_free(fs_of(req), dir_of(fi));
    fuse_reply_err(req, 0);
}

struct reply_buf {
    fuse_req_t req;
    struct fs *fs;
    struct dir_handle *d;
    char *data;
    size_t size, used;
    bool plus; /* with what the names are */
    const struct mcfs_cancel *cancel;
};

static mode_t item_type(const struct item *item)
{
    if (inode_kind_is_dir(item->kind))
        return S_IFDIR;
    return item->kind == INODE_LATEST ? S_IFLNK : S_IFREG;
}

static bool put_entry(struct reply_buf *r, const char *name, const struct fuse_entry_param *e,
                      uint64_t next)
{
    char *to = r->data + r->used;
    size_t left = r->size - r->used;
    size_t need = r->plus ? fuse_add_direntry_plus(r->req, to, left, name, e, (off_t)next)
                          : fuse_add_direntry(r->req, to, left, name, &e->attr, (off_t)next);
    if (need > left)
        return false;
    r->used += need;
    return true;
}

static bool put_name(struct reply_buf *r, const char *name, ino_t ino, mode_t type, uint64_t next)
{
    const struct fuse_entry_param e = {.attr = {.st_ino = ino, .st_mode = type}};
    return put_entry(r, name, &e, next);
}

/* What a name is, with a reference of the kernel's; false unless it is an object whose lease lasts.
 */
static bool resolve_leased(struct reply_buf *r, const char *name, struct fuse_entry_param *e)
{
    struct fs *fs = r->fs;
    if (fs_resolve(fs, r->d->inode, name, fuse_req_ctx(r->req)->pid, r->cancel, e, NULL))
        return false;
    if (e->entry_timeout > 0 && S_ISREG(e->attr.st_mode))
        return true;
    inode_forget(fs->inodes, inode_from(fs->inodes, e->ino), 1);
    return false;
}

/* One of the master's, with what it is where that is asked for. */
static bool put_item(struct reply_buf *r, const struct item *item)
{
    const char *name = item_name(&r->d->batch, item);
    uint64_t next = item->next | PART_MASTER << PART_SHIFT;
    struct fuse_entry_param e;
    if (r->plus && item->kind == INODE_FILE &&
        fuse_add_direntry_plus(r->req, NULL, 0, name, NULL, 0) <= r->size - r->used &&
        resolve_leased(r, name, &e))
        return put_entry(r, name, &e, next);
    return put_name(r, name, item->ino, item_type(item), next);
}

static bool list_dots(struct reply_buf *r, uint64_t *place)
{
    static const char *const dots[] = {".", ".."};
    for (; *place < 2; ++*place) {
        uint64_t next = *place == 1 ? PART_LOCAL << PART_SHIFT : *place + 1;
        if (!put_name(r, dots[*place], *place == 0 ? inode_nodeid(r->d->inode) : 1, S_IFDIR, next))
            return false;
    }
    return true;
}

static bool list_local(struct reply_buf *r, uint64_t *place)
{
    for (; *place < r->d->local.count; ++*place) {
        const struct item *item = &r->d->local.v[*place];
        if (!put_name(r, item_name(&r->d->local, item), item->ino, item_type(item),
                      PART_LOCAL << PART_SHIFT | (*place + 1)))
            return false;
    }
    return true;
}

/* The entry of the batch that a place comes before; -1 when the place lies elsewhere. */
static ssize_t find_in_batch(const struct dir_handle *d, uint64_t cookie)
{
    if (!d->have_batch)
        return -1;
    if (cookie == d->batch_start)
        return 0;
    if (d->batch_at < d->batch.count && d->batch.v[d->batch_at].next == cookie)
        return (ssize_t)d->batch_at + 1;
    for (size_t i = 0; i < d->batch.count; i++)
        if (d->batch.v[i].next == cookie)
            return (ssize_t)i + 1;
    return -1;
}

/* Fills the reply from the master's batches; -1 on error. */
static int list_master(struct reply_buf *r, uint64_t cookie, const struct mcfs_cancel *cancel,
                       struct mcfs_error *err)
{
    struct dir_handle *d = r->d;
    ssize_t found = find_in_batch(d, cookie);
    size_t i = found < 0 ? 0 : (size_t)found;
    if (found < 0 && fetch(r->fs, d, cookie, cancel, err))
        return -1;
    for (;; i = 0) {
        for (; i < d->batch.count; i++) {
            if (!put_item(r, &d->batch.v[i]))
                return 0;
            d->batch_at = i;
        }
        if (!d->batch_next)
            return 0;
        if (fetch(r->fs, d, d->batch_next, cancel, err))
            return r->used ? 0 : -1;
    }
}

/* Fills the reply from an offset on; -1 on error.  The caller holds the handle's lock. */
static int list_from(struct reply_buf *r, uint64_t off, struct mcfs_error *err)
{
    struct dir_handle *d = r->d;
    uint64_t part = off >> PART_SHIFT, place = off & PLACE_MASK;
    bool more = true;
    if ((!d->begun || (off == 0 && d->listed)) && begin_listing(r->fs, d, r->cancel, err))
        return -1;
    d->listed = true;
    if (part == PART_DOTS) {
        more = list_dots(r, &place);
        part = PART_LOCAL;
        place = 0;
    }
    if (more && part == PART_LOCAL) {
        more = list_local(r, &place);
        part = PART_MASTER;
        place = 0;
    }
    return more && part == PART_MASTER && d->inode->kind == INODE_DIR
               ? list_master(r, place, r->cancel, err)
               : 0;
}

static void readdir_reply(fuse_req_t req, size_t size, off_t off, struct dir_handle *d, bool plus)
{
    struct fs *fs = fs_of(req);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    struct reply_buf r = {req, fs, d, malloc(size), size, 0, plus, &c.cancel};
    if (!r.data) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    atomic_fetch_add_explicit(&fs->counters.readdirs, 1, memory_order_relaxed);
    fs_cancel_begin(&c, req);
    pthread_mutex_lock(&d->lock);
    uint64_t began = plus_begin(fs->plus, &d->plus);
    int rc = list_from(&r, (uint64_t)off, &err);
    if (rc == 0 && plus && !plus_send(fs->plus, &d->plus, inode_nodeid(d->inode), began))
        plus_void(r.data, r.used);
    pthread_mutex_unlock(&d->lock);
    fs_cancel_end(&c);
    if (rc)
        fs_reply_error(req, &err);
    else
        rc = fuse_reply_buf(req, r.data, r.used);
    if (rc && plus)
        plus_forget(fs->inodes, r.data, r.used);
    free(r.data);
}

void fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    (void)ino;
    readdir_reply(req, size, off, dir_of(fi), false);
}

void fs_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi)
{
    (void)ino;
    readdir_reply(req, size, off, dir_of(fi), true);
}
