/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefsctl status. */
#include "tools/ctl.h"

#include "common/cleanup.h"
#include "common/clock.h"

#include <inttypes.h>
#include <string.h>

struct status {
    json_t *master, *nodes, *segments, *snapshots, *warnings;
};

static void add_figure(struct mcfs_slice name, const struct mcfs_slice *text, int64_t number,
                       void *arg)
{
    char key[128];
    snprintf(key, sizeof(key), "%.*s", MCFS_SLICE_ARG(name));
    json_object_set_new(
        arg, key, text ? json_stringn(text->data, text->len) : json_integer((json_int_t)number));
}

static void add_node(const struct mcfs_master_node *n, void *arg)
{
    json_array_append_new(
        arg, json_pack("{s:s, s:s, s:s, s:b, s:I, s:I, s:I, s:I}", "id", n->id, "name", n->name,
                       "endpoint", n->endpoint, "connected", (int)n->connected, "capacity_bytes",
                       (json_int_t)n->capacity_bytes, "used_bytes", (json_int_t)n->used_bytes,
                       "objects", (json_int_t)n->objects, "silent_ms", (json_int_t)n->silent_ms));
}

static void add_segment(const struct mcfs_master_segment *g, void *arg)
{
    json_array_append_new(arg, json_pack("{s:s, s:o, s:s, s:s, s:I, s:I, s:I}", "id", g->id, "name",
                                         ctl_json_bytes(mcfs_slice_str(g->name)), "node",
                                         g->node_id, "state", g->state, "capacity_bytes",
                                         (json_int_t)g->size, "used_bytes", (json_int_t)g->used,
                                         "ranges", (json_int_t)g->ranges));
}

/* Nothing of them is shown to whom the master does not tell of them. */
static int get_segments(struct ctl *c, json_t *list, struct mcfs_error *err)
{
    struct mcfs_error why = MCFS_ERROR_INIT;
    if (mcfs_master_segments(c->master, add_segment, list, &why) == 0 ||
        why.code == MCFS_ILLEGAL_CLIENT)
        return 0;
    *err = why;
    return -1;
}

static void add_snapshot(const struct mcfs_master_snapshot *s, void *arg)
{
    json_array_append_new(arg, json_pack("{s:s, s:I, s:I}", "id", s->id, "created_ms",
                                         (json_int_t)s->created_ms, "bytes", (json_int_t)s->bytes));
}

static int64_t integer(const json_t *object, const char *name)
{
    return json_integer_value(json_object_get(object, name));
}

static const char *string(const json_t *object, const char *name)
{
    const char *s = json_string_value(json_object_get(object, name));
    return s ? s : "";
}

static void warn(struct status *s, const char *fmt, const char *what, const char *more)
{
    char text[512];
    snprintf(text, sizeof(text), fmt, what, more);
    json_array_append_new(s->warnings, json_string(text));
}

/* What an operator would want to be told. */
static void find_warnings(struct status *s)
{
    size_t i;
    json_t *n;
    json_array_foreach(s->nodes, i, n)
    {
        if (!json_is_true(json_object_get(n, "connected")))
            warn(s, "node %s (%s) is away: objects that only it stores cannot be read",
                 string(n, "name"), string(n, "endpoint"));
        else if (integer(n, "capacity_bytes") == 0)
            warn(s, "node %s has 0 B of disk tier: check -o storage_path= and -o capacity=%s",
                 string(n, "name"), "");
        else if (integer(n, "used_bytes") * 100 > integer(n, "capacity_bytes") * 95)
            warn(s, "node %s has its disk tier more than 95%% full%s", string(n, "name"), "");
    }
    if (json_array_size(s->nodes) == 0)
        warn(s, "no node has registered%s%s", "", "");
    if (string(s->master, "snapshot_error")[0])
        warn(s, "the last snapshot failed: %s%s", string(s->master, "snapshot_error"), "");
    int64_t interval = integer(s->master, "snapshot_interval_ms");
    json_t *newest = json_array_get(s->snapshots, 0);
    int64_t age =
        newest ? mcfs_wall_ms() - integer(newest, "created_ms") : integer(s->master, "uptime_ms");
    if (interval && age > 2 * interval)
        warn(s, "snapshots are late: the newest is %s old%s", ctl_age(age), "");
}

static void print_people(const struct ctl *c, const struct status *s)
{
    size_t i;
    json_t *v;
    printf("master     %s  %s, version %s, up %s\n", c->master_address, string(s->master, "role"),
           string(s->master, "version"), ctl_age(integer(s->master, "uptime_ms")));
    printf("cluster    %s\n", string(s->master, "cluster_id"));
    printf("keys       %" PRId64 " (%s), directory %s in memory\n", integer(s->master, "objects"),
           ctl_bytes((uint64_t)integer(s->master, "object_bytes")),
           ctl_bytes((uint64_t)integer(s->master, "directory_memory_bytes")));
    if (integer(s->master, "evicted_replicas"))
        printf("evicted    %" PRId64 " replicas (%s) by their nodes\n",
               integer(s->master, "evicted_replicas"),
               ctl_bytes((uint64_t)integer(s->master, "evicted_bytes")));
    json_array_foreach(s->nodes, i, v) printf(
        "node       %s  %s  disk %s of %s used, %" PRId64 " objects, %s\n", string(v, "name"),
        string(v, "endpoint"), ctl_bytes((uint64_t)integer(v, "used_bytes")),
        ctl_bytes((uint64_t)integer(v, "capacity_bytes")), integer(v, "objects"),
        json_is_true(json_object_get(v, "connected")) ? "connected" : "away");
    json_array_foreach(s->segments, i, v)
        printf("memory     %s  %s of %s used, %" PRId64 " ranges, %s\n", string(v, "name"),
               ctl_bytes((uint64_t)integer(v, "used_bytes")),
               ctl_bytes((uint64_t)integer(v, "capacity_bytes")), integer(v, "ranges"),
               string(v, "state"));
    if (json_array_size(s->snapshots) == 0)
        printf("snapshots  none\n");
    json_array_foreach(s->snapshots, i, v) printf(
        "snapshot   %s  %s, %s old%s\n", string(v, "id"), ctl_bytes((uint64_t)integer(v, "bytes")),
        ctl_age(mcfs_wall_ms() - integer(v, "created_ms")), i == 0 ? " (latest)" : "");
    json_array_foreach(s->warnings, i, v) printf("WARNING    %s\n", json_string_value(v));
}

int ctl_status(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    (void)argv;
    if (argc != 0)
        return EXIT_USAGE;
    struct status s = {json_object(), json_array(), json_array(), json_array(), json_array()};
    if (ctl_connect(c, err) || mcfs_master_status(c->master, add_figure, s.master, err) ||
        mcfs_master_nodes(c->master, add_node, s.nodes, err) || get_segments(c, s.segments, err) ||
        mcfs_master_snapshots(c->master, add_snapshot, s.snapshots, NULL, err)) {
        json_decref(s.master);
        json_decref(s.nodes);
        json_decref(s.segments);
        json_decref(s.snapshots);
        json_decref(s.warnings);
        return EXIT_FAILED;
    }
    find_warnings(&s);
    if (!c->o.json)
        print_people(c, &s);
    json_t *all = json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "address", c->master_address,
                            "master", s.master, "nodes", s.nodes, "segments", s.segments,
                            "snapshots", s.snapshots, "warnings", s.warnings);
    if (c->o.json)
        ctl_print_json(all);
    else
        json_decref(all);
    return EXIT_DONE;
}
