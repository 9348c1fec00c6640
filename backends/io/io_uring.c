/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine on io_uring.  Items wait in a list; pieces of them are issued while the ring has room,
 * and each that the kernel has finished makes room for the next.
 *
 * Pieces of a read are of 1 MiB.  A write through the page cache is one piece: the kernel lets only
 * one of them into a file at a time.
 *
 * A linked batch is submitted once, with its flush, when its pieces fit into the ring: the kernel
 * does them in a row, and stops at the first that is short or fails.  Pieces behind that one are
 * issued again, by themselves, and the flush is done after all of them.
 *
 * What a direct transfer leaves over (short, or not allowed by the file system) goes through the
 * page cache, whose way has no rules of alignment.
 */
#include "backends/io/io_ring.h"

#include "common/cleanup.h"
#include "common/log.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define READ_PIECE (1u << 20)
#define WRITE_PIECE (1u << 30) /* the kernel's own limit is a little below 2 GiB */
#define DIRECT_PIECE (1u << 20)
#define SUBMIT_BYTES (1u << 20) /* issued so many, the disk is told before the batch ends */
#define FLUSH RING_DEPTH        /* stands for a piece's number */

static char *bounce_of(const struct io_ring *r, const struct io_piece *p)
{
    return r->bounces + (size_t)p->bounce * BOUNCE_BYTES;
}

static size_t round_up(size_t n)
{
    return (n + IO_BLOCK - 1) & ~(size_t)(IO_BLOCK - 1);
}

/* ---- cutting ---- */

/* A buffer for a piece; false while all are in use, or without memory. */
static bool take_bounce(struct io_ring *r, struct io_piece *p)
{
    if (!r->bounces && io_ring_make_bounces(r))
        return false;
    if (r->bounce_count == 0)
        return false;
    p->bounce = r->free_bounces[--r->bounce_count];
    return true;
}

/* A piece that is not aligned in the file or in memory.  A write that does not fill its blocks goes
 * through the page cache, as it would have to read them first. */
static bool cut_unaligned(struct io_ring *r, struct io_piece *p, uint64_t from, size_t left)
{
    size_t skip = (size_t)(from % IO_BLOCK);
    if (p->item->op == IO_WRITE && (skip || left < IO_BLOCK)) {
        p->len = skip ? MCFS_MIN(left, IO_BLOCK - skip) : left;
        return true;
    }
    if (!take_bounce(r, p)) {
        p->len = MCFS_MIN(left, BOUNCE_BYTES);
        return !r->bounces;
    }
    p->direct = true;
    p->skip = skip;
    if (p->item->op == IO_WRITE)
        left &= ~(size_t)(IO_BLOCK - 1);
    p->len = MCFS_MIN(left, BOUNCE_BYTES - skip);
    return true;
}

/* The next piece of an item; false when it has to wait for a buffer. */
static bool cut(struct io_ring *r, struct io_item *i, struct io_piece *p)
{
    uint64_t from = i->offset + i->issued;
    size_t left = i->len - i->issued;
    *p = (struct io_piece){.item = i, .at = i->issued, .bounce = -1};
    if (i->direct_fd < 0) {
        p->len = MCFS_MIN(left, i->op == IO_READ ? READ_PIECE : WRITE_PIECE);
        return true;
    }
    uintptr_t address = (uintptr_t)i->buf + i->issued;
    if (from % IO_BLOCK || address % IO_MEMORY_ALIGN || left < IO_BLOCK)
        return cut_unaligned(r, p, from, left);
    p->direct = true;
    p->len = MCFS_MIN(left & ~(size_t)(IO_BLOCK - 1), DIRECT_PIECE);
    return true;
}

/* ---- issuing ---- */

static void issue(struct io_ring *r, struct io_piece *p)
{
    const struct io_item *i = p->item;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring); /* as many as there are pieces */
    int fd = p->direct ? i->direct_fd : i->fd;
    char *buf = (char *)i->buf + p->at;
    unsigned len = (unsigned)p->len;
    uint64_t off = i->offset + p->at - p->skip;
    if (p->bounce >= 0) {
        buf = bounce_of(r, p);
        len = (unsigned)round_up(p->skip + p->len);
    }
    if (p->bounce >= 0 && r->registered && i->op == IO_READ)
        io_uring_prep_read_fixed(sqe, fd, buf, len, off, p->bounce);
    else if (p->bounce >= 0 && r->registered)
        io_uring_prep_write_fixed(sqe, fd, buf, len, off, p->bounce);
    else if (i->op == IO_READ)
        io_uring_prep_read(sqe, fd, buf, len, off);
    else
        io_uring_prep_write(sqe, fd, buf, len, off);
    io_uring_sqe_set_data64(sqe, (uint64_t)(p - r->pieces));
    p->sqe = sqe;
    r->unsubmitted += p->len;
}

static void issue_all(struct io_ring *r)
{
    while (r->first && r->free_count) {
        struct io_item *i = r->first;
        struct io_piece *p = &r->pieces[r->free_pieces[r->free_count - 1]];
        if (!cut(r, i, p)) {
            p->item = NULL;
            return;
        }
        r->free_count--;
        i->issued += p->len;
        i->in_flight++;
        if (i->issued == i->len)
            r->first = i->next;
        if (p->bounce >= 0 && i->op == IO_WRITE)
            memcpy(bounce_of(r, p), (char *)i->buf + p->at, p->len);
        issue(r, p);
    }
}

/* ---- finishing ---- */

static void give_bounce(struct io_ring *r, struct io_piece *p)
{
    if (p->bounce >= 0)
        r->free_bounces[r->bounce_count++] = (uint8_t)p->bounce;
    p->bounce = -1;
}

/* Goes on with the rest of a piece through the page cache. */
static void go_on(struct io_ring *r, struct io_piece *p, size_t got)
{
    give_bounce(r, p);
    p->at += got;
    p->len -= got;
    p->skip = 0;
    p->direct = false;
    issue(r, p);
}

static void end_piece(struct io_ring *r, struct io_piece *p)
{
    struct io_item *i = p->item;
    give_bounce(r, p);
    if (--i->in_flight == 0 && i->issued == i->len)
        i->done = i->errnum ? 0 : i->limit;
    p->item = NULL;
    r->free_pieces[r->free_count++] = (uint8_t)(p - r->pieces);
}

static void fail(struct io_ring *r, struct io_piece *p, int errnum)
{
    if (!p->item->errnum)
        p->item->errnum = errnum;
    end_piece(r, p);
}

static void complete(struct io_ring *r, struct io_piece *p, int res)
{
    struct io_item *i = p->item;
    if (res == -EINTR || res == -EAGAIN || res == -ECANCELED) {
        issue(r, p);
    } else if (res < 0 && p->direct && (res == -EINVAL || res == -EOPNOTSUPP)) {
        go_on(r, p, 0);
    } else if (res < 0) {
        fail(r, p, -res);
    } else {
        size_t got = (size_t)res > p->skip ? MCFS_MIN((size_t)res - p->skip, p->len) : 0;
        if (got && p->bounce >= 0 && i->op == IO_READ)
            memcpy((char *)i->buf + p->at, bounce_of(r, p) + p->skip, got);
        if (got == p->len) {
            end_piece(r, p);
        } else if (got > 0 || p->direct) {
            go_on(r, p, got);
        } else if (i->op == IO_READ) {
            i->limit = MCFS_MIN(i->limit, p->at);
            end_piece(r, p);
        } else {
            fail(r, p, EIO); /* a write that writes nothing */
        }
    }
}

static void complete_all(struct io_ring *r)
{
    struct io_uring_cqe *cqe;
    unsigned head, n = 0;
    struct {
        uint64_t piece;
        int res;
    } done[2 * RING_DEPTH]; /* as many as the queue has places */
    io_uring_for_each_cqe(&r->uring, head, cqe)
    {
        done[n].piece = cqe->user_data;
        done[n++].res = cqe->res;
    }
    io_uring_cq_advance(&r->uring, n);
    for (unsigned i = 0; i < n; i++) {
        if (done[i].piece != FLUSH) {
            complete(r, &r->pieces[done[i].piece], done[i].res);
            continue;
        }
        r->flushing = false;
        r->flushed = done[i].res;
    }
}

/* Tells the kernel what was issued, and waits until that many pieces are finished. */
static void submit(struct io_ring *r, unsigned wait)
{
    int rc = wait ? io_uring_submit_and_wait(&r->uring, wait)
                  : io_uring_submit_and_get_events(&r->uring);
    /* What the kernel could not take stays in the queue and is submitted with the rest. */
    if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) {
        mcfs_error("io_uring: %s", strerror(-rc));
        abort(); /* it may be writing into the callers' memory */
    }
    if (rc >= 0)
        r->unsubmitted = 0;
    complete_all(r);
}

void io_ring_add(struct io_ring *r, struct io_item *item)
{
    item->next = NULL;
    item->issued = 0;
    item->in_flight = 0;
    item->limit = item->len;
    if (r->first)
        r->last->next = item;
    else
        r->first = item;
    r->last = item;
    issue_all(r);
    if (r->unsubmitted >= SUBMIT_BYTES && !r->linked) {
        submit(r, 0);
        issue_all(r);
    }
}

void io_ring_finish(struct io_ring *r)
{
    while (r->first || r->free_count < RING_DEPTH || r->flushing) {
        issue_all(r);
        /* Some at a time: waking for each would cost more than an idle moment of the disk. */
        submit(r, MCFS_MAX(1, (RING_DEPTH - r->free_count) / 4));
    }
    r->in_use = r->linked = false;
}

void io_ring_link(struct io_ring *r)
{
    r->linked = true;
}

/* Puts a flush behind the pieces; false when they do not all wait in the queue. */
static bool link_flush(struct io_ring *r, int fd)
{
    unsigned pieces = RING_DEPTH - r->free_count;
    if (!r->linked || r->first || pieces == 0 || pieces == RING_DEPTH ||
        io_uring_sq_ready(&r->uring) != pieces)
        return false;
    for (unsigned i = 0; i < RING_DEPTH; i++)
        if (r->pieces[i].item)
            io_uring_sqe_set_flags(r->pieces[i].sqe, IOSQE_IO_LINK);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);
    io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
    io_uring_sqe_set_data64(sqe, FLUSH);
    r->flushing = true;
    return true;
}

int io_ring_finish_synced(struct io_ring *r, int fd)
{
    issue_all(r);
    bool linked = link_flush(r, fd);
    io_ring_finish(r);
    if (linked && r->flushed != -ECANCELED && r->flushed != -EINTR)
        return -r->flushed;
    return fdatasync(fd) ? errno : 0;
}
