/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/temp_names.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mp.h"
#include "fs/loop.h"
#include "fs/staging_area.h"

#include <ctype.h>
#include <fnmatch.h>

#define KEEP_NS (86400ll * 1000000000)

struct temp_names {
    struct inode_table *inodes;
    struct staging_area *area;
    char *patterns;
    uint64_t memory_max;
    pthread_mutex_t lock; /* guards list; after an inode's lock */
    struct inode **list;
    size_t count, cap;
};

struct temp_names *temp_names_new(struct inode_table *inodes, struct staging_area *area,
                                  uint64_t memory_max, const char *patterns)
{
    struct temp_names *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->inodes = inodes;
    t->area = area;
    t->patterns = strdup(patterns ? patterns : "");
    t->memory_max = memory_max;
    pthread_mutex_init(&t->lock, NULL);
    return t;
}

void temp_names_free(struct temp_names *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->count; i++) {
        /* The file is what the next daemon finds. */
        staging_leave(t->list[i]->staging);
        t->list[i]->staging = NULL;
        inode_unref(t->inodes, t->list[i]);
    }
    free(t->list);
    pthread_mutex_destroy(&t->lock);
    free(t->patterns);
    free(t);
}

/* rsync's ".name.XXXXXX".  Six lower-case letters alone are left out: they are more often an
 * extension (".x.config") than one of rsync's, and a published temporary is only slower. */
static bool is_rsync_name(const char *name, size_t len)
{
    bool random = false;
    if (len < 9 || name[0] != '.' || name[len - 7] != '.')
        return false;
    for (size_t i = len - 6; i < len; i++) {
        if (!isalnum((unsigned char)name[i]))
            return false;
        random |= !islower((unsigned char)name[i]);
    }
    return random;
}

bool temp_names_match(const struct temp_names *t, struct mcfs_slice key)
{
    static const char *const globs[] = {"*.tmp", "*.tmp.*", "*.tmp-*", "*.part"};
    char text[NAME_MAX + 1], *save;
    const char *slash = key.len ? memrchr(key.data, '/', key.len) : NULL;
    size_t skip = slash ? (size_t)(slash + 1 - key.data) : 0;
    struct mcfs_slice name = mcfs_slice(key.data + skip, key.len - skip);
    if (name.len == 0 || name.len >= sizeof(text) || memchr(name.data, 0, name.len))
        return false;
    memcpy(text, name.data, name.len);
    text[name.len] = 0;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(globs); i++)
        if (fnmatch(globs[i], text, 0) == 0)
            return true;
    if (is_rsync_name(text, name.len))
        return true;
    if (!*t->patterns)
        return false;
    _cleanup_free_ char *patterns = strdup(t->patterns);
    for (char *p = patterns ? strtok_r(patterns, ":", &save) : NULL; p;
         p = strtok_r(NULL, ":", &save))
        if (fnmatch(p, text, 0) == 0)
            return true;
    return false;
}

static int list_add(struct temp_names *t, struct inode *inode)
{
    MCFS_LOCK_SCOPE(&t->lock);
    if (t->count == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 16;
        struct inode **list = realloc(t->list, cap * sizeof(struct inode *));
        if (!list)
            return -1;
        t->list = list;
        t->cap = cap;
    }
    t->list[t->count++] = inode_ref(t->inodes, inode);
    return 0;
}

static bool list_del(struct temp_names *t, struct inode *inode)
{
    MCFS_LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < t->count; i++) {
        if (t->list[i] == inode) {
            t->list[i] = t->list[--t->count];
            return true;
        }
    }
    return false;
}

struct inode *temp_names_find(struct temp_names *t, struct mcfs_slice tenant, struct mcfs_slice key)
{
    return inode_find(t->inodes, INODE_TEMP, tenant, key, 0);
}

struct inode *temp_names_create(struct temp_names *t, struct mcfs_slice tenant,
                                struct mcfs_slice key, const struct mcfs_attr *attr,
                                struct mcfs_error *err)
{
    struct inode *old = temp_names_find(t, tenant, key);
    if (old) {
        loop_may_wait();
        temp_names_drop(t, old);
        inode_unref(t->inodes, old);
    }
    struct staging *staging = staging_new(t->area, t->memory_max, err);
    struct inode *inode = staging ? inode_make(t->inodes, INODE_TEMP, tenant, key) : NULL;
    if (!inode || list_add(t, inode)) {
        inode_unref(t->inodes, inode);
        if (!inode)
            staging_free(staging);
        mcfs_fail_errno(err, ENOMEM, "temporary name");
        return NULL;
    }
    inode->staging = staging;
    inode->attr = *attr;
    inode->dirty = true;
    return inode;
}

int temp_names_keep(struct temp_names *t, struct inode *inode, struct mcfs_error *err)
{
    (void)t;
    if (!inode->dirty)
        return 0;
    _cleanup_buf_ struct mcfs_buf label = MCFS_BUF_INIT;
    mp_put_array(&label, 6);
    mp_put_str(&label, inode_tenant(inode));
    mp_put_str(&label, inode_key(inode));
    mp_put_uint(&label, inode->attr.mode);
    mp_put_uint(&label, inode->attr.uid);
    mp_put_uint(&label, inode->attr.gid);
    mp_put_int(&label, inode->attr.mtime_ns);
    if (staging_label(inode->staging, &label, err))
        return -1;
    inode->dirty = false;
    return 0;
}

int temp_names_sync(struct temp_names *t, struct inode *inode, struct mcfs_error *err)
{
    if (inode->synced && !inode->dirty)
        return 0;
    if (temp_names_keep(t, inode, err) || staging_sync(inode->staging, err))
        return -1;
    inode->synced = true;
    return 0;
}

bool temp_names_take_over(struct temp_names *t, struct inode *temp, struct inode *object)
{
    struct mcfs_slice key = inode_key(temp);
    MCFS_LOCK_SCOPE(&temp->lock);
    MCFS_LOCK_SCOPE(&object->lock);
    /* What passes through to a backing file cannot be opened in another way meanwhile. */
    if (object->passing_opens || list_add(t, object))
        return false;
    if (inode_rename(t->inodes, object, INODE_TEMP, key, 0)) {
        temp_names_forget(t, object);
        return false;
    }
    object->gone = false;
    object->staging = temp->staging;
    object->size = temp->size;
    object->attr = temp->attr;
    object->dirty = temp->dirty;
    temp->staging = NULL;
    temp->gone = true;
    inode_unlink(t->inodes, temp);
    temp_names_forget(t, temp);
    return true;
}

int temp_names_rename(struct temp_names *t, struct inode *inode, struct mcfs_slice key,
                      struct mcfs_error *err)
{
    struct inode *old = temp_names_find(t, inode_tenant(inode), key);
    if (old) {
        if (old != inode)
            temp_names_drop(t, old);
        inode_unref(t->inodes, old);
    }
    if (old == inode)
        return 0;
    MCFS_LOCK_SCOPE(&inode->lock);
    if (inode_rename(t->inodes, inode, INODE_TEMP, key, 0))
        return mcfs_fail_errno(err, ENOMEM, "rename");
    inode->dirty = true; /* the label has the old name */
    return temp_names_keep(t, inode, err);
}

void temp_names_drop(struct temp_names *t, struct inode *inode)
{
    if (!list_del(t, inode))
        return;
    {
        MCFS_LOCK_SCOPE(&inode->lock);
        if (inode->staging)
            staging_unlabel(inode->staging);
        inode->gone = true;
    }
    inode_unlink(t->inodes, inode);
    inode_unref(t->inodes, inode);
}

void temp_names_forget(struct temp_names *t, struct inode *inode)
{
    if (list_del(t, inode))
        inode_unref(t->inodes, inode);
}

void temp_names_children(struct temp_names *t, struct mcfs_slice tenant, struct mcfs_slice prefix,
                         void (*fn)(struct mcfs_slice name, struct inode *inode, void *arg),
                         void *arg)
{
    MCFS_LOCK_SCOPE(&t->lock);
    for (size_t i = 0; i < t->count; i++) {
        struct mcfs_slice key = inode_key(t->list[i]);
        if (!mcfs_slice_eq(inode_tenant(t->list[i]), tenant) || key.len <= prefix.len ||
            memcmp(key.data, prefix.data, prefix.len) != 0 ||
            memchr(key.data + prefix.len, '/', key.len - prefix.len))
            continue;
        fn(mcfs_slice(key.data + prefix.len, key.len - prefix.len), t->list[i], arg);
    }
}

void temp_names_expire(struct temp_names *t)
{
    int64_t now = mcfs_wall_ns();
    for (;;) {
        struct inode *old = NULL;
        {
            MCFS_LOCK_SCOPE(&t->lock);
            for (size_t i = 0; i < t->count && !old; i++)
                if (!t->list[i]->opens && now - t->list[i]->attr.mtime_ns > KEEP_NS)
                    old = inode_ref(t->inodes, t->list[i]);
        }
        if (!old)
            return;
        mcfs_info("temporary name %.*s was not touched for a day and is dropped",
                  MCFS_SLICE_ARG(inode_key(old)));
        temp_names_drop(t, old);
        inode_unref(t->inodes, old);
    }
}

static int adopt(struct temp_names *t, const char *content, struct mcfs_slice label,
                 struct mcfs_error *err)
{
    struct mcfs_slice tenant, key;
    struct mcfs_attr attr;
    struct mp_reader r = mp_reader(label.data, label.len);
    if (!mp_read_array_of(&r, 6) || !mp_read_raw(&r, &tenant) || !mp_read_raw(&r, &key) ||
        !mp_read_u32_max(&r, 07777, &attr.mode) || !mp_read_u32_max(&r, UINT32_MAX, &attr.uid) ||
        !mp_read_u32_max(&r, UINT32_MAX, &attr.gid) || !mp_read_int(&r, &attr.mtime_ns))
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: not described as a temporary name",
                         content);
    struct staging *staging = staging_adopt(t->area, content, t->memory_max, err);
    if (!staging)
        return -1;
    struct inode *inode = inode_make(t->inodes, INODE_TEMP, tenant, key);
    if (!inode || list_add(t, inode)) {
        inode_unref(t->inodes, inode);
        staging_leave(staging);
        return mcfs_fail_errno(err, ENOMEM, "temporary name");
    }
    inode->staging = staging;
    inode->attr = attr;
    inode->size = staging_size(staging);
    inode_unref(t->inodes, inode);
    return 0;
}

static void recover_one(const char *path, struct mcfs_slice label, void *arg)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    if (adopt(arg, path, label, &err))
        mcfs_warning("%s", err.msg);
}

int temp_names_recover(struct temp_names *t, struct mcfs_error *err)
{
    if (staging_area_recover(t->area, recover_one, t, err))
        return -1;
    temp_names_expire(t);
    return 0;
}
