/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/passthrough.h"

#include <linux/capability.h>
#include <linux/fuse.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Protocol 7.40; the headers of older systems do not have it. */
#define INIT_EXT (1u << 30)
#define INIT_DIRECT_MMAP2 (1u << 4) /* bit 36 of both words */
#define INIT_PASSTHROUGH2 (1u << 5)
#define OPEN_PASSTHROUGH (1u << 7)

struct init_in {
    uint32_t major, minor, max_readahead, flags, flags2;
};

struct init_out {
    uint32_t major, minor, max_readahead, flags;
    uint16_t max_background, congestion_threshold;
    uint32_t max_write, time_gran;
    uint16_t max_pages, map_alignment;
    uint32_t flags2, max_stack_depth;
};

struct open_out {
    uint64_t fh;
    uint32_t open_flags;
    int32_t backing_id;
};

struct backing_map {
    int32_t fd;
    uint32_t flags;
    uint64_t padding;
};
#define BACKING_OPEN _IOW(FUSE_DEV_IOC_MAGIC, 1, struct backing_map)
#define BACKING_CLOSE _IOW(FUSE_DEV_IOC_MAGIC, 2, uint32_t)

bool passthrough_permitted(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
    return syscall(SYS_capget, &head, data) == 0 &&
           data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective & CAP_TO_MASK(CAP_SYS_ADMIN);
}

void passthrough_on_request(struct passthrough *p, const void *request, size_t len)
{
    struct fuse_in_header head;
    struct init_in in;
    if (len < sizeof(head) + sizeof(in))
        return;
    memcpy(&head, request, sizeof(head));
    if (head.opcode != FUSE_INIT)
        return;
    memcpy(&in, (const char *)request + sizeof(head), sizeof(in));
    atomic_store(&p->offered, in.flags & INIT_EXT ? in.flags2 : 0);
    atomic_store(&p->init_unique, head.unique);
}

void passthrough_on_reply(struct passthrough *p, const struct iovec *iov, int count)
{
    uint64_t init = atomic_load_explicit(&p->init_unique, memory_order_relaxed);
    struct fuse_out_header head;
    struct init_out out;
    if (!init || count < 2 || iov[0].iov_len < sizeof(head) || iov[1].iov_len < sizeof(out))
        return;
    memcpy(&head, iov[0].iov_base, sizeof(head));
    if (head.unique != init || head.error)
        return;
    atomic_store(&p->init_unique, 0);
    uint32_t offered = atomic_load(&p->offered);
    memcpy(&out, iov[1].iov_base, sizeof(out));
    if (offered & INIT_DIRECT_MMAP2) {
        out.flags2 |= INIT_DIRECT_MMAP2;
        atomic_store(&p->direct_mmap, true);
    }
    if (p->wanted && offered & INIT_PASSTHROUGH2) {
        out.flags2 |= INIT_PASSTHROUGH2;
        out.max_stack_depth = 1;
        atomic_store(&p->on, true);
    }
    if (!out.flags2)
        return;
    out.flags |= INIT_EXT;
    memcpy(iov[1].iov_base, &out, sizeof(out));
}

int passthrough_backing_open(int session_fd, int fd)
{
    struct backing_map map = {.fd = fd};
    int id = ioctl(session_fd, BACKING_OPEN, &map);
    return id > 0 ? id : id == 0 ? -EINVAL : -errno;
}

void passthrough_backing_close(int session_fd, int backing_id)
{
    uint32_t id = (uint32_t)backing_id;
    if (backing_id > 0)
        ioctl(session_fd, BACKING_CLOSE, &id);
}

static struct open_out open_out(const struct fuse_file_info *fi, int backing_id)
{
    return (struct open_out){.fh = fi->fh,
                             .open_flags = OPEN_PASSTHROUGH | (fi->noflush ? FOPEN_NOFLUSH : 0u),
                             .backing_id = backing_id};
}

int passthrough_reply_open(fuse_req_t req, const struct fuse_file_info *fi, int backing_id)
{
    struct open_out out = open_out(fi, backing_id);
    return fuse_reply_buf(req, (const char *)&out, sizeof(out));
}

static void set_timeout(double seconds, uint64_t *sec, uint32_t *nsec)
{
    *sec = (uint64_t)seconds;
    *nsec = (uint32_t)((seconds - (double)*sec) * 1e9);
}

static struct fuse_attr attr_of(const struct stat *st)
{
    return (struct fuse_attr){.ino = st->st_ino,
                              .size = (uint64_t)st->st_size,
                              .blocks = (uint64_t)st->st_blocks,
                              .atime = (uint64_t)st->st_atim.tv_sec,
                              .mtime = (uint64_t)st->st_mtim.tv_sec,
                              .ctime = (uint64_t)st->st_ctim.tv_sec,
                              .atimensec = (uint32_t)st->st_atim.tv_nsec,
                              .mtimensec = (uint32_t)st->st_mtim.tv_nsec,
                              .ctimensec = (uint32_t)st->st_ctim.tv_nsec,
                              .mode = st->st_mode,
                              .nlink = (uint32_t)st->st_nlink,
                              .uid = st->st_uid,
                              .gid = st->st_gid,
                              .blksize = (uint32_t)st->st_blksize};
}

int passthrough_reply_create(fuse_req_t req, const struct fuse_entry_param *e,
                             const struct fuse_file_info *fi, int backing_id)
{
    struct {
        struct fuse_entry_out entry;
        struct open_out open;
    } out = {.entry = {.nodeid = e->ino, .generation = e->generation, .attr = attr_of(&e->attr)},
             .open = open_out(fi, backing_id)};
    set_timeout(e->entry_timeout, &out.entry.entry_valid, &out.entry.entry_valid_nsec);
    set_timeout(e->attr_timeout, &out.entry.attr_valid, &out.entry.attr_valid_nsec);
    return fuse_reply_buf(req, (const char *)&out, sizeof(out));
}
