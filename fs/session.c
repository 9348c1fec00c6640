/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/session.h"
#include "fs/history.h"
#include "snapshot/snapshot.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "fs/fs.h"
#include "fs/locks.h"
#include "fs/loop.h"
#include "fs/staging_area.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>

#define JANITOR_MS 1000
#define TEMP_EXPIRE_MS 3600000

struct run {
    struct fs fs;
    void (*ready)(void *arg);
    void *ready_arg;
    pthread_t janitor;
    bool janitor_started;
    atomic_bool stopping;
};

const struct fuse_lowlevel_ops fs_operations;

static void on_init(void *userdata, struct fuse_conn_info *conn)
{
    struct fs *fs = userdata;
    struct run *run = MCFS_CONTAINER_OF(fs, struct run, fs);
    /* An inode is one version: nothing in its pages can be out of date. */
    conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
    /* Attributes come with a listing when those of its first names were asked for. */
    conn->want |= conn->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
    /* Requests are read, not spliced: that is one system call for each instead of two. */
    conn->want &= ~(unsigned)FUSE_CAP_SPLICE_READ;
    conn->want |=
        conn->capable & (FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_ATOMIC_O_TRUNC |
                         FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE | FUSE_CAP_PARALLEL_DIROPS);
    fs->skip_open = fs->options->ro && strcmp(fs->options->opens, "auto") == 0 &&
                    conn->capable & FUSE_CAP_NO_OPEN_SUPPORT;
    /* No handle tells which open file locks when OPEN is skipped: the kernel locks by inode. */
    if (fs->skip_open)
        conn->want &= ~(unsigned)(FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS);
    /* What the kernel offers is the limit for good, unless the answer says more (read_ahead.c). */
    conn->max_readahead = 1u << 20;
    conn->max_background = 64;
    conn->congestion_threshold = 48;
    pthread_rwlock_wrlock(&fs->notify_lock);
    fs->mounted = true;
    pthread_rwlock_unlock(&fs->notify_lock);
    fs_widen_read_ahead(fs);
    run->ready(run->ready_arg);
}

const struct fuse_lowlevel_ops fs_operations = {
    .init = on_init,
    .lookup = fs_lookup,
    .forget = fs_forget,
    .forget_multi = fs_forget_multi,
    .getattr = fs_getattr,
    .setattr = fs_setattr,
    .readlink = fs_readlink,
    .mknod = fs_mknod,
    .mkdir = fs_mkdir,
    .unlink = fs_unlink,
    .rmdir = fs_rmdir,
    .symlink = fs_symlink,
    .rename = fs_rename,
    .link = fs_link,
    .open = fs_open,
    .create = fs_create,
    .read = fs_read,
    .write_buf = fs_write_buf,
    .lseek = fs_lseek,
    .fallocate = fs_fallocate,
    .copy_file_range = fs_copy_file_range,
    .flush = fs_flush,
    .getlk = fs_getlk,
    .setlk = fs_setlk,
    .flock = fs_flock,
    .fsync = fs_fsync,
    .release = fs_release,
    .opendir = fs_opendir,
    .readdir = fs_readdir,
    .readdirplus = fs_readdirplus,
    .releasedir = fs_releasedir,
    .statfs = fs_statfs,
    .getxattr = fs_getxattr,
    .listxattr = fs_listxattr,
    .setxattr = fs_setxattr,
    .removexattr = fs_removexattr,
};

/* ---- mount points ---- */

/* Runs fusermount3, which may unmount what an ordinary user has mounted. */
static int run_fusermount(const char *mountpoint)
{
    pid_t pid = fork();
    if (pid == 0) {
        execlp("fusermount3", "fusermount3", "-u", "-z", "-q", "--", mountpoint, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

int session_clean_stale(const char *mountpoint, struct mcfs_error *err)
{
    struct statfs st; /* unlike stat, never answered from a cache */
    if (statfs(mountpoint, &st) == 0 || (errno != ENOTCONN && errno != ECONNABORTED))
        return 0;
    if (umount2(mountpoint, MNT_DETACH | UMOUNT_NOFOLLOW) && run_fusermount(mountpoint))
        return mcfs_fail_errno(err, ENOTCONN, "%s: cannot clean the stale mount", mountpoint);
    return 1;
}

static int check_mountpoint(const char *mountpoint, struct mcfs_error *err)
{
    struct stat st;
    if (stat(mountpoint, &st))
        return mcfs_fail_errno(err, errno, "mount point %s", mountpoint);
    if (!S_ISDIR(st.st_mode))
        return mcfs_fail_errno(err, ENOTDIR, "mount point %s", mountpoint);
    return 0;
}

/* ---- parts ---- */

static void *janitor_main(void *arg)
{
    struct run *run = arg;
    int64_t next_expire = mcfs_mono_ms() + TEMP_EXPIRE_MS, next_flush = 0;
    while (!atomic_load(&run->stopping)) {
        poll(NULL, 0, JANITOR_MS / 10);
        claims_sweep(&run->fs, false);
        staging_area_tidy(run->fs.staging);
        if (mcfs_mono_ms() >= next_flush) {
            local_dirs_flush(run->fs.dirs);
            next_flush = mcfs_mono_ms() + JANITOR_MS;
        }
        if (mcfs_mono_ms() >= next_expire) {
            temp_names_expire(run->fs.temps);
            next_expire = mcfs_mono_ms() + TEMP_EXPIRE_MS;
        }
    }
    return NULL;
}

/* "a b  c" -> {"a", "b", "c", NULL}; points into text, which is changed. */
static const char **split_words(char *text)
{
    size_t count = 0;
    for (const char *p = text; p && *p; p++)
        count += *p == ' ';
    const char **words = calloc(count + 2, sizeof(*words));
    if (!words)
        return NULL;
    char *save;
    count = 0;
    for (char *w = text ? strtok_r(text, " ", &save) : NULL; w; w = strtok_r(NULL, " ", &save))
        words[count++] = w;
    return words;
}

#define VIEW_WORDS 6

/* The flags of a view's master: it keeps nothing, and shows what lies there. */
static int view_words(const struct mount_options *o, const char *where, char *words[VIEW_WORDS],
                      struct mcfs_error *err)
{
    struct snap_place place;
    if (snap_place_open(where, o->cluster, &place, err))
        return -1;
    int rc = 0;
    if (strcmp(place.store->ops->name, "moved") == 0 || place.id[0])
        rc = mcfs_fail(err, MCFS_INVALID_PARAMS,
                       "%.200s is not a snapshot store's root, which has mooncake_master_snapshot/",
                       where);
    else if (asprintf(&words[0], "--snapshot_local_path=%s", where) < 0 ||
             asprintf(&words[1], "--cluster_id=%s", place.cluster) < 0 ||
             !(words[2] = strdup("--enable_snapshot=false")) ||
             !(words[3] = strdup("--enable_snapshot_restore=false")) ||
             !(words[4] = strdup("--snapshot_read_only=true")))
        rc = mcfs_fail_errno(err, ENOMEM, "%s", where);
    snap_place_close(&place);
    return rc;
}

static int start_node(struct run *run, const struct source *source, struct state_dir *state,
                      struct mcfs_error *err)
{
    const struct mount_options *o = run->fs.options;
    _cleanup_free_ char *flags = o->master_flags ? strdup(o->master_flags) : NULL;
    _cleanup_free_ const char **words = split_words(flags);
    struct node_config config = {
        .state = state,
        .master_address = source->kind == SOURCE_MASTER ? source->master_address : NULL,
        .master_flags = words,
        .listen_address = o->listen,
        .auth_key_file = o->auth_key_file,
        .backend = o->backend,
        .store = {.bucket_size_limit = o->bucket_size_limit,
                  .bucket_keys_limit = o->bucket_keys_limit,
                  .capacity_bytes = mount_options_capacity(o),
                  .single_object_min_bytes = o->single_object_min,
                  .flush_interval_ms = (uint32_t)o->flush_interval_ms,
                  .compact_bytes_per_sec = o->compact_rate,
                  .eviction_policy = o->eviction,
                  .io_engine = o->io_engine,
                  .offset_persist = o->offset_persist,
                  .offset_checkpoint_ms = (uint32_t)o->offset_checkpoint_ms,
                  .offset_nodes_max = o->offset_nodes_max,
                  .offset_without_record_crc = !o->offset_record_crc,
                  .fsdir = o->fsdir},
        .eviction = {.max_bytes = o->eviction_max_bytes,
                     .watermarks = o->eviction_watermarks,
                     .high = o->eviction_high,
                     .low = o->eviction_low},
        .rpc_timeout_ms = (uint32_t)o->rpc_timeout_ms,
        .lease_wait_ms = (uint32_t)o->lease_wait_ms,
        .read_only = o->ro,
        .verify_strict = strcmp(o->verify, "strict") == 0,
        .may_wait = loop_may_wait,
        .recall = fs_recall,
        .lost = fs_session_lost,
        .evicting = fs_evicting,
        .forget_names = fs_forget_names,
        .evicted = fs_evicted,
        .dropping = unopened_hold,
        .arg = &run->fs};
    static const char *const keeps_nothing[] = {"--enable_snapshot=false",
                                                "--enable_snapshot_restore=false", NULL};
    char *view[VIEW_WORDS] = {NULL};
    if (source->offload) {
        config.store.dir = source->offload;
        config.store.read_only = true;
        config.refresh_ms = (uint32_t)o->refresh_ms;
        config.master_flags = keeps_nothing;
    }
    if (source->snapshots)
        config.master_flags = (const char **)(void *)view;
    if (!source->snapshots || view_words(o, source->snapshots, view, err) == 0)
        run->fs.node = node_start(&config, err);
    for (int i = 0; i < VIEW_WORDS; i++)
        free(view[i]);
    return run->fs.node ? 0 : -1;
}

static int start_parts(struct run *run, const struct source *source, struct state_dir *state,
                       struct mcfs_error *err)
{
    struct fs *fs = &run->fs;
    fs->started_ns = mcfs_wall_ns();
    fs->staging_memory_max = fs->options->single_object_min;
    pthread_mutex_init(&fs->claims_lock, NULL);
    pthread_mutex_init(&fs->unopened_lock, NULL);
    pthread_rwlock_init(&fs->notify_lock, NULL);
    opened_init(&fs->opened);
    behind_init(&fs->behind);
    _cleanup_free_ char *history = state_dir_path(state, "history");
    fs->history = history_new(history);
    fs->inodes = inode_table_new();
    fs->dirs = local_dirs_new();
    fs->locks = locks_new();
    fs->plus = plus_new(fs, err);
    if (!fs->plus)
        return -1;
    _cleanup_free_ char *staging = state_dir_path(state, "staging");
    _cleanup_free_ char *labels = state_dir_path(state, "temporaries");
    fs->staging = staging_area_open(staging, labels, err);
    if (!fs->staging)
        return -1;
    fs->temps = fs->inodes ? temp_names_new(fs->inodes, fs->staging, fs->staging_memory_max,
                                            fs->options->temp_pattern)
                           : NULL;
    if (!fs->inodes || !fs->history || !fs->dirs || !fs->temps || !fs->locks)
        return mcfs_fail_errno(err, ENOMEM, "mount");
    _cleanup_free_ char *directories = state_dir_path(state, "directories");
    if (local_dirs_open_log(fs->dirs, directories, err) || temp_names_recover(fs->temps, err) ||
        start_node(run, source, state, err))
        return -1;
    int rc = pthread_create(&run->janitor, NULL, janitor_main, run);
    if (rc)
        return mcfs_fail_errno(err, rc, "janitor thread");
    run->janitor_started = true;
    return 0;
}

static void commit_leftover(struct inode *inode, void *arg)
{
    struct fs *fs = arg;
    struct mcfs_error err = MCFS_ERROR_INIT;
    MCFS_LOCK_SCOPE(&inode->lock);
    if (inode->kind == INODE_WRITER && inode->staging && inode->dirty &&
        writer_commit(fs, inode, false, NULL, &err))
        mcfs_error("%.*s was not published: %s", MCFS_SLICE_ARG(inode_key(inode)), err.msg);
}

static int stop_parts(struct run *run, struct mcfs_error *err)
{
    struct fs *fs = &run->fs;
    int rc = 0;
    atomic_store(&run->stopping, true);
    if (run->janitor_started)
        pthread_join(run->janitor, NULL);
    if (fs->locks)
        locks_end_waits(fs->locks);
    if (fs->node) {
        opened_release_all(&fs->opened, fs);
        claims_sweep(fs, true);
        inode_for_all(fs->inodes, commit_leftover, fs);
    }
    temp_names_free(fs->temps);
    if (fs->inodes)
        unopened_free(fs);
    inode_table_free(fs->inodes); /* closes what readers are left, before the store goes */
    locks_free(fs->locks);
    rc = node_stop(fs->node, err);
    plus_free(fs->plus);
    history_free(fs->history);
    if (fs->dirs)
        local_dirs_flush(fs->dirs);
    local_dirs_free(fs->dirs);
    staging_area_close(fs->staging);
    return rc;
}

static void add_option(struct fuse_args *args, const char *fmt, const char *value)
{
    char text[PATH_MAX + 64];
    snprintf(text, sizeof(text), fmt, value ? value : "");
    fuse_opt_add_arg(args, "-o");
    fuse_opt_add_arg(args, text);
}

static void build_args(struct fuse_args *args, const struct mount_options *o)
{
    _cleanup_free_ char *name = NULL;
    const char *source = o->fsname ? o->fsname : o->source ? o->source : "mooncakefs";
    fuse_opt_add_arg(args, "mooncakefs");
    /* A comma would end the option. */
    name = strdup(source);
    for (char *p = name; p && *p; p++)
        if (*p == ',')
            *p = '_';
    add_option(args, "fsname=%s", name);
    add_option(args, "subtype=mooncakefs", NULL);
    if (o->allow_other)
        add_option(args, "allow_other", NULL);
    if (o->default_permissions)
        add_option(args, "default_permissions", NULL);
    if (o->ro)
        add_option(args, "ro", NULL);
    if (o->debug)
        fuse_opt_add_arg(args, "-d");
}

/* ---- the session's descriptor ---- */

static ssize_t io_read(int fd, void *buf, size_t len, void *userdata)
{
    struct fs *fs = userdata;
    ssize_t n = read(fd, buf, len);
    if (n > 0)
        passthrough_on_request(&fs->passthrough, buf, (size_t)n);
    return n;
}

static ssize_t io_writev(int fd, struct iovec *iov, int count, void *userdata)
{
    struct fs *fs = userdata;
    passthrough_on_reply(&fs->passthrough, iov, count);
    return writev(fd, iov, count);
}

static ssize_t io_splice(int from, off_t *from_off, int to, off_t *to_off, size_t len,
                         unsigned flags, void *userdata)
{
    (void)userdata;
    return splice(from, from_off, to, to_off, len, flags);
}

static int take_descriptor(struct fs *fs, struct mcfs_error *err)
{
    static const struct fuse_custom_io io = {.read = io_read,
                                             .writev = io_writev,
                                             .splice_receive = io_splice,
                                             .splice_send = io_splice};
    fs->passthrough.wanted =
        strcmp(fs->options->passthrough, "off") != 0 && passthrough_permitted();
    int rc = fuse_session_custom_io(fs->session, &io, fuse_session_fd(fs->session));
    return rc ? mcfs_fail_errno(err, -rc, "FUSE session") : 0;
}

static int serve(struct run *run, struct mcfs_error *err)
{
    struct fs *fs = &run->fs;
    struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
    build_args(&args, fs->options);
    fs->session = fuse_session_new(&args, &fs_operations, sizeof(fs_operations), fs);
    fuse_opt_free_args(&args);
    if (!fs->session)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "the FUSE library refuses the options");
    int rc = -1;
    if (fuse_set_signal_handlers(fs->session)) {
        mcfs_fail_errno(err, errno, "signal handlers");
    } else if (fuse_session_mount(fs->session, fs->options->mountpoint)) {
        mcfs_fail(err, MCFS_INTERNAL_ERROR,
                  "cannot mount on %s: is /dev/fuse there, and may this user mount?",
                  fs->options->mountpoint);
    } else if (take_descriptor(fs, err) == 0) {
        rc = loop_run(fs->session, fs->options->threads, err);
        fs_stop_notifying(fs);
        fuse_session_unmount(fs->session);
    }
    fuse_remove_signal_handlers(fs->session);
    return rc;
}

int session_run(struct mount_options *options, void (*ready)(void *arg), void *arg,
                struct mcfs_error *err)
{
    struct run *run = calloc(1, sizeof(*run));
    struct source source = {0};
    struct state_dir state = {.lock_fd = -1};
    if (!run)
        return mcfs_fail_errno(err, ENOMEM, "mount");
    run->fs.options = options;
    run->ready = ready;
    run->ready_arg = arg;
    int rc = source_parse(options, &source, err);
    if (rc == 0)
        rc = check_mountpoint(options->mountpoint, err);
    if (rc == 0)
        rc = state_dir_open(&state, source.state_dir, err);
    if (rc == 0) {
        rc = start_parts(run, &source, &state, err);
        if (rc == 0)
            rc = serve(run, err);
        struct mcfs_error stop = MCFS_ERROR_INIT;
        if (stop_parts(run, &stop)) {
            mcfs_error("%s", stop.msg);
            if (rc == 0 && err)
                *err = stop;
            rc = -1;
        }
        if (run->fs.session)
            fuse_session_destroy(run->fs.session);
    }
    state_dir_close(&state);
    source_free(&source);
    free(run);
    return rc;
}
