/* SPDX-License-Identifier: Apache-2.0 */
/* user.mooncake.*: what the store knows of an object, for getfattr. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "fs/fs.h"
#include "fs/history.h"

#include <inttypes.h>
#include <jansson.h>
#include <sys/xattr.h>

#define PREFIX "user.mooncake."

static const char *type_name(uint8_t type)
{
    switch (type) {
    case MCFS_REPLICA_MEMORY:
        return "MEMORY";
    case MCFS_REPLICA_DISK:
        return "DISK";
    case MCFS_REPLICA_LOCAL_DISK:
        return "LOCAL_DISK";
    case MCFS_REPLICA_DFS:
        return "DFS";
    default:
        return "UNSUPPORTED";
    }
}

static void replicas(const struct mcfs_master_object *o, struct mcfs_buf *out)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < o->replica_count; i++) {
        const struct mcfs_master_replica *r = &o->replicas[i];
        json_array_append_new(
            list, json_pack("{s:I, s:s, s:s, s:s, s:s, s:I, s:b}", "id", (json_int_t)r->id, "type",
                            type_name(r->type), "status",
                            r->status == MCFS_REPLICA_COMPLETE ? "COMPLETE" : "PROCESSING", "node",
                            r->node_id, "endpoint", r->endpoint, "size", (json_int_t)r->size,
                            "connected", (int)r->connected));
    }
    char *text = json_dumps(list, JSON_COMPACT);
    if (text)
        mcfs_buf_append_str(out, text);
    free(text);
    json_decref(list);
}

static const char *const names[] = {"key",      "tenant",   "size",     "data_type", "replicas",
                                    "lease_ms", "hard_pin", "soft_pin", "group",     "version"};

/* What an object has only while it is in the directory. */
static bool is_live(const char *name)
{
    return strcmp(name, "lease_ms") == 0 || strcmp(name, "soft_pin") == 0 ||
           strcmp(name, "group") == 0;
}

static bool has_xattrs(const struct inode *inode)
{
    return inode->kind == INODE_FILE || inode->kind == INODE_WRITER ||
           inode->kind == INODE_HISTORY_FILE;
}

static int value_of(struct fs *fs, const struct inode *inode, const char *name,
                    const struct mcfs_cancel *cancel, struct mcfs_buf *out, struct mcfs_error *err)
{
    struct mcfs_slice key = inode_key(inode), tenant = inode_tenant(inode);
    struct mcfs_master_object o;
    if (inode->kind == INODE_HISTORY_FILE)
        return history_xattr(fs, inode, name, cancel, out, err);
    if (strcmp(name, "key") == 0) {
        mcfs_buf_append(out, key.data, key.len);
        return 0;
    }
    if (strcmp(name, "tenant") == 0) {
        mcfs_buf_append(out, tenant.data, tenant.len);
        return 0;
    }
    if (mcfs_master_get(node_master(fs->node), tenant, key, &o, cancel, err))
        return err->code == MCFS_OBJECT_NOT_FOUND ? mcfs_fail_errno(err, ENODATA, "xattr") : -1;
    if (strcmp(name, "size") == 0)
        mcfs_buf_printf(out, "%" PRIu64, o.size);
    else if (strcmp(name, "data_type") == 0)
        mcfs_buf_printf(out, "%u", o.data_type);
    else if (strcmp(name, "replicas") == 0)
        replicas(&o, out);
    else if (strcmp(name, "lease_ms") == 0)
        mcfs_buf_printf(out, "%u", o.lease_ms);
    else if (strcmp(name, "hard_pin") == 0)
        mcfs_buf_printf(out, "%d", o.hard_pin);
    else if (strcmp(name, "soft_pin") == 0)
        mcfs_buf_printf(out, "%d", o.soft_pin_ms > 0);
    else if (strcmp(name, "group") == 0)
        mcfs_buf_append_str(out, o.group);
    else if (strcmp(name, "version") == 0)
        mcfs_buf_printf(out, "%" PRIu64, o.version);
    else
        return mcfs_fail_errno(err, ENODATA, "xattr");
    return 0;
}

static void reply_sized(fuse_req_t req, const void *data, size_t len, size_t size)
{
    if (size == 0)
        fuse_reply_xattr(req, len);
    else if (len > size)
        fuse_reply_err(req, ERANGE);
    else
        fuse_reply_buf(req, data, len);
}

void fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct fs_cancel c;
    _cleanup_buf_ struct mcfs_buf out = MCFS_BUF_INIT;
    if (!has_xattrs(inode) || strncmp(name, PREFIX, strlen(PREFIX)) != 0) {
        fuse_reply_err(req, ENODATA);
        return;
    }
    fs_cancel_begin(&c, req);
    int rc = value_of(fs, inode, name + strlen(PREFIX), &c.cancel, &out, &err);
    fs_cancel_end(&c);
    if (rc)
        fs_reply_error(req, &err);
    else
        reply_sized(req, out.data, out.len, size);
}

void fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
    struct fs *fs = fs_of(req);
    _cleanup_buf_ struct mcfs_buf out = MCFS_BUF_INIT;
    const struct inode *inode = inode_from(fs->inodes, ino);
    if (has_xattrs(inode))
        for (size_t i = 0; i < MCFS_ARRAY_SIZE(names); i++) {
            if (inode->kind == INODE_HISTORY_FILE && is_live(names[i]))
                continue;
            mcfs_buf_append_str(&out, PREFIX);
            mcfs_buf_append(&out, names[i], strlen(names[i]) + 1);
        }
    reply_sized(req, out.data, out.len, size);
}

void fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value, size_t size,
                 int flags)
{
    struct fs *fs = fs_of(req);
    struct inode *inode = inode_from(fs->inodes, ino);
    struct mcfs_error err = MCFS_ERROR_INIT;
    (void)flags;
    bool soft = strcmp(name, PREFIX "soft_pin") == 0;
    if ((!soft && strcmp(name, PREFIX "hard_pin") != 0) || !has_xattrs(inode)) {
        fuse_reply_err(req, ENOTSUP);
        return;
    }
    if (size != 1 || (value[0] != '0' && value[0] != '1')) {
        fuse_reply_err(req, EINVAL);
        return;
    }
    if (fs->options->ro || inode->kind == INODE_HISTORY_FILE) {
        fuse_reply_err(req, EROFS);
        return;
    }
    const uint64_t zero = 0;
    bool on = value[0] == '1';
    if (soft ? mcfs_master_set_soft_pin(node_master(fs->node), inode_tenant(inode),
                                        inode_key(inode), on ? NULL : &zero, NULL, &err)
             : mcfs_master_set_pin(node_master(fs->node), inode_tenant(inode), inode_key(inode), on,
                                   NULL, &err))
        fs_reply_error(req, &err);
    else
        fuse_reply_err(req, 0);
}

void fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
    (void)ino;
    (void)name;
    fuse_reply_err(req, ENOTSUP);
}
