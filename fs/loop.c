/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/loop.h"

#include "common/clock.h"
#include "common/log.h"

#include <linux/fuse.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define THREADS_MAX 64
#define IDLE_DEFAULT 10
#define SPIN_NS 40000 /* about what a sleep and a wake-up cost */
#define CHECK_NS 500000000ll
#define WAKE_SIGNAL SIGUSR2

struct loop {
    struct fuse_session *session;
    unsigned idle_max;
    long cpus;
    atomic_uint serving;  /* threads with a request */
    sem_t finished;       /* somebody has seen the end */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t free;  /* receiving is free, or the end */
    pthread_cond_t ended; /* a thread is gone */
    bool received;        /* somebody receives */
    bool stop;
    unsigned threads, idle;
    pthread_t receiver; /* valid while `received` */
    struct mcfs_watch watch;
};

/* This thread's loop while it is the one that receives. */
static _Thread_local struct loop *receiving;

static void *worker_main(void *arg);

/* The caller holds the lock. */
static int start_thread(struct loop *l)
{
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, old;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    /* Signals are for the main thread. */
    sigfillset(&all);
    sigdelset(&all, WAKE_SIGNAL);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, &attr, worker_main, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    l->threads += rc == 0;
    return rc;
}

/* Waits for its turn to receive; false when the thread is not needed any more. */
static bool take_turn(struct loop *l)
{
    MCFS_LOCK_SCOPE(&l->lock);
    if (l->received && l->idle >= l->idle_max)
        return false;
    l->idle++;
    while (l->received && !l->stop)
        pthread_cond_wait(&l->free, &l->lock);
    l->idle--;
    if (l->stop)
        return false;
    l->received = true;
    l->receiver = pthread_self();
    receiving = l;
    return true;
}

void loop_may_wait(void)
{
    struct loop *l = receiving;
    if (!l)
        return;
    receiving = NULL;
    MCFS_LOCK_SCOPE(&l->lock);
    l->received = false;
    if (l->idle)
        pthread_cond_signal(&l->free);
    else if (l->threads < THREADS_MAX && !l->stop)
        start_thread(l); /* without it, this thread receives again when it is done */
}

const struct mcfs_watch *loop_watch(void)
{
    return receiving && receiving->cpus > 1 ? &receiving->watch : NULL;
}

void loop_lock(pthread_mutex_t *m)
{
    if (pthread_mutex_trylock(m) == 0)
        return;
    loop_may_wait();
    pthread_mutex_lock(m);
}

static bool is_readable(const struct loop *l)
{
    struct pollfd p = {.fd = fuse_session_fd(l->session), .events = POLLIN};
    return poll(&p, 1, 0) != 0;
}

/* Requests that are answered at once unless their handler says otherwise. */
static bool is_quick(const struct fuse_buf *buf)
{
    struct fuse_in_header head;
    if (buf->flags & FUSE_BUF_IS_FD || buf->size < sizeof(head))
        return false;
    memcpy(&head, buf->mem, sizeof(head));
    switch (head.opcode) {
    case FUSE_LOOKUP:
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_GETATTR:
    case FUSE_OPEN:
    case FUSE_RELEASE:
    case FUSE_CREATE:
    case FUSE_WRITE:
        return true;
    default:
        return false;
    }
}

/* While others work, whoever spins takes the processor of those who are to send the next request.
 */
static bool may_spin(struct loop *l)
{
    return (long)atomic_load_explicit(&l->serving, memory_order_relaxed) + 1 < l->cpus;
}

/* Serves one request; false at the end. */
static bool serve_one(struct loop *l, struct fuse_buf *buf)
{
    if (may_spin(l))
        for (int64_t until = mcfs_mono_ns() + SPIN_NS; !is_readable(l) && mcfs_mono_ns() < until;)
            ;
    int n = fuse_session_receive_buf(l->session, buf);
    if (n == -EINTR || n == -EAGAIN)
        return !fuse_session_exited(l->session);
    if (n <= 0 || fuse_session_exited(l->session)) {
        if (n < 0)
            mcfs_warning("/dev/fuse: %s", strerror(-n));
        return false;
    }
    if (!is_quick(buf) || is_readable(l))
        loop_may_wait();
    atomic_fetch_add_explicit(&l->serving, 1, memory_order_relaxed);
    fuse_session_process_buf(l->session, buf);
    atomic_fetch_sub_explicit(&l->serving, 1, memory_order_relaxed);
    return true;
}

static void *worker_main(void *arg)
{
    struct loop *l = arg;
    struct fuse_buf buf = {.mem = NULL};
    bool more = true;
    while (more && (receiving || take_turn(l)))
        more = serve_one(l, &buf);
    free(buf.mem);
    if (!more)
        sem_post(&l->finished);
    MCFS_LOCK_SCOPE(&l->lock);
    if (receiving) {
        receiving = NULL;
        l->received = false;
        pthread_cond_signal(&l->free);
    }
    l->threads--;
    pthread_cond_broadcast(&l->ended);
    return NULL;
}

static void wake(int number)
{
    (void)number; /* it interrupted a read, which is all */
}

/* Ends the threads; those that serve a request finish it. */
static void stop(struct loop *l)
{
    MCFS_LOCK_SCOPE(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->free);
    while (l->threads) {
        /* The signal may come just before the read: so again and again. */
        if (l->received)
            pthread_kill(l->receiver, WAKE_SIGNAL);
        struct timespec until = mcfs_timespec(mcfs_wall_ns() + 10000000);
        pthread_cond_timedwait(&l->ended, &l->lock, &until);
    }
}

int loop_run(struct fuse_session *session, unsigned idle_max, struct mcfs_error *err)
{
    struct loop l = {.session = session,
                     .idle_max = idle_max ? idle_max : IDLE_DEFAULT,
                     .cpus = sysconf(_SC_NPROCESSORS_ONLN),
                     .watch = {fuse_session_fd(session), loop_may_wait},
                     .lock = PTHREAD_MUTEX_INITIALIZER,
                     .free = PTHREAD_COND_INITIALIZER,
                     .ended = PTHREAD_COND_INITIALIZER};
    struct sigaction action = {.sa_handler = wake}, old;
    sigaction(WAKE_SIGNAL, &action, &old);
    sem_init(&l.finished, 0, 0);
    pthread_mutex_lock(&l.lock);
    int rc = start_thread(&l);
    pthread_mutex_unlock(&l.lock);
    bool ended = rc != 0;
    while (!ended && !fuse_session_exited(session)) {
        /* A signal that comes just before the wait does not end it: so not for ever. */
        struct timespec until = mcfs_timespec(mcfs_wall_ns() + CHECK_NS);
        ended = sem_timedwait(&l.finished, &until) == 0;
    }
    fuse_session_exit(session);
    stop(&l);
    sigaction(WAKE_SIGNAL, &old, NULL);
    sem_destroy(&l.finished);
    pthread_mutex_destroy(&l.lock);
    return rc ? mcfs_fail_errno(err, rc, "FUSE thread") : 0;
}
