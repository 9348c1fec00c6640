/* SPDX-License-Identifier: Apache-2.0 */
#include "master/checkpoint.h"

#include "common/cleanup.h"
#include "common/cond.h"
#include "common/file.h"
#include "common/log.h"
#include "master/copied.h"
#include "master/segments_image.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define NODES_MAX 65536
#define TERM_WAIT_MS 5000
#define CLOCKS_APART_MS 60000 /* of the store's server and of this machine */
#define IDLE_NS 3600000000000ll
#define CHILD_THREADS_MAX 8
#define COPIED "copied " /* begins the child's report: bytes, then its error on the next line */

struct checkpointer {
    struct checkpoint_config config;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool stopping, wanted;
    char next_id[SNAP_ID_SIZE]; /* of the one that is wanted or running */
    struct checkpoint_state state;
};

/* ---- the child ---- */

struct child {
    struct checkpointer *c;
    struct snap_writer *writer;
    pthread_mutex_t lock; /* guards writer and err */
    atomic_uint next_shard;
    atomic_bool failed;
    struct mcfs_error err;
};

static int encode_one(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    return snap_encode_object(arg, o, err);
}

static int write_one(struct child *ch, struct snap_encoder *e, uint32_t shard,
                     struct mcfs_error *err)
{
    struct mcfs_slice metadata, extra;
    snap_encode_begin(e);
    if (directory_visit_shard(ch->c->config.directory, shard, encode_one, e, err) ||
        snap_encode_end(e, &metadata, &extra, err))
        return -1;
    MCFS_LOCK_SCOPE(&ch->lock);
    return snap_writer_shard(ch->writer, shard, metadata, extra, err);
}

static void *encode_main(void *arg)
{
    struct child *ch = arg;
    struct snap_encoder *e = snap_encoder_new();
    struct mcfs_error err = MCFS_ERROR_INIT;
    int rc = e ? 0 : mcfs_fail_errno(&err, ENOMEM, "checkpoint");
    while (rc == 0 && !atomic_load(&ch->failed)) {
        uint32_t shard = atomic_fetch_add(&ch->next_shard, 1);
        if (shard >= MCFS_SHARD_COUNT)
            break;
        if (directory_shard_objects(ch->c->config.directory, shard))
            rc = write_one(ch, e, shard, &err);
    }
    if (rc) {
        MCFS_LOCK_SCOPE(&ch->lock);
        if (!atomic_exchange(&ch->failed, true))
            ch->err = err;
    }
    snap_encoder_free(e);
    return NULL;
}

static int child_write(struct checkpointer *c, struct mcfs_object_store *store,
                       struct mcfs_error *err)
{
    const struct checkpoint_config *cf = &c->config;
    _cleanup_free_ struct snap_node *nodes = calloc(NODES_MAX, sizeof(*nodes));
    struct snap_writer_config wc = {
        .store = store,
        .cluster = cf->cluster,
        .id = c->next_id,
        .info = {.created_ms = mcfs_wall_ms(), .replica_next_id = directory_next_id(cf->directory)},
        .nodes = nodes,
        .tasks = cf->tasks};
    struct child ch = {.c = c};
    pthread_t threads[CHILD_THREADS_MAX];
    _cleanup_buf_ struct mcfs_buf segments = MCFS_BUF_INIT, held = MCFS_BUF_INIT;
    if (!nodes)
        return mcfs_fail_errno(err, ENOMEM, "checkpoint");
    wc.node_count = cf->nodes(cf->arg, nodes, NODES_MAX);
    if (directory_encode_segments(cf->directory, cf->segments, nodes, wc.node_count, &segments,
                                  err) ||
        directory_encode_held(cf->directory, cf->discarded, &held, err))
        return -1;
    wc.segments = mcfs_slice(segments.data, segments.len);
    wc.discarded = mcfs_slice(held.data, held.len);
    for (uint32_t i = 0; i < MCFS_SHARD_COUNT; i++)
        wc.shard_count += directory_shard_objects(cf->directory, i) != 0;
    ch.writer = snap_writer_begin(&wc, err);
    if (!ch.writer)
        return -1;
    pthread_mutex_init(&ch.lock, NULL);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
#ifdef __SANITIZE_THREAD__
    cores = 1; /* it does not know which threads of the parent a fork has left behind */
#endif
    unsigned started = 0, want = (unsigned)MCFS_MIN(MCFS_MAX(cores, 1), CHILD_THREADS_MAX);
    while (started + 1 < want && pthread_create(&threads[started], NULL, encode_main, &ch) == 0)
        started++;
    encode_main(&ch);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    if (atomic_load(&ch.failed)) {
        *err = ch.err;
        snap_writer_abort(ch.writer);
        return -1;
    }
    return snap_writer_commit(ch.writer, err);
}

/* Modest: the child yields to the parent, and is the one to go when memory is short. */
static void child_settle(void)
{
    struct sched_param param = {0};
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, "500", 3) < 0)
            mcfs_debug("oom_score_adj: %s", strerror(errno));
        close(fd);
    }
    if (sched_setscheduler(0, SCHED_BATCH, &param))
        mcfs_debug("SCHED_BATCH: %s", strerror(errno));
    if (nice(10) < 0)
        mcfs_debug("nice: %s", strerror(errno));
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "checkpoint");
}

/* What the store did not take is not lost when there is a place for it: a master restores from
 * there as from any other store. */
static void keep_aside(struct checkpointer *c)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct mcfs_object_store *store = snap_store_local_open(c->config.backup_dir, &err);
    if (!store || child_write(c, store, &err)) {
        mcfs_error("snapshot %s cannot be kept in %s either: %s", c->next_id, c->config.backup_dir,
                   err.msg);
    } else {
        mcfs_warning("snapshot %s is kept in %s", c->next_id, c->config.backup_dir);
        if (snap_repo_retain(store, c->config.cluster, c->next_id, c->config.retention, &err))
            mcfs_warning("old snapshots: %s", err.msg);
    }
    if (store)
        store->ops->close(store);
}

/* What dead checkpoints left goes before this one needs the room. */
static void clear_remains(struct checkpointer *c)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    uint32_t files = 0;
    int owner = -1; /* until this process ends */
    int64_t life_ms = c->config.child_timeout_ms + 2 * TERM_WAIT_MS + CLOCKS_APART_MS;
    if (snap_repo_clear_dead(c->config.store, c->config.cluster, life_ms, &owner, &files, &err))
        mcfs_warning("what interrupted checkpoints left: %s", err.msg);
    else if (files)
        mcfs_info("%u files that interrupted checkpoints left are removed", files);
}

static void child_main(struct checkpointer *c, int report) __attribute__((noreturn));
static void child_main(struct checkpointer *c, int report)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    c->config.in_child(c->config.arg);
    child_settle();
    clear_remains(c);
    int rc = child_write(c, c->config.store, &err);
    if (rc == 0 &&
        snap_repo_retain(c->config.store, c->config.cluster, c->next_id, c->config.retention, &err))
        mcfs_warning("old snapshots: %s", err.msg); /* the new one is published all the same */
    if (dprintf(report, COPIED "%" PRIu64 "\n%s", copied_bytes(c->config.directory),
                rc ? err.msg : "") < 0)
        mcfs_error("checkpoint %s: its report is lost: %s", c->next_id, rc ? err.msg : "done");
    if (rc && c->config.backup_dir)
        keep_aside(c);
    _exit(rc ? 1 : 0);
}

/* ---- the parent ---- */

struct fork_args {
    struct checkpointer *c;
    int pipe[2];
    int64_t pause_ns;
};

static int do_fork(void *arg)
{
    struct fork_args *f = arg;
    pid_t pid = fork();
    if (pid == 0) {
        close(f->pipe[0]);
        child_main(f->c, f->pipe[1]);
    }
    return pid;
}

/* Waits for the child, at most its time; what it says is what was copied, and its error. */
static int wait_child(struct checkpointer *c, pid_t pid, int report, uint64_t *copied,
                      struct mcfs_error *err)
{
    char text[320];
    size_t n = 0;
    int status = 0;
    int64_t deadline = mcfs_mono_ms() + c->config.child_timeout_ms;
    bool terminated = false;
    for (;;) {
        struct pollfd p = {.fd = report, .events = POLLIN};
        if (poll(&p, 1, 20) > 0 && n < sizeof(text) - 1) {
            ssize_t got = read(report, text + n, sizeof(text) - 1 - n);
            n += got > 0 ? (size_t)got : 0;
        }
        if (waitpid(pid, &status, WNOHANG) == pid)
            break;
        bool stop;
        {
            MCFS_LOCK_SCOPE(&c->lock);
            stop = c->stopping;
        }
        if ((stop || mcfs_mono_ms() > deadline) && !terminated) {
            mcfs_warning("checkpoint %s is ended: %s", c->next_id,
                         stop ? "the master stops" : "it took too long");
            kill(pid, SIGTERM);
            terminated = true;
            deadline = mcfs_mono_ms() + TERM_WAIT_MS;
        } else if (terminated && mcfs_mono_ms() > deadline) {
            kill(pid, SIGKILL);
        }
    }
    ssize_t rest = read(report, text + n, sizeof(text) - 1 - n); /* what it said last */
    n += rest > 0 ? (size_t)rest : 0;
    text[n] = 0;
    const char *said = strchr(text, '\n');
    if (sscanf(text, COPIED "%" SCNu64, copied) != 1)
        *copied = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFSIGNALED(status))
        return mcfs_fail(err, MCFS_INTERNAL_ERROR, "checkpoint %s died of signal %d", c->next_id,
                         WTERMSIG(status));
    return mcfs_fail(err, MCFS_INTERNAL_ERROR, "checkpoint %s: %s", c->next_id,
                     said && said[1] ? said + 1 : "failed");
}

static int take(struct checkpointer *c, int64_t *pause_ns, uint64_t *copied, struct mcfs_error *err)
{
    struct fork_args f = {.c = c};
    if (pipe2(f.pipe, O_CLOEXEC))
        return mcfs_fail_errno(err, errno, "checkpoint");
    int64_t began = mcfs_mono_ns();
    pid_t pid = directory_exclusive(c->config.directory, do_fork, &f);
    *pause_ns = mcfs_mono_ns() - began;
    close(f.pipe[1]);
    int rc =
        pid < 0 ? mcfs_fail_errno(err, errno, "fork") : wait_child(c, pid, f.pipe[0], copied, err);
    close(f.pipe[0]);
    return rc;
}

static void run_one(struct checkpointer *c)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    int64_t pause_ns = 0, began = mcfs_mono_ms(), created = mcfs_wall_ms();
    uint64_t copied = 0;
    int rc = take(c, &pause_ns, &copied, &err);
    int64_t took = mcfs_mono_ms() - began;
    if (rc == 0)
        mcfs_info("snapshot %s published after %" PRId64 " ms; requests waited %" PRId64
                  " us, %" PRIu64 " bytes were copied on write",
                  c->next_id, took, pause_ns / 1000, copied);
    else
        mcfs_error("%s", err.msg);
    {
        MCFS_LOCK_SCOPE(&c->lock);
        c->state.running = false;
        c->state.last_duration_ms = took;
        c->state.last_pause_us = pause_ns / 1000;
        c->state.last_copied_bytes = copied;
        if (rc == 0) {
            memcpy(c->state.last_id, c->next_id, sizeof(c->next_id));
            c->state.last_created_ms = created;
            c->state.last_error[0] = 0;
            c->state.taken++;
        } else {
            snprintf(c->state.last_error, sizeof(c->state.last_error), "%s", err.msg);
            c->state.failed++;
        }
        pthread_cond_broadcast(&c->changed);
    }
    /* The child's life has split huge pages; the next fork is short again when they are whole. */
    directory_collapse(c->config.directory);
}

/* The caller holds the lock, and gets it back; without it the store, which may be far away, is
 * asked for a new id. */
static int begin_locked(struct checkpointer *c, struct mcfs_error *err)
{
    char fresh[SNAP_ID_SIZE];
    if (c->wanted || c->state.running)
        return 0;
    pthread_mutex_unlock(&c->lock);
    int rc = snap_repo_new_id(c->config.store, c->config.cluster, fresh, err);
    pthread_mutex_lock(&c->lock);
    if (rc)
        return -1;
    if (c->stopping)
        return mcfs_fail(err, MCFS_INTERNAL_ERROR, "the master is stopping");
    if (c->wanted || c->state.running) /* somebody else was quicker */
        return 0;
    memcpy(c->next_id, fresh, sizeof(fresh));
    c->wanted = true;
    pthread_cond_broadcast(&c->changed);
    return 0;
}

static void *checkpointer_main(void *arg)
{
    struct checkpointer *c = arg;
    int64_t next = mcfs_mono_ns() + c->config.interval_ms * 1000000;
    pthread_mutex_lock(&c->lock);
    while (!c->stopping) {
        bool due = c->config.interval_ms && mcfs_mono_ns() >= next;
        struct mcfs_error err = MCFS_ERROR_INIT;
        if (due && !c->wanted && begin_locked(c, &err))
            mcfs_error("%s", err.msg);
        if (due)
            next = mcfs_mono_ns() + c->config.interval_ms * 1000000;
        if (!c->wanted) {
            mcfs_cond_wait_until(&c->changed, &c->lock,
                                 c->config.interval_ms ? next : mcfs_mono_ns() + IDLE_NS);
            continue;
        }
        c->wanted = false;
        c->state.running = true;
        pthread_mutex_unlock(&c->lock);
        run_one(c);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

struct checkpointer *checkpointer_start(const struct checkpoint_config *config,
                                        struct mcfs_error *err)
{
    struct checkpointer *c = calloc(1, sizeof(*c));
    if (!c) {
        mcfs_fail_errno(err, ENOMEM, "checkpoints");
        return NULL;
    }
    c->config = *config;
    pthread_mutex_init(&c->lock, NULL);
    mcfs_cond_init(&c->changed);
    int rc = pthread_create(&c->thread, NULL, checkpointer_main, c);
    if (rc) {
        mcfs_fail_errno(err, rc, "checkpoint thread");
        free(c);
        return NULL;
    }
    return c;
}

void checkpointer_stop(struct checkpointer *c)
{
    if (!c)
        return;
    {
        MCFS_LOCK_SCOPE(&c->lock);
        c->stopping = true;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_join(c->thread, NULL);
}

void checkpointer_free(struct checkpointer *c)
{
    if (!c)
        return;
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    free(c);
}

int checkpointer_request(struct checkpointer *c, char id[SNAP_ID_SIZE], struct mcfs_error *err)
{
    MCFS_LOCK_SCOPE(&c->lock);
    if (c->stopping)
        return mcfs_fail(err, MCFS_INTERNAL_ERROR, "the master is stopping");
    if (begin_locked(c, err))
        return -1;
    memcpy(id, c->next_id, SNAP_ID_SIZE);
    return 0;
}

void checkpointer_state(struct checkpointer *c, struct checkpoint_state *out)
{
    MCFS_LOCK_SCOPE(&c->lock);
    *out = c->state;
    out->running |= c->wanted;
}

struct mcfs_object_store *checkpointer_store(struct checkpointer *c)
{
    return c->config.store;
}
