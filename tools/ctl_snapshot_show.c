/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefsctl snapshot show, verify and diff: looking inside. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/id.h"
#include "tools/ctl_snapshot.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

/* ---- show ---- */

struct totals {
    uint64_t objects, bytes, complete, hard_pinned, replicas[256];
    json_t *tenants;               /* name -> [objects, bytes] */
    struct mcfs_buf tenant_name;   /* the last one, whose figures are */
    json_t *objects_of, *bytes_of; /* these */
};

static void find_tenant(struct totals *t, struct mcfs_slice tenant)
{
    json_t *text = ctl_json_bytes(tenant);
    const char *name = json_string_value(text);
    json_t *figures = json_object_get(t->tenants, name);
    if (!figures) {
        figures = json_pack("{s:I, s:I}", "objects", (json_int_t)0, "bytes", (json_int_t)0);
        json_object_set_new(t->tenants, name, figures);
    }
    t->objects_of = json_object_get(figures, "objects");
    t->bytes_of = json_object_get(figures, "bytes");
    mcfs_buf_reset(&t->tenant_name);
    mcfs_buf_append(&t->tenant_name, tenant.data, tenant.len);
    json_decref(text);
}

static int add_object(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct totals *t = arg;
    bool complete = false;
    (void)err;
    t->objects++;
    t->bytes += o->size;
    t->hard_pinned += o->hard_pin;
    for (uint32_t i = 0; i < o->replica_count; i++) {
        t->replicas[o->replicas[i].type]++;
        complete |= o->replicas[i].status == MCFS_REPLICA_COMPLETE;
    }
    t->complete += complete;
    if (!t->objects_of ||
        !mcfs_slice_eq(o->tenant, mcfs_slice(t->tenant_name.data, t->tenant_name.len)))
        find_tenant(t, o->tenant);
    json_integer_set(t->objects_of, json_integer_value(t->objects_of) + 1);
    json_integer_set(t->bytes_of, json_integer_value(t->bytes_of) + (json_int_t)o->size);
    return 0;
}

static bool add_file(const struct mcfs_object_info *info, void *arg)
{
    json_object_set_new(arg, strrchr(info->name, '/') + 1, json_integer((json_int_t)info->size));
    return true;
}

static int count_task(const struct snap_task *t, void *arg, struct mcfs_error *err)
{
    (void)t;
    (void)err;
    ++*(uint64_t *)arg;
    return 0;
}

static int count_discarded(const struct snap_discarded *d, void *arg, struct mcfs_error *err)
{
    (void)d;
    (void)err;
    ++*(uint64_t *)arg;
    return 0;
}

static json_t *segments_json(struct snap_reader *r, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf content = MCFS_BUF_INIT;
    if (snap_reader_segments(r, &content, err))
        return NULL;
    struct snap_segments *s = snap_segments_decode(mcfs_slice(content.data, content.len), err);
    if (!s)
        return NULL;
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->segment_count; i++) {
        const struct snap_segment *g = &s->segments[i];
        char id[MCFS_ID_TEXT_MAX];
        json_array_append_new(
            list, json_pack("{s:s, s:o, s:o, s:I, s:I, s:i}", "id", mcfs_id_format(g->id, id),
                            "name", ctl_json_bytes(g->name), "endpoint",
                            ctl_json_bytes(g->endpoint), "bytes", (json_int_t)g->size, "used_bytes",
                            (json_int_t)(g->allocator ? g->allocator->used_bytes : 0), "status",
                            (int)g->status));
    }
    snap_segments_free(s);
    return list;
}

static json_t *nodes_json(const struct snap_reader *r)
{
    uint32_t count;
    const struct snap_node *nodes = snap_reader_nodes(r, &count);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        char id[MCFS_ID_TEXT_MAX];
        json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:I}", "id",
                                              mcfs_id_format(nodes[i].id, id), "name",
                                              ctl_json_bytes(nodes[i].name), "endpoint",
                                              ctl_json_bytes(nodes[i].endpoint), "capacity_bytes",
                                              (json_int_t)nodes[i].capacity_bytes));
    }
    return list;
}

static int gather(struct snap_reader *r, struct totals *t, uint64_t *tasks, uint64_t *discarded,
                  struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf content = MCFS_BUF_INIT;
    uint32_t shards = snap_reader_shards(r);
    if (snap_reader_tasks(r, &content, err) ||
        snap_tasks_decode(mcfs_slice(content.data, content.len), count_task, tasks, err) ||
        snap_discarded_decode(snap_reader_discarded(r), count_discarded, discarded, err))
        return -1;
    for (uint32_t i = 0; i < shards; i++) {
        if (snap_reader_shard(r, i, add_object, t, err))
            return -1;
        ctl_progress(i + 1, shards, NULL);
    }
    return 0;
}

static void print_show(const json_t *all, const struct totals *t)
{
    const char *name;
    json_t *v, *tenants = json_object_get(all, "tenants"), *files = json_object_get(all, "files");
    printf("snapshot   %s, %s old%s\n", json_string_value(json_object_get(all, "id")),
           ctl_age(mcfs_wall_ms() - json_integer_value(json_object_get(all, "created_ms"))),
           json_is_true(json_object_get(all, "mooncakefs")) ? "" : ", written by Mooncake");
    printf("objects    %" PRIu64 " of %s, %" PRIu64 " with a complete replica, %" PRIu64
           " hard-pinned\n",
           t->objects, ctl_bytes(t->bytes), t->complete, t->hard_pinned);
    json_object_foreach(tenants, name, v)
        printf("tenant     %s: %lld objects, %s\n", name,
               (long long)json_integer_value(json_object_get(v, "objects")),
               ctl_bytes((uint64_t)json_integer_value(json_object_get(v, "bytes"))));
    printf("replicas   %" PRIu64 " memory, %" PRIu64 " local disk, %" PRIu64 " disk, %" PRIu64
           " dfs\n",
           t->replicas[MCFS_REPLICA_MEMORY], t->replicas[MCFS_REPLICA_LOCAL_DISK],
           t->replicas[MCFS_REPLICA_DISK], t->replicas[MCFS_REPLICA_DFS]);
    printf("segments   %zu, nodes %zu, tasks %lld, discarded puts %lld\n",
           json_array_size(json_object_get(all, "segments")),
           json_array_size(json_object_get(all, "nodes")),
           (long long)json_integer_value(json_object_get(all, "tasks")),
           (long long)json_integer_value(json_object_get(all, "discarded")));
    json_object_foreach(files, name, v)
        printf("file       %-14s %s\n", name, ctl_bytes((uint64_t)json_integer_value(v)));
}

static int show_one(struct ctl *c, struct ctl_snapshots *s, const char *id, struct snap_reader *r,
                    struct mcfs_error *err)
{
    const struct snap_info *info = snap_reader_info(r);
    struct totals t = {.tenants = json_object()};
    uint64_t tasks = 0, discarded = 0;
    json_t *files = json_object(), *segments = segments_json(r, err);
    if (!segments || gather(r, &t, &tasks, &discarded, err) ||
        snap_repo_files(s->place.store, s->place.cluster, id, add_file, files, err)) {
        mcfs_buf_free(&t.tenant_name);
        json_decref(t.tenants);
        json_decref(files);
        json_decref(segments);
        return EXIT_FAILED;
    }
    json_t *all = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:b, s:i, s:I, s:I, s:I, s:I, s:o, s:{s:I, s:I, s:I, s:I}, s:o, "
        "s:o, s:I, s:I, s:o}",
        "id", id, "created_ms", (json_int_t)info->created_ms, "last_included_seq",
        (json_int_t)info->last_included_seq, "producer_view_version",
        (json_int_t)info->producer_view_version, "replica_next_id",
        (json_int_t)info->replica_next_id, "mooncakefs", (int)snap_reader_has_extra(r), "shards",
        (int)snap_reader_shards(r), "objects", (json_int_t)t.objects, "bytes", (json_int_t)t.bytes,
        "complete", (json_int_t)t.complete, "hard_pinned", (json_int_t)t.hard_pinned, "tenants",
        t.tenants, "replicas", "memory", (json_int_t)t.replicas[MCFS_REPLICA_MEMORY], "local_disk",
        (json_int_t)t.replicas[MCFS_REPLICA_LOCAL_DISK], "disk",
        (json_int_t)t.replicas[MCFS_REPLICA_DISK], "dfs", (json_int_t)t.replicas[MCFS_REPLICA_DFS],
        "segments", segments, "nodes", nodes_json(r), "tasks", (json_int_t)tasks, "discarded",
        (json_int_t)discarded, "files", files);
    if (c->o.json) {
        ctl_print_json(all);
    } else {
        print_show(all, &t);
        json_decref(all);
    }
    mcfs_buf_free(&t.tenant_name);
    return EXIT_DONE;
}

int ctl_snapshot_show(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct ctl_snapshots s;
    char id[SNAP_ID_SIZE];
    int rc = EXIT_FAILED;
    if (argc > 1)
        return EXIT_USAGE;
    if (ctl_snapshots_open(c, argc ? argv[0] : NULL, &s, err))
        return EXIT_FAILED;
    struct snap_reader *r = ctl_snapshots_id(&s, id, err)
                                ? NULL
                                : snap_reader_open_lazily(s.place.store, s.place.cluster, id, err);
    if (r)
        rc = show_one(c, &s, id, r, err);
    snap_reader_close(r);
    ctl_snapshots_close(&s);
    return rc;
}

/* ---- verify ---- */

/* Adds what is found to the list; whether it is good. */
static bool verify_one(struct ctl *c, struct ctl_snapshots *s, const char *id, json_t *list)
{
    struct mcfs_error bad = MCFS_ERROR_INIT;
    uint64_t objects = 0;
    struct snap_reader *r = snap_reader_open_lazily(s->place.store, s->place.cluster, id, &bad);
    bool good = r && snap_reader_verify(r, &objects, &bad) == 0;
    bool sums = r && snap_reader_has_extra(r);
    snap_reader_close(r);
    json_t *v = json_pack("{s:s, s:b, s:b, s:I}", "id", id, "ok", (int)good, "checksums", (int)sums,
                          "objects", (json_int_t)objects);
    if (!good) /* which may name a key, and that may hold any bytes */
        json_object_set_new(v, "error", ctl_json_bytes(mcfs_slice_str(bad.msg)));
    json_array_append_new(list, v);
    if (!c->o.json && good)
        printf("%s  good, %" PRIu64 " objects%s\n", id, objects,
               sums ? "" : " (Mooncake's: without checksums)");
    else if (!c->o.json)
        printf("%s  DAMAGED: %s\n", id, bad.msg);
    return good;
}

int ctl_snapshot_verify(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct ctl_snapshots s;
    struct snap_entry *list = NULL;
    size_t count = 0, bad = 0;
    char id[SNAP_ID_SIZE];
    if (argc > 1)
        return EXIT_USAGE;
    if (ctl_snapshots_open(c, argc ? argv[0] : NULL, &s, err))
        return EXIT_FAILED;
    json_t *found = json_array();
    bool one = s.place.id[0] || (argc && strcmp(argv[0], "latest") == 0);
    int rc = one ? ctl_snapshots_id(&s, id, err)
                 : snap_repo_list(s.place.store, s.place.cluster, &list, &count, err);
    if (rc == 0 && one)
        bad += !verify_one(c, &s, id, found);
    for (size_t i = 0; rc == 0 && i < count; i++) {
        bad += !verify_one(c, &s, list[i].id, found);
        ctl_progress(i + 1, count, NULL);
    }
    free(list);
    ctl_snapshots_close(&s);
    if (c->o.json && rc == 0)
        ctl_print_json(found);
    else
        json_decref(found);
    if (rc == 0 && bad)
        mcfs_fail(err, MCFS_FILE_READ_FAIL, "%zu damaged", bad);
    return rc || bad ? EXIT_FAILED : EXIT_DONE;
}

/* ---- diff ---- */

struct printer {
    bool json, any;
};

static int print_difference(const struct snap_difference *d, void *arg, struct mcfs_error *err)
{
    static const char *const names[] = {"added", "removed", "changed"};
    struct printer *p = arg;
    if (p->json) {
        json_t *v = json_pack("{s:s, s:o, s:o}", "change", names[d->change], "tenant",
                              ctl_json_bytes(d->tenant), "key", ctl_json_bytes(d->key));
        if (d->change != SNAP_ADDED)
            json_object_set_new(v, "old_size", json_integer((json_int_t)d->old_size));
        if (d->change != SNAP_REMOVED)
            json_object_set_new(v, "new_size", json_integer((json_int_t)d->new_size));
        printf("%s\n    ", p->any ? "," : "");
        json_dumpf(v, stdout, JSON_COMPACT);
        json_decref(v);
    } else {
        printf("%c %.*s/", "+-~"[d->change], MCFS_SLICE_ARG(d->tenant));
        fwrite(d->key.data, 1, d->key.len, stdout);
        putchar('\n');
    }
    p->any = true;
    return ferror(stdout) ? mcfs_fail_errno(err, errno, "standard output") : 0;
}

/* Only between two runs of output would a bar not be torn. */
static void quiet_progress(uint64_t done, uint64_t all, void *arg)
{
    if (!isatty(STDOUT_FILENO))
        ctl_progress(done, all, arg);
}

static struct snap_reader *open_one(struct ctl *c, const char *word, struct ctl_snapshots *s,
                                    char id[SNAP_ID_SIZE], struct mcfs_error *err)
{
    if (ctl_snapshots_open(c, word, s, err) || ctl_snapshots_id(s, id, err))
        return NULL;
    return snap_reader_open_lazily(s->place.store, s->place.cluster, id, err);
}

int ctl_snapshot_diff(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct ctl_snapshots sa = {0}, sb = {0};
    struct snap_diff_counts n = {0};
    struct printer p = {.json = c->o.json};
    char a[SNAP_ID_SIZE], b[SNAP_ID_SIZE];
    if (argc != 2)
        return EXIT_USAGE;
    struct snap_reader *ra = open_one(c, argv[0], &sa, a, err);
    struct snap_reader *rb = ra ? open_one(c, argv[1], &sb, b, err) : NULL;
    int rc = rb ? 0 : -1;
    if (rc == 0 && c->o.json)
        printf("{\n  \"a\": \"%s\", \"b\": \"%s\", \"changes\": [", a, b);
    if (rc == 0)
        rc = snap_diff(ra, rb, print_difference, quiet_progress, &p, &n, err);
    if (rc == 0 && c->o.json)
        printf("],\n  \"added\": %" PRIu64 ", \"removed\": %" PRIu64 ", \"changed\": %" PRIu64
               ", \"same\": %" PRIu64 "\n}\n",
               n.added, n.removed, n.changed, n.same);
    else if (rc == 0)
        printf("%" PRIu64 " added, %" PRIu64 " removed, %" PRIu64 " changed, %" PRIu64 " same\n",
               n.added, n.removed, n.changed, n.same);
    snap_reader_close(ra);
    snap_reader_close(rb);
    ctl_snapshots_close(&sa);
    ctl_snapshots_close(&sb);
    return rc ? EXIT_FAILED : EXIT_DONE;
}
