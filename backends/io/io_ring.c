/* SPDX-License-Identifier: Apache-2.0 */
/* A ring for each thread that needs one. */
#include "backends/io/io_ring.h"

#include "common/cleanup.h"
#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;
static int key_errnum;

/* The kernel may give a new ring the addresses of one that another thread has left.  Their order is
 * the kernel's; these say so to a checker of races, which does not see the library's mmap. */
static atomic_uint rings_left;

static void ring_leave(struct io_uring *uring)
{
    atomic_fetch_add_explicit(&rings_left, 1, memory_order_release);
    io_uring_queue_exit(uring);
}

static void ring_free(void *arg)
{
    struct io_ring *r = arg;
    ring_leave(&r->uring);
    free(r->bounces);
    free(r);
}

static void make_key(void)
{
    key_errnum = pthread_key_create(&key, ring_free);
}

/* Newer kernels do their part of the work when we wait, instead of interrupting us. */
static int queue_init(struct io_uring *uring)
{
    static const unsigned flags[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                     IORING_SETUP_COOP_TASKRUN, 0};
    int rc = -EINVAL;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(flags) && rc == -EINVAL; i++) {
        struct io_uring_params params = {.flags = flags[i]};
        rc = io_uring_queue_init_params(RING_DEPTH, uring, &params);
    }
    atomic_load_explicit(&rings_left, memory_order_acquire);
    return rc;
}

int io_ring_try(void)
{
    struct io_uring uring;
    int rc = queue_init(&uring);
    if (rc == 0)
        ring_leave(&uring);
    return -rc;
}

static struct io_ring *ring_new(int *errnum)
{
    struct io_ring *r = calloc(1, sizeof(*r));
    int rc = r ? queue_init(&r->uring) : -ENOMEM;
    if (rc == 0 && (rc = -pthread_setspecific(key, r)))
        ring_leave(&r->uring);
    if (rc) {
        *errnum = -rc;
        free(r);
        return NULL;
    }
    r->pid = getpid();
    for (unsigned i = 0; i < RING_DEPTH; i++)
        r->free_pieces[r->free_count++] = (uint8_t)i;
    return r;
}

struct io_ring *io_ring_take(int *errnum)
{
    pthread_once(&key_once, make_key);
    if (key_errnum) {
        *errnum = key_errnum;
        return NULL;
    }
    struct io_ring *r = pthread_getspecific(key);
    if (!r || r->pid != getpid())
        r = ring_new(errnum);
    if (!r || r->in_use)
        return NULL;
    r->in_use = true;
    return r;
}

/* Registered memory counts against RLIMIT_MEMLOCK, which may be used up. */
static void say_once(int errnum)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&said))
        mcfs_info("io_uring: buffers cannot be registered: %s; they are used without that",
                  strerror(errnum));
}

int io_ring_make_bounces(struct io_ring *r)
{
    struct iovec iov[BOUNCES];
    r->bounces = aligned_alloc(IO_BLOCK, (size_t)BOUNCES * BOUNCE_BYTES);
    if (!r->bounces)
        return -1;
    for (unsigned i = 0; i < BOUNCES; i++) {
        iov[i] = (struct iovec){r->bounces + (size_t)i * BOUNCE_BYTES, BOUNCE_BYTES};
        r->free_bounces[r->bounce_count++] = (uint8_t)i;
    }
    int rc = io_uring_register_buffers(&r->uring, iov, BOUNCES);
    r->registered = rc == 0;
    if (rc)
        say_once(-rc);
    return 0;
}
