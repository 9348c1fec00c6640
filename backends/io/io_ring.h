/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_IO_RING_H
#define MCFS_BACKENDS_IO_RING_H

/* Inside of backends/io: the two engines, and a thread's ring with its memory. */

#include "backends/io/io.h"

#include <liburing.h>
#include <sys/types.h>

#define RING_DEPTH 32u            /* pieces that the kernel has at a time */
#define BOUNCE_BYTES (256u << 10) /* a buffer for what is not aligned */
#define BOUNCES 8u

/* A part of an item that the kernel has. */
struct io_piece {
    struct io_item *item; /* NULL: the kernel does not have it */
    struct io_uring_sqe *sqe;
    size_t at, len; /* within the item */
    size_t skip;    /* a copied read begins that many bytes before `at` */
    int bounce;     /* number of its buffer, or -1 */
    bool direct;
};

struct io_ring {
    struct io_uring uring;
    pid_t pid; /* a forked child must not use it */
    bool in_use;
    struct io_item *first, *last; /* of which not everything was issued */
    struct io_piece pieces[RING_DEPTH];
    uint8_t free_pieces[RING_DEPTH], free_bounces[BOUNCES];
    unsigned free_count, bounce_count;
    size_t unsubmitted; /* bytes */
    bool linked;        /* the batch is to go to the kernel as a whole */
    bool flushing;      /* a flush is linked behind the pieces */
    int flushed;        /* its result */
    char *bounces;      /* BOUNCES of BOUNCE_BYTES each; NULL until one is needed */
    bool registered;    /* the kernel knows them */
};

/* Whether a ring can be had: 0 or why not (errno). */
int io_ring_try(void);

/* This thread's ring for a batch.  NULL when it is in use, and without one, with *errnum set. */
struct io_ring *io_ring_take(int *errnum);

/* Allocates the buffers, and registers them where that is allowed; 0 or -1 without memory. */
int io_ring_make_bounces(struct io_ring *r);

/* ---- io_uring.c ---- */

void io_ring_add(struct io_ring *r, struct io_item *item);
void io_ring_link(struct io_ring *r);   /* the batch that begins */
void io_ring_finish(struct io_ring *r); /* which ends its use, as does: */
int io_ring_finish_synced(struct io_ring *r, int fd);

/* ---- io_plain.c ---- */

void io_plain(struct io_item *item);

#endif
