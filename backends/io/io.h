/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_IO_H
#define MCFS_BACKENDS_IO_H

/*
 * Reading and writing many places of many files at once.
 *
 * A batch begins, is given items and ends; its items have their results when it has ended, and not
 * before.  It may begin to read and write as soon as an item is added.  In between the caller does
 * what else there is to do: the disk works meanwhile.
 *
 * With io_uring each thread has a ring of its own, made with its first batch and released when the
 * thread ends.  What is large is cut into pieces, so that the disk always has enough to do.  Where
 * the kernel does not allow io_uring (the log says so once), where the plain engine was asked for,
 * and for a batch that begins while another one of the thread has not ended, items are read and
 * written with pread and pwrite as they are added.
 *
 * Either way an item is finished: short transfers and interruptions go on where they stopped.  A
 * read that meets the end of the file is shorter, and no error.
 *
 * Threads: any; but a batch belongs to the thread that began it.
 */

#include <mooncakefs/error.h>
#include <stddef.h>
#include <stdint.h>

enum io_engine { IO_PLAIN, IO_URING };

/* "plain" is that; "uring", "auto" and NULL are io_uring where the kernel allows it, which is tried
 * once in the life of the process, and else the plain engine: with a line in the log, which is a
 * warning for who asked for "uring".  Another name is an error (INVALID_PARAMS). */
int io_engine_choose(const char *name, enum io_engine *out, struct mcfs_error *err);
const char *io_engine_name(enum io_engine engine);

enum io_op { IO_READ, IO_WRITE };

struct io_item {
    enum io_op op;
    int fd;        /* the caller's, and open until the batch has ended; so is: */
    int direct_fd; /* the same file opened with O_DIRECT, for what can go past the page cache; or
                      -1 */
    void *buf;     /* read into, or written from and not changed */
    uint64_t offset;
    size_t len;

    /* The results: */
    size_t done; /* bytes; fewer than len when the file ends there.  0 with an error */
    int errnum;

    /* The engine's: */
    struct io_item *next;
    size_t issued, limit;
    uint32_t in_flight;
};

struct io_ring;
struct io_batch {
    struct io_ring *ring; /* NULL: the plain engine */
};

/* An item that goes through the page cache. */
static inline struct io_item io_item(enum io_op op, int fd, const void *buf, size_t len,
                                     uint64_t offset)
{
    return (struct io_item){.op = op,
                            .fd = fd,
                            .direct_fd = -1,
                            .buf = (void *)(uintptr_t)buf,
                            .len = len,
                            .offset = offset};
}

/* Offsets and lengths of direct I/O are multiples of the first, addresses of the other; the engine
 * copies where they are not. */
#define IO_BLOCK 4096u
#define IO_MEMORY_ALIGN 512u

void io_begin(struct io_batch *b, enum io_engine engine);

/* For a few items with a flush behind them (io_end_synced): nothing is submitted before the end,
 * and then all of it at once, the writes and the flush linked one behind the other. */
void io_begin_linked(struct io_batch *b, enum io_engine engine);

/* The item stays where it is until the batch has ended. */
void io_add(struct io_batch *b, struct io_item *item);

/* Waits for all items. */
void io_end(struct io_batch *b);

/* Waits for all items, then makes the file durable (fdatasync): 0, or why that failed (errno). */
int io_end_synced(struct io_batch *b, int fd);

/* The file of a descriptor once more, with O_DIRECT, to read (or to write as well); -1 where that
 * cannot be had. */
int io_open_direct(int fd, enum io_op op);

#endif
