/* SPDX-License-Identifier: Apache-2.0 */
/* Proves what is seen of a snapshot whose writer is stopped anywhere, in which order files become
 * durable, and which snapshots are kept, deleted and tried. */
#include "common/clock.h"
#include "common/file.h"
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utime.h>

#define ROOT "mooncake_master_snapshot"

static char dir[64];
static struct mcfs_error err;
static struct mcfs_object_store *store;

static void setup(void)
{
    strcpy(dir, "/tmp/mcfs-snap-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    store = snap_store_local_open(dir, &err);
    cr_assert_not_null(store, "%s", err.msg);
}

static void teardown(void)
{
    char command[128];
    store->ops->close(store);
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    cr_assert_eq(system(command), 0);
}

TestSuite(snapshot_publication, .init = setup, .fini = teardown, .timeout = 300);

/* A snapshot of three objects in two shards. */
static int write_one(struct mcfs_object_store *s, const char *cluster, const char *id)
{
    struct snap_writer_config config = {.store = s,
                                        .cluster = cluster,
                                        .id = id,
                                        .info = {1, 2, 1700000000000, 50},
                                        .shard_count = 2};
    struct snap_writer *w = snap_writer_begin(&config, &err);
    struct snap_encoder *e = snap_encoder_new();
    int rc = w ? 0 : -1;
    for (uint32_t shard = 0; rc == 0 && shard < 2; shard++) {
        struct mcfs_slice metadata, extra;
        struct snap_replica r = {.id = shard + 1, .status = 3, .type = MCFS_REPLICA_LOCAL_DISK};
        struct snap_object o = {.tenant = mcfs_slice_str("default"),
                                .key = mcfs_slice_str("key"),
                                .replica_count = 1,
                                .replicas = &r,
                                .version = shard + 1};
        snap_encode_begin(e);
        snap_encode_object(e, &o, &err);
        if (shard)
            snap_encode_object(e, &o, &err);
        snap_encode_end(e, &metadata, &extra, &err);
        rc = snap_writer_shard(w, shard * 1000, metadata, extra, &err);
    }
    snap_encoder_free(e);
    if (w && rc)
        snap_writer_abort(w);
    return rc ? rc : snap_writer_commit(w, &err);
}

/* Everything there is in it is read; 0 when all of it is good. */
static int verify(const char *cluster, const char *id)
{
    uint64_t objects = 0;
    struct snap_reader *r = snap_reader_open(store, cluster, id, &err);
    int rc = r ? snap_reader_verify(r, &objects, &err) : -1;
    snap_reader_close(r);
    cr_assert(rc || objects == 3);
    cr_assert(rc == 0 || err.msg[0]);
    return rc;
}

static void path_of(const char *cluster, const char *id, const char *file, char path[PATH_MAX])
{
    char name[512];
    snap_path(name, sizeof(name), cluster, id, file);
    snprintf(path, PATH_MAX, "%s/%s", dir, name);
}

static bool exists(const char *cluster, const char *id, const char *file)
{
    char path[PATH_MAX];
    path_of(cluster, id, file, path);
    return access(path, F_OK) == 0;
}

/* ---- a store that dies ---- */

struct dying_store {
    struct mcfs_object_store base;
    struct mcfs_object_store *inner;
    int left;   /* calls that change something before it dies */
    bool after; /* the last one is done, but its answer is lost */
    char order[1024];
};

static struct dying_store *dying(struct mcfs_object_store *s)
{
    return (struct dying_store *)s;
}

struct dying_put {
    struct dying_store *store;
    struct mcfs_object_store_put *inner;
    char name[512];
};

static struct mcfs_object_store_put *dying_begin(struct mcfs_object_store *s, const char *name,
                                                 struct mcfs_error *e)
{
    if (dying(s)->left <= 0) {
        mcfs_fail_errno(e, EIO, "%s", name);
        return NULL;
    }
    struct dying_put *p = calloc(1, sizeof(*p));
    p->store = dying(s);
    p->inner = dying(s)->inner->ops->put_begin(dying(s)->inner, name, e);
    strcpy(p->name, name);
    cr_assert_not_null(p->inner, "%s", e->msg);
    return (struct mcfs_object_store_put *)p;
}

static int dying_write(struct mcfs_object_store_put *put, const void *data, size_t len,
                       struct mcfs_error *e)
{
    struct dying_put *p = (struct dying_put *)put;
    if (p->store->left-- <= 0)
        return mcfs_fail_errno(e, EIO, "%s", p->name);
    return p->store->inner->ops->put_write(p->inner, data, len, e);
}

/* What a process that died leaves behind stays behind. */
static void leave(struct dying_put *p)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s.tmp.1.1", dir, p->name);
    cr_assert_eq(mcfs_write_file(path, "half", 4, 0644, false, NULL), 0);
}

static void dying_abort(struct mcfs_object_store_put *put)
{
    struct dying_put *p = (struct dying_put *)put;
    if (p->store->left <= 0)
        leave(p);
    p->store->inner->ops->put_abort(p->inner);
    free(p);
}

static int dying_commit(struct mcfs_object_store_put *put, struct mcfs_error *e)
{
    struct dying_put *p = (struct dying_put *)put;
    int left = p->store->left--, rc = 0;
    strcat(p->store->order, strrchr(p->name, '/'));
    if (left > 1 || (left == 1 && p->store->after)) {
        rc = p->store->inner->ops->put_commit(p->inner, e);
    } else {
        leave(p);
        p->store->inner->ops->put_abort(p->inner);
    }
    if (left <= 1)
        rc = mcfs_fail_errno(e, EIO, "%s", p->name);
    free(p);
    return rc;
}

static ssize_t dying_read(struct mcfs_object_store *s, const char *name, uint64_t off, void *buf,
                          size_t len, struct mcfs_error *e)
{
    return dying(s)->inner->ops->read(dying(s)->inner, name, off, buf, len, e);
}

static int dying_stat(struct mcfs_object_store *s, const char *name, struct mcfs_object_info *info,
                      struct mcfs_error *e)
{
    return dying(s)->inner->ops->stat(dying(s)->inner, name, info, e);
}

static int dying_list(struct mcfs_object_store *s, const char *prefix, mcfs_object_list_fn fn,
                      void *arg, struct mcfs_error *e)
{
    return dying(s)->inner->ops->list(dying(s)->inner, prefix, fn, arg, e);
}

static int dying_remove(struct mcfs_object_store *s, const char *name, struct mcfs_error *e)
{
    if (dying(s)->left-- <= 0)
        return mcfs_fail_errno(e, EIO, "%s", name);
    return dying(s)->inner->ops->remove(dying(s)->inner, name, e);
}

static const struct mcfs_object_store_ops dying_ops = {.name = "dying",
                                                       .put_begin = dying_begin,
                                                       .put_write = dying_write,
                                                       .put_commit = dying_commit,
                                                       .put_abort = dying_abort,
                                                       .read = dying_read,
                                                       .stat = dying_stat,
                                                       .list = dying_list,
                                                       .remove = dying_remove};

/* What latest.txt names, and what is listed, is whole. */
static void check_what_is_seen(const char *cluster)
{
    struct snap_entry *list;
    size_t n;
    char latest[SNAP_ID_SIZE];
    cr_assert_eq(snap_repo_list(store, cluster, &list, &n, &err), 0);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(verify(cluster, list[i].id), 0, "%s: %s", list[i].id, err.msg);
    free(list);
    if (snap_repo_latest(store, cluster, latest))
        cr_assert_eq(verify(cluster, latest), 0, "%s", err.msg);
}

Test(snapshot_publication, order)
{
    struct dying_store d = {{&dying_ops}, store, INT_MAX, false, ""};
    cr_assert_eq(write_one(&d.base, "c", "20260101_000000_000"), 0, "%s", err.msg);
    cr_assert_str_eq(d.order,
                     "/metadata/segments/task_manager/mooncakefs/manifest.txt"
                     "/descriptor.txt/latest.txt");
}

Test(snapshot_publication, a_writer_that_dies_anywhere)
{
    char id[SNAP_ID_SIZE];
    int done = 0;
    cr_assert_eq(write_one(store, "c", "20260101_000000_000"), 0, "%s", err.msg);
    for (int left = 0; !done; left++) {
        for (int after = 0; after < 2; after++) {
            snprintf(id, sizeof(id), "20260102_0000%02d_%03d", after, left);
            struct dying_store d = {{&dying_ops}, store, left, after, ""};
            done = write_one(&d.base, "c", id) == 0;
            check_what_is_seen("c");
        }
        cr_assert_lt(left, 1000);
    }
    /* What the dead have left goes, what is whole stays. */
    uint32_t gone, removed;
    struct snap_entry *list;
    size_t before, after;
    cr_assert_eq(snap_repo_list(store, "c", &list, &before, &err), 0);
    free(list);
    cr_assert_eq(snap_repo_prune(store, "c", 0, 3600 * 1000, &gone, &removed, &err), 0);
    cr_assert_eq(removed, 0u, "all of it is young");
    cr_assert_eq(snap_repo_prune(store, "c", 0, -1000, &gone, &removed, &err), 0);
    cr_assert_gt(removed, 10u);
    cr_assert_eq(snap_repo_list(store, "c", &list, &after, &err), 0);
    free(list);
    cr_assert_eq(before, after);
    check_what_is_seen("c");
    char command[256];
    snprintf(command, sizeof(command), "test -z \"$(find %s -name '*.tmp.*' -o -type d -empty)\"",
             dir);
    cr_assert_eq(system(command), 0);
}

Test(snapshot_publication, what_the_dead_left_goes_at_once_but_only_for_the_owner)
{
    static const char *const left[][3] = {{"", "20260101_000000_000", "metadata"},
                                          {"", "20260101_000000_001", "metadata.tmp.7.1"},
                                          {"", NULL, "latest.txt.tmp.7.1"},
                                          {"c", "20260101_000000_000", "metadata.tmp.7.1"},
                                          {"c", NULL, "latest.txt.tmp.7.1"}};
    char path[PATH_MAX];
    uint32_t files;
    int owner = -1, other = -1;
    for (size_t i = 0; i < 5; i++) {
        path_of(left[i][0], left[i][1], "", path);
        cr_assert_eq(mcfs_make_dirs(path, 0755, NULL), 0);
        path_of(left[i][0], left[i][1], left[i][2], path);
        cr_assert_eq(mcfs_write_file(path, "half", 4, 0644, false, NULL), 0);
    }
    path_of("", "20260101_000000_002", "", path);
    cr_assert_eq(mcfs_make_dirs(path, 0755, NULL), 0);
    owner = store->ops->own(store, ROOT "/", &err);
    cr_assert_geq(owner, 0, "%s", err.msg);
    cr_assert_eq(store->ops->own(store, ROOT "/", &err), -1);
    cr_assert_eq(err.code, MCFS_FILE_LOCK_FAIL);
    cr_assert_eq(snap_repo_clear_dead(store, "", 60000, &other, &files, &err), 0);
    cr_assert_eq(other, -1);
    cr_assert_eq(files, 0u, "somebody else may be writing them");
    cr_assert(exists("", "20260101_000000_002", ""));
    close(owner);
    cr_assert_eq(snap_repo_clear(store, "", INT64_MAX, &files, &err), 0);
    cr_assert_eq(snap_repo_clear(store, "", INT64_MAX / 1000000 + 1, &files, &err), 0);
    cr_assert_eq(files, 0u, "nothing is as old as that");
    cr_assert_eq(snap_repo_clear_dead(store, "", 60000, &other, &files, &err), 0);
    cr_assert_geq(other, 0);
    cr_assert_eq(files, 3u);
    for (size_t i = 0; i < 5; i++)
        cr_assert_eq(exists(left[i][0], left[i][1], left[i][2]), i > 2,
                     "another cluster's stay: %zu", i);
    cr_assert_not(exists("", "20260101_000000_002", ""));
    close(other);
}

Test(snapshot_publication, a_deletion_that_dies_anywhere)
{
    static const char *const ids[] = {"20260101_000000_000", "20260101_000000_001"};
    for (int left = 0; left < 12; left++) {
        char cluster[32];
        snprintf(cluster, sizeof(cluster), "c%d", left);
        write_one(store, cluster, ids[0]);
        write_one(store, cluster, ids[1]);
        struct dying_store d = {{&dying_ops}, store, left, left & 1, ""};
        snap_repo_delete(&d.base, cluster, ids[1], &err);
        check_what_is_seen(cluster);
        snap_repo_delete(&d.base, cluster, ids[0], &err);
        check_what_is_seen(cluster);
    }
}

Test(snapshot_publication, an_aborted_writer_leaves_nothing)
{
    struct snap_writer_config config = {
        .store = store, .cluster = "c", .id = "20260101_000000_000", .shard_count = 1};
    struct snap_writer *w = snap_writer_begin(&config, &err);
    cr_assert_eq(snap_writer_commit(w, &err), -1, "a shard is missing");
    w = snap_writer_begin(&config, &err);
    snap_writer_abort(w);
    cr_assert_not(exists("c", "20260101_000000_000", ""));
    cr_assert_not(exists("c", NULL, "latest.txt"));
}

/* ---- durability: what the kernel is asked for, in order ---- */

static bool recording;
static struct {
    char what; /* 's' file synced, 'd' directory synced, 'r' renamed */
    ino_t ino, parent;
} calls[256];
static size_t call_count;

static void record(char what, ino_t ino, ino_t parent)
{
    if (recording && call_count < 256) {
        calls[call_count].what = what;
        calls[call_count].ino = ino;
        calls[call_count++].parent = parent;
    }
}

int fsync(int fd)
{
    struct stat st;
    if (fstat(fd, &st) == 0)
        record(S_ISDIR(st.st_mode) ? 'd' : 's', st.st_ino, 0);
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    struct stat st, parent;
    char above[PATH_MAX];
    snprintf(above, sizeof(above), "%s", to);
    *strrchr(above, '/') = 0;
    if (stat(from, &st) == 0 && stat(above, &parent) == 0)
        record('r', st.st_ino, parent.st_ino);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static size_t find_call(size_t from, char what, ino_t ino)
{
    while (from < call_count && (calls[from].what != what || calls[from].ino != ino))
        from++;
    return from;
}

Test(snapshot_publication, every_name_is_durable_before_the_next)
{
    struct stat st;
    char path[PATH_MAX];
    recording = true;
    cr_assert_eq(write_one(store, "c", "20260101_000000_000"), 0, "%s", err.msg);
    recording = false;
    size_t renames = 0;
    for (size_t i = 0; i < call_count; i++) {
        if (calls[i].what != 'r')
            continue;
        renames++;
        cr_assert(i > 0 && calls[i - 1].what == 's' && calls[i - 1].ino == calls[i].ino,
                  "its bytes first");
        cr_assert(i + 1 < call_count && calls[i + 1].what == 'd' &&
                      calls[i + 1].ino == calls[i].parent,
                  "then its name");
    }
    cr_assert_eq(renames, 7u);
    /* The new folders' own names, before anything in them is published. */
    static const char *const folders[] = {"", "/" ROOT, "/" ROOT "/c"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s%s", dir, folders[i]);
        cr_assert_eq(stat(path, &st), 0);
        size_t first_rename = 0;
        while (calls[first_rename].what != 'r')
            first_rename++;
        cr_assert_lt(find_call(0, 'd', st.st_ino), first_rename);
    }
}

/* ---- damage ---- */

static const char *const files[] = {"metadata",     "segments",       "task_manager",
                                    "manifest.txt", "descriptor.txt", "mooncakefs"};

static void damage_every_byte(const char *id, bool ours)
{
    for (size_t f = 0; f < (ours ? 6 : 4); f++) {
        char path[PATH_MAX], *data;
        path_of("c", id, files[f], path);
        ssize_t len = mcfs_read_file_alloc(path, 1 << 20, &data, NULL);
        cr_assert_gt(len, 0);
        for (ssize_t at = 0; at < len; at++) {
            cr_assert_eq(truncate(path, at), 0);
            cr_assert_eq(verify("c", id), -1, "%s cut at %zd of %zd", files[f], at, len);
            mcfs_write_file(path, data, (size_t)len, 0644, false, NULL);
            /* Changes are found by checksums, which Mooncake's files do not have. */
            if (!ours || f == 3)
                continue;
            data[at] ^= 0x10;
            mcfs_write_file(path, data, (size_t)len, 0644, false, NULL);
            cr_assert_eq(verify("c", id), -1, "%s changed at %zd of %zd", files[f], at, len);
            data[at] ^= 0x10;
            mcfs_write_file(path, data, (size_t)len, 0644, false, NULL);
        }
        mcfs_write_file(path, data, (size_t)len + 1, 0644, false, NULL);
        if (f != 3 && f != 4)
            cr_assert_eq(verify("c", id), -1, "%s with something behind it", files[f]);
        mcfs_write_file(path, data, (size_t)len, 0644, false, NULL);
        cr_assert_eq(unlink(path), 0);
        cr_assert_eq(verify("c", id), f == 5 ? 0 : -1);
        mcfs_write_file(path, data, (size_t)len, 0644, false, NULL);
        free(data);
    }
    cr_assert_eq(verify("c", id), 0, "%s", err.msg);
}

Test(snapshot_publication, damage_at_every_byte)
{
    write_one(store, "c", "20260101_000000_000");
    damage_every_byte("20260101_000000_000", true);
}

Test(snapshot_publication, cuts_at_every_byte_of_mooncakes_form)
{
    char path[PATH_MAX];
    write_one(store, "c", "20260101_000000_000");
    path_of("c", "20260101_000000_000", "mooncakefs", path);
    cr_assert_eq(unlink(path), 0);
    damage_every_byte("20260101_000000_000", false);
}

/* ---- the repository ---- */

static void expect_candidates(const char *cluster, const char *expected)
{
    char(*ids)[SNAP_ID_SIZE], text[1024] = "";
    size_t n;
    cr_assert_eq(snap_repo_candidates(store, cluster, &ids, &n, &err), 0, "%s", err.msg);
    for (size_t i = 0; i < n; i++) {
        strcat(text, i ? " " : "");
        strcat(text, ids[i] + 16);
    }
    cr_assert_str_eq(text, expected);
    free(ids);
}

static void set_latest(const char *cluster, const char *text)
{
    char path[PATH_MAX];
    path_of(cluster, NULL, "latest.txt", path);
    cr_assert_eq(mcfs_write_file(path, text, strlen(text), 0644, false, NULL), 0);
}

Test(snapshot_publication, candidates)
{
    for (int i = 1; i <= 5; i++) {
        char id[SNAP_ID_SIZE];
        snprintf(id, sizeof(id), "20260101_000000_00%d", i);
        write_one(store, "c", id);
    }
    expect_candidates("c", "005 004 003 002 001");
    set_latest("c", " \n20260101_000000_003\r\n ");
    expect_candidates("c", "003 002 001");
    set_latest("c", "20260101_000000_009"); /* gone: tried all the same, and fails */
    expect_candidates("c", "009 005 004 003 002 001");
    set_latest("c", "20260101_000000_00");
    expect_candidates("c", "005 004 003 002 001");
    set_latest("c", "../../../etc/passwd");
    expect_candidates("c", "005 004 003 002 001");
    char path[PATH_MAX];
    path_of("c", "20260101_000000_005", "descriptor.txt", path);
    cr_assert_eq(truncate(path, 2), 0);
    expect_candidates("c", "004 003 002 001");
    path_of("c", NULL, "latest.txt", path);
    unlink(path);
    expect_candidates("c", "004 003 002 001");
    expect_candidates("other", "");
}

Test(snapshot_publication, retention)
{
    char id[SNAP_ID_SIZE], latest[SNAP_ID_SIZE];
    for (int i = 1; i <= 6; i++) {
        snprintf(id, sizeof(id), "20260101_000000_00%d", i);
        write_one(store, "c", id);
    }
    cr_assert_eq(snap_repo_retain(store, "c", "20260101_000000_002", 2, &err), 0);
    expect_candidates("c", "006 005 002");
    cr_assert_eq(snap_repo_retain(store, "c", "20260101_000000_006", 0, &err), 0);
    expect_candidates("c", "006");
    cr_assert_eq(snap_repo_delete(store, "c", "20260101_000000_006", &err), 0);
    expect_candidates("c", "");
    cr_assert_not(snap_repo_latest(store, "c", latest));
    cr_assert_not(exists("c", NULL, "latest.txt"));
}

Test(snapshot_publication, deleting_the_latest_moves_it)
{
    char id[SNAP_ID_SIZE], latest[SNAP_ID_SIZE];
    for (int i = 1; i <= 4; i++) {
        snprintf(id, sizeof(id), "20260101_000000_00%d", i);
        write_one(store, "c", id);
    }
    set_latest("c", "20260101_000000_002");
    cr_assert_eq(snap_repo_delete(store, "c", "20260101_000000_002", &err), 0);
    cr_assert(snap_repo_latest(store, "c", latest));
    cr_assert_str_eq(latest, "20260101_000000_001");
    cr_assert_eq(snap_repo_delete(store, "c", "20260101_000000_001", &err), 0);
    cr_assert(snap_repo_latest(store, "c", latest));
    cr_assert_str_eq(latest, "20260101_000000_004");
    cr_assert_eq(snap_repo_delete(store, "c", "20260101_000000_003", &err), 0);
    cr_assert(snap_repo_latest(store, "c", latest));
    cr_assert_str_eq(latest, "20260101_000000_004");
}

Test(snapshot_publication, clusters_do_not_see_each_other)
{
    static const char *const clusters[] = {"", "a", "b", "20260101_000000_00x"};
    static const char *const bad[] = {"..", "../x", "a/..", "/a", "a//b", "a/", "."};
    for (int i = 0; i < 4; i++) {
        char id[SNAP_ID_SIZE];
        snprintf(id, sizeof(id), "20260101_000000_00%d", i);
        cr_assert_eq(write_one(store, clusters[i], id), 0, "%s", err.msg);
    }
    expect_candidates("", "000");
    expect_candidates("a", "001");
    expect_candidates("b", "002");
    expect_candidates("20260101_000000_00x", "003");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct snap_entry *list;
        size_t n;
        cr_assert_eq(write_one(store, bad[i], "20260101_000000_000"), -1, "%s", bad[i]);
        cr_assert_eq(snap_repo_list(store, bad[i], &list, &n, &err), -1);
        cr_assert_null(snap_reader_open(store, bad[i], "20260101_000000_000", &err));
    }
    char longest[400];
    memset(longest, 'x', sizeof(longest));
    longest[399] = 0;
    cr_assert_eq(write_one(store, longest, "20260101_000000_000"), -1);
    longest[255] = 0;
    cr_assert_eq(write_one(store, longest, "20260101_000000_000"), 0, "%s", err.msg);
}

Test(snapshot_publication, only_ids_are_listed)
{
    static const char *const others[] = {"20260101_000000_0000", "2026-101_000000_000",
                                         "lost+found", "20260101_000000_00"};
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        char path[PATH_MAX];
        path_of("c", others[i], "", path);
        cr_assert_eq(mcfs_make_dirs(path, 0755, NULL), 0);
        path_of("c", others[i], "descriptor.txt", path);
        mcfs_write_file(path, "0|0|5", 5, 0644, false, NULL);
    }
    expect_candidates("c", "");
    uint32_t gone, removed;
    cr_assert_eq(snap_repo_prune(store, "c", 0, -1000, &gone, &removed, &err), 0);
    cr_assert_eq(removed, 0u);
}

Test(snapshot_publication, new_ids)
{
    char id[SNAP_ID_SIZE], next[SNAP_ID_SIZE];
    cr_assert_eq(snap_repo_new_id(store, "c", id, &err), 0);
    cr_assert(snap_id_is_valid(id));
    for (int i = 0; i < 20; i++) { /* faster than the clock */
        write_one(store, "c", id);
        cr_assert_eq(snap_repo_new_id(store, "c", next, &err), 0);
        cr_assert_gt(strcmp(next, id), 0);
        memcpy(id, next, sizeof(id));
    }
    /* The clock went back: the end of a year, and of an hour that comes twice. */
    setenv("TZ", "Europe/Berlin", 1);
    tzset();
    write_one(store, "c", "20991231_235959_999");
    cr_assert_eq(snap_repo_new_id(store, "c", id, &err), 0);
    cr_assert_str_eq(id, "21000101_000000_000");
    write_one(store, "d", "20991025_025959_999");
    cr_assert_eq(snap_repo_new_id(store, "d", id, &err), 0);
    cr_assert_str_eq(id, "20991025_030000_000");
}

Test(snapshot_publication, files_and_ranges)
{
    struct snap_entry *list;
    size_t n;
    char buf[64];
    write_one(store, "c", "20260101_000000_000");
    cr_assert_eq(snap_repo_list(store, "c", &list, &n, &err), 0);
    cr_assert_eq(n, 1u);
    cr_assert_eq(list[0].info.created_ms, 1700000000000);
    uint64_t bytes = 0;
    for (size_t i = 0; i < 6; i++) {
        char path[PATH_MAX];
        struct stat st;
        path_of("c", list[0].id, files[i], path);
        cr_assert_eq(stat(path, &st), 0);
        bytes += (uint64_t)st.st_size;
    }
    cr_assert_eq(list[0].bytes, bytes);
    cr_assert_eq(snap_repo_read(store, "c", list[0].id, "manifest.txt", 12, buf, 5, &err), 5);
    cr_assert_eq(memcmp(buf, "1.0.0", 5), 0);
    cr_assert_eq(snap_repo_read(store, "c", list[0].id, "manifest.txt", 30, buf, 64, &err), 7);
    cr_assert_eq(snap_repo_read(store, "c", list[0].id, "manifest.txt", 99, buf, 64, &err), 0);
    cr_assert_eq(snap_repo_read(store, "c", list[0].id, "../latest.txt", 0, buf, 64, &err), -1);
    cr_assert_eq(snap_repo_read(store, "c", list[0].id, "absent", 0, buf, 64, &err), -1);
    cr_assert_eq(err.code, MCFS_FILE_NOT_FOUND);
    free(list);
}

static bool remove_whole(const struct mcfs_object_info *info, void *arg)
{
    (void)info;
    return snap_repo_delete(store, "c", arg, NULL) == 0;
}

static bool any_file(const struct mcfs_object_info *info, void *arg)
{
    (void)info;
    (void)arg;
    return true;
}

Test(snapshot_publication, what_is_deleted_while_it_is_listed_is_no_snapshot)
{
    static char id[] = "20260101_000000_000";
    write_one(store, "c", id);
    cr_assert_eq(snap_repo_files(store, "c", id, any_file, NULL, &err), 0, "%s", err.msg);
    cr_assert_eq(snap_repo_files(store, "c", id, remove_whole, id, &err), -1);
    cr_assert_eq(err.errnum, ENOENT);
}

Test(snapshot_publication, an_empty_value_is_refused)
{
    struct mcfs_object_store_put *p = store->ops->put_begin(store, "a/b", &err);
    cr_assert_not_null(p);
    cr_assert_eq(store->ops->put_commit(p, &err), -1);
    struct mcfs_object_info info;
    cr_assert_eq(store->ops->stat(store, "a/b", &info, &err), -1);
}

struct seen {
    char text[256];
};

static bool add_seen(const struct mcfs_object_info *info, void *arg)
{
    struct seen *s = arg;
    strcat(s->text, info->name);
    strcat(s->text, " ");
    return true;
}

Test(snapshot_publication, names_are_listed_in_byte_order)
{
    static const char *const names[] = {"p/b/x", "p/b", "p/b-", "p/a/z/1", "p/c", "q"};
    struct seen s = {""};
    for (size_t i = 0; i < 6; i++) {
        struct mcfs_object_store_put *p;
        if (i == 1) /* a folder has this name */
            continue;
        p = store->ops->put_begin(store, names[i], &err);
        cr_assert_not_null(p, "%s", err.msg);
        store->ops->put_write(p, "x", 1, &err);
        cr_assert_eq(store->ops->put_commit(p, &err), 0);
    }
    cr_assert_eq(store->ops->list(store, "p/", add_seen, &s, &err), 0);
    cr_assert_str_eq(s.text, "p/a/z/1 p/b- p/b/x p/c ");
    s.text[0] = 0;
    cr_assert_eq(store->ops->list(store, "p/b", add_seen, &s, &err), 0);
    cr_assert_str_eq(s.text, "p/b- p/b/x ");
    s.text[0] = 0;
    cr_assert_eq(store->ops->list(store, "", add_seen, &s, &err), 0);
    cr_assert_str_eq(s.text, "p/a/z/1 p/b- p/b/x p/c q ");
}
