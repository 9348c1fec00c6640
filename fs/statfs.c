/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"
#include "fs/namespace.h"

#include <sys/statvfs.h>

#define BLOCK 4096

void fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct fs *fs = fs_of(req);
    struct mcfs_backend_stats s;
    struct statvfs v = {.f_bsize = BLOCK, .f_frsize = BLOCK, .f_namemax = NAME_PIECE_MAX};
    (void)ino;
    node_store_stats(fs->node, &s);
    uint64_t live = mcfs_backend_live_bytes(&s);
    uint64_t free_bytes = s.capacity_bytes > live ? s.capacity_bytes - live : 0;
    v.f_blocks = s.capacity_bytes / BLOCK;
    v.f_bfree = v.f_bavail = free_bytes / BLOCK;
    /* There is no limit on names but the directory's memory; show room for as many again as could
     * be stored. */
    v.f_files = s.objects + v.f_bfree;
    v.f_ffree = v.f_favail = v.f_bfree;
    fuse_reply_statfs(req, &v);
}
