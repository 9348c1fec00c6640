/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include <linux/fuse.h>
#include <sys/uio.h>
#include <unistd.h>

/* As fuse_lowlevel_notify_store, which sends even small data through a pipe. */
void fs_push(struct fs *fs, struct inode *inode, const void *data, size_t len)
{
    struct fuse_notify_store_out store = {.nodeid = inode_nodeid(inode), .size = (uint32_t)len};
    struct fuse_out_header head = {.len = (uint32_t)(sizeof(head) + sizeof(store) + len),
                                   .error = FUSE_NOTIFY_STORE};
    struct iovec iov[3] = {
        {&head, sizeof(head)}, {&store, sizeof(store)}, {(void *)(uintptr_t)data, len}};
    /* Where the kernel does not take it, it will ask for the bytes. */
    if (writev(fuse_session_fd(fs->session), iov, 3) == (ssize_t)head.len)
        atomic_fetch_add_explicit(&fs->counters.pushes, 1, memory_order_relaxed);
}
