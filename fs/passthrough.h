/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_PASSTHROUGH_H
#define MCFS_FS_PASSTHROUGH_H

/*
 * Kernel passthrough (Linux 6.9, CAP_SYS_ADMIN): reads and writes of an open file go from the
 * kernel straight to a backing file, without the daemon.  It is for files that hold an object and
 * nothing else.
 *
 * libfuse before 3.17 has no call for it but does not stand in the way: the INIT answer is amended
 * on its way to the kernel, backing files are registered by ioctl on the session's descriptor, and
 * OPEN and CREATE are answered with the kernel's own structs (linux/fuse.h, protocol 7.40).
 *
 * In the same way we ask that files which are open for direct I/O can be mapped (protocol 7.39).
 *
 * All functions may be called from any thread.
 */

#include <errno.h>
#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>

struct passthrough {
    bool wanted;
    atomic_ullong init_unique; /* of the INIT request, while it is being answered */
    atomic_uint offered;       /* flags2 of the kernel */
    atomic_bool on;
    atomic_bool direct_mmap; /* files with direct I/O can be mapped */
};

/* Whether this process may ask for it. */
bool passthrough_permitted(void);

/* What goes through the session's descriptor; call with each request and before each reply.  The
 * reply to INIT is changed in place. */
void passthrough_on_request(struct passthrough *p, const void *request, size_t len);
void passthrough_on_reply(struct passthrough *p, const struct iovec *iov, int count);

/* Registers a file; returns its backing id (> 0) or -errno.  The kernel keeps the file open until
 * the id is closed and every open file that was answered with it is. */
int passthrough_backing_open(int session_fd, int fd);
void passthrough_backing_close(int session_fd, int backing_id);

/* fuse_reply_open and fuse_reply_create with a backing id. */
int passthrough_reply_open(fuse_req_t req, const struct fuse_file_info *fi, int backing_id);
int passthrough_reply_create(fuse_req_t req, const struct fuse_entry_param *e,
                             const struct fuse_file_info *fi, int backing_id);

#endif
