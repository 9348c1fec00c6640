/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that snapshots in S3 behave as in a directory: signed requests, ranges, pages, parts, and
 * servers that fail now and then. */
#include "snapshot/snapshot.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct mcfs_error err;
static pid_t server;
static struct mcfs_object_store *store;

/* Starts tests/unit/s3_server.py; its port. */
static int start_server(const char *option)
{
    int out[2], port = 0;
    cr_assert_eq(pipe(out), 0);
    server = fork();
    if (server == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        close(out[0]);
        execl("/usr/bin/python3", "python3", TEST_DATA_DIR "/../unit/s3_server.py", "bucket",
              option, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    cr_assert_eq(fscanf(f, "%d", &port), 1, "python3 does not start");
    fclose(f);
    return port;
}

static void begin(const char *option, const char *place)
{
    char endpoint[64];
    snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%d", start_server(option));
    setenv("MOONCAKE_AWS_S3_ENDPOINT", endpoint, 1);
    setenv("MOONCAKE_AWS_USE_HTTPS", "false", 1);
    setenv("MOONCAKE_AWS_REGION", "test-1", 1);
    setenv("AWS_ACCESS_KEY_ID", "KEY", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "SECRET", 1);
    store = snap_store_open(place, &err);
    cr_assert_not_null(store, "%s", err.msg);
}

static void teardown(void)
{
    if (store)
        store->ops->close(store);
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    store = NULL;
    server = 0;
}

TestSuite(snapshot_s3, .fini = teardown, .timeout = 120);

static char pattern(uint64_t i)
{
    return (char)(i * 7 + (i >> 11));
}

static int put(const char *name, size_t len)
{
    char piece[70000];
    struct mcfs_object_store_put *p = store->ops->put_begin(store, name, &err);
    int rc = p ? 0 : -1;
    for (size_t at = 0; rc == 0 && at < len;) {
        size_t n = len - at < sizeof(piece) ? len - at : sizeof(piece);
        for (size_t i = 0; i < n; i++)
            piece[i] = pattern(at + i);
        rc = store->ops->put_write(p, piece, n, &err);
        at += n;
    }
    if (p && rc)
        store->ops->put_abort(p);
    return rc ? rc : store->ops->put_commit(p, &err);
}

static void check_range(const char *name, uint64_t off, size_t len, ssize_t expected)
{
    char *buf = malloc(len + 1);
    ssize_t n = store->ops->read(store, name, off, buf, len, &err);
    cr_assert_eq(n, expected, "%zd: %s", n, err.msg);
    for (ssize_t i = 0; i < n; i++)
        cr_assert_eq(buf[i], pattern(off + (uint64_t)i));
    free(buf);
}

struct seen {
    char text[4096];
    uint64_t bytes;
    int stop_after;
};

static bool add_seen(const struct mcfs_object_info *info, void *arg)
{
    struct seen *s = arg;
    strcat(s->text, info->name);
    strcat(s->text, " ");
    s->bytes += info->size;
    cr_assert_eq(info->mtime_ns, 1796107923000000000);
    return --s->stop_after != 0;
}

Test(snapshot_s3, values_ranges_and_pages)
{
    static const char *const odd = "p/a b&c<d>\"+%=~'";
    struct mcfs_object_info info;
    struct seen s = {.stop_after = -1};
    begin(NULL, "s3://bucket/some/prefix/");
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof(name), "p/%d", i);
        cr_assert_eq(put(name, 100), 0, "%s", err.msg);
    }
    cr_assert_eq(put(odd, 5), 0, "%s", err.msg);
    cr_assert_eq(put("q", 1), 0, "%s", err.msg);
    cr_assert_eq(store->ops->list(store, "p/", add_seen, &s, &err), 0, "%s", err.msg);
    cr_assert_str_eq(s.text, "p/0 p/1 p/2 p/3 p/4 p/5 p/6 p/7 p/a b&c<d>\"+%=~' ");
    cr_assert_eq(s.bytes, 805u);
    s = (struct seen){.stop_after = 2};
    cr_assert_eq(store->ops->list(store, "", add_seen, &s, &err), 0);
    cr_assert_str_eq(s.text, "p/0 p/1 ");
    cr_assert_eq(store->ops->stat(store, odd, &info, &err), 0, "%s", err.msg);
    cr_assert_eq(info.size, 5u);
    cr_assert_eq(info.mtime_ns, 1796107923000000000);
    check_range("p/0", 0, 1000, 100);
    check_range("p/0", 10, 20, 20);
    check_range("p/0", 90, 20, 10);
    check_range("p/0", 100, 20, 0);
    check_range("p/0", 5, 0, 0);
    cr_assert_eq(store->ops->stat(store, "absent", &info, &err), -1);
    cr_assert_eq(err.code, MCFS_FILE_NOT_FOUND);
    check_range("absent", 0, 10, -1);
    cr_assert_eq(err.errnum, ENOENT);
    cr_assert_eq(store->ops->remove(store, "p/0", &err), 0);
    cr_assert_eq(store->ops->remove(store, "p/0", &err), 0, "absent already: %s", err.msg);
    check_range("p/0", 0, 10, -1);
    cr_assert_eq(put("empty", 0), -1);
    cr_assert_eq(put("p/../x", 1), -1);
}

Test(snapshot_s3, a_large_value_goes_up_in_parts)
{
    size_t part = 8u << 20, sizes[] = {part, part + 1, 3 * part, 3 * part + 12345};
    struct mcfs_object_info info;
    begin(NULL, "s3://bucket");
    for (size_t i = 0; i < 4; i++) {
        cr_assert_eq(put("large", sizes[i]), 0, "%s", err.msg);
        cr_assert_eq(store->ops->stat(store, "large", &info, &err), 0);
        cr_assert_eq(info.size, sizes[i]);
        check_range("large", part - 100, 200, sizes[i] == part ? 100 : i == 1 ? 101 : 200);
        check_range("large", sizes[i] - 77, 1000, 77);
    }
    /* An upload that is given up is ended, and what was there stays. */
    struct mcfs_object_store_put *p = store->ops->put_begin(store, "large", &err);
    char *zeros = calloc(1, part);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(store->ops->put_write(p, zeros, part, &err), 0, "%s", err.msg);
    char n[8] = "";
    cr_assert_eq(store->ops->read(store, "_uploads", 0, n, 8, &err), 1);
    cr_assert_str_eq(n, "1");
    store->ops->put_abort(p);
    cr_assert_eq(store->ops->read(store, "_uploads", 0, n, 8, &err), 1);
    cr_assert_str_eq(n, "0");
    check_range("large", 0, 1000, 1000);
    free(zeros);
}

static void expect_number(const char *name, const char *text)
{
    char n[8] = "";
    cr_assert_geq(store->ops->read(store, name, 0, n, 7, &err), 0, "%s", err.msg);
    cr_assert_str_eq(n, text);
}

Test(snapshot_s3, parts_go_up_side_by_side_but_not_all_at_once)
{
    char n[8] = "";
    begin(NULL, "s3://bucket");
    cr_assert_eq(put("together", (8u << 20) * 9 + 1), 0, "%s", err.msg);
    check_range("together", (8u << 20) * 4 - 1000, 2000, 2000);
    check_range("together", (8u << 20) * 9 - 1, 10, 2);
    cr_assert_eq(store->ops->read(store, "_peak", 0, n, 7, &err), 1);
    cr_assert_geq(atoi(n), 2);
    cr_assert_lt(atoi(n), 4);
}

Test(snapshot_s3, an_upload_of_which_a_part_is_refused_is_ended)
{
    struct mcfs_object_info info;
    begin(NULL, "s3://bucket/some");
    for (size_t parts = 3; parts < 9; parts++) {
        cr_assert_eq(put("dir/refused", parts * (8u << 20)), -1);
        cr_assert_eq(err.errnum, EACCES);
        cr_assert_str_eq(err.msg,
                         "s3://bucket/some/dir/refused: PUT: access is denied "
                         "(HTTP status 403, AccessDenied: no more of this)");
        cr_assert_eq(store->ops->stat(store, "dir/refused", &info, &err), -1);
    }
    store->ops->close(store);
    store = snap_store_open("s3://bucket", &err);
    expect_number("_uploads", "0");
}

/* A process that dies while it uploads. */
static void leave_upload(const char *name)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        static char zeros[9u << 20];
        struct mcfs_object_store_put *p = store->ops->put_begin(store, name, &err);
        if (p && store->ops->put_write(p, zeros, sizeof(zeros), &err) == 0)
            kill(getpid(), SIGKILL);
        _exit(1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

Test(snapshot_s3, what_dead_uploads_left_is_pruned)
{
    uint32_t snapshots, files;
    begin(NULL, "s3://bucket");
    leave_upload("mooncake_master_snapshot/c/20260101_000000_000/metadata");
    leave_upload("mooncake_master_snapshot/c/20260101_000000_000/mooncakefs");
    leave_upload("mooncake_master_snapshot/c/20260101_000000_001/metadata");
    leave_upload("mooncake_master_snapshot/other/20260101_000000_001/metadata");
    leave_upload("elsewhere");
    expect_number("_uploads", "5");
    cr_assert_eq(snap_repo_prune(store, "c", 0, 3600000, &snapshots, &files, &err), 0, "%s",
                 err.msg);
    cr_assert_eq(files, 0u, "they may be under way");
    expect_number("_uploads", "5");
    cr_assert_eq(snap_repo_prune(store, "c", 0, -3600000, &snapshots, &files, &err), 0, "%s",
                 err.msg);
    cr_assert_eq(files, 3u);
    expect_number("_uploads", "2");
}

static void publish(const char *id)
{
    struct snap_writer_config config = {
        .store = store, .cluster = "c", .id = id, .info = {0, 0, 5, 9}, .shard_count = 3};
    struct snap_replica r = {.id = 1, .status = 3, .type = MCFS_REPLICA_LOCAL_DISK};
    struct snap_object o = {.tenant = mcfs_slice_str("t"),
                            .key = mcfs_slice_str("k"),
                            .replica_count = 1,
                            .replicas = &r};
    struct snap_writer *w = snap_writer_begin(&config, &err);
    struct snap_encoder *e = snap_encoder_new();
    cr_assert_not_null(w, "%s", err.msg);
    for (uint32_t shard = 0; shard < 3; shard++) {
        struct mcfs_slice metadata, extra;
        snap_encode_begin(e);
        snap_encode_object(e, &o, &err);
        snap_encode_end(e, &metadata, &extra, &err);
        cr_assert_eq(snap_writer_shard(w, shard, metadata, extra, &err), 0, "%s", err.msg);
    }
    snap_encoder_free(e);
    cr_assert_eq(snap_writer_commit(w, &err), 0, "%s", err.msg);
}

static void check_snapshots(void)
{
    char id[SNAP_ID_SIZE], latest[SNAP_ID_SIZE];
    struct snap_entry *list;
    size_t n;
    uint64_t objects = 0;
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(snap_repo_new_id(store, "c", id, &err), 0, "%s", err.msg);
        publish(id);
    }
    cr_assert_eq(snap_repo_retain(store, "c", id, 2, &err), 0, "%s", err.msg);
    cr_assert_eq(snap_repo_list(store, "c", &list, &n, &err), 0, "%s", err.msg);
    cr_assert_eq(n, 2u);
    cr_assert_str_eq(list[0].id, id);
    cr_assert(snap_repo_latest(store, "c", latest));
    cr_assert_str_eq(latest, id);
    struct snap_reader *r = snap_reader_open(store, "c", id, &err);
    cr_assert_not_null(r, "%s", err.msg);
    cr_assert_eq(snap_reader_verify(r, &objects, &err), 0, "%s", err.msg);
    cr_assert_eq(objects, 3u);
    snap_reader_close(r);
    free(list);
}

Test(snapshot_s3, snapshots)
{
    begin(NULL, "s3://bucket/x");
    check_snapshots();
}

Test(snapshot_s3, a_server_that_fails_now_and_then)
{
    begin("--flaky", "s3://bucket/x");
    cr_assert_eq(put("large", (40u << 20) + 5), 0, "%s", err.msg);
    for (uint64_t at = 0; at < (40u << 20); at += 5u << 20)
        check_range("large", at, 100000, 100000);
    check_range("large", 40u << 20, 100, 5);
    check_snapshots();
}

Test(snapshot_s3, a_child_of_fork_has_connections_of_its_own)
{
    int status;
    begin(NULL, "s3://bucket");
    cr_assert_eq(put("before", 1000), 0, "%s", err.msg);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 20; i++)
            if (put("child", 100000))
                _exit(1);
        _exit(0);
    }
    for (int i = 0; i < 20; i++)
        check_range("before", 0, 1000, 1000);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0);
    check_range("child", 0, 100000, 100000);
}

Test(snapshot_s3, refusals_say_why)
{
    begin(NULL, "s3://bucket");
    cr_assert_eq(put("a", 5), 0, "%s", err.msg);
    setenv("AWS_SECRET_ACCESS_KEY", "ANOTHER", 1);
    struct mcfs_object_store *wrong = snap_store_open("s3://bucket", &err);
    char buf[8];
    struct seen s = {.stop_after = -1};
    cr_assert_eq(wrong->ops->read(wrong, "a", 0, buf, 5, &err), -1);
    cr_assert_eq(err.errnum, EACCES);
    cr_assert_not_null(strstr(err.msg, "SignatureDoesNotMatch"), "%s", err.msg);
    cr_assert_null(strstr(err.msg, "ANOTHER"));
    wrong->ops->close(wrong);
    setenv("AWS_SECRET_ACCESS_KEY", "SECRET", 1);
    wrong = snap_store_open("s3://elsewhere", &err);
    cr_assert_eq(wrong->ops->list(wrong, "", add_seen, &s, &err), -1);
    cr_assert_eq(err.errnum, EIO);
    cr_assert_not_null(strstr(err.msg, "NoSuchBucket"), "%s", err.msg);
    wrong->ops->close(wrong);
    cr_assert_null(snap_store_open("s3://", &err));
    cr_assert_null(snap_store_open("s3://a?b", &err));
    unsetenv("AWS_ACCESS_KEY_ID");
    cr_assert_null(snap_store_open("s3://bucket", &err));
    cr_assert_not_null(strstr(err.msg, "MOONCAKE_AWS_ACCESS_KEY_ID"));
}
