/* SPDX-License-Identifier: Apache-2.0 */
/* What the admin paths tell of memory segments. */
#include "common/cleanup.h"
#include "common/id.h"
#include "master/admin_http.h"
#include "master/evict.h"
#include "master/service_segment.h"

#include <inttypes.h>
#include <jansson.h>

/* Calls fn for each memory segment.  In the directory: a checkpoint's fork must not meet a lock. */
static void each(struct master *m, void (*fn)(const struct segment_info *g, void *arg), void *arg)
{
    struct segments *s = directory_segments(m->directory);
    struct segment_info g;
    unsigned slot = directory_enter(m->directory);
    for (uint32_t i = 1; i <= segments_max(s); i++)
        if (segments_get(s, i, 0, &g))
            fn(&g, arg);
    directory_leave(m->directory, slot);
}

static void put_name(const struct segment_info *g, void *arg)
{
    admin_put_key(arg, mcfs_slice(g->name, g->name_len));
    mcfs_buf_append_str(arg, "\n");
}

void admin_memory_names(struct master *m, struct mcfs_buf *out)
{
    each(m, put_name, out);
}

struct query {
    struct mcfs_slice name;
    struct mcfs_id id;
    bool is_id, found;
    uint64_t used, size;
};

static void add_up(const struct segment_info *g, void *arg)
{
    struct query *q = arg;
    if (!mcfs_slice_eq(mcfs_slice(g->name, g->name_len), q->name) &&
        !(q->is_id && mcfs_id_eq(g->id, q->id)))
        return;
    q->found = true;
    q->used += g->used;
    q->size += g->size;
}

bool admin_memory_query(struct master *m, struct mcfs_slice name, uint64_t *used,
                        uint64_t *capacity)
{
    struct query q = {.name = name};
    q.is_id = mcfs_id_parse(name, &q.id) == 0;
    each(m, add_up, &q);
    *used = q.used;
    *capacity = q.size;
    return q.found;
}

struct details {
    struct master *m;
    json_t *list;
};

static void add_detail(const struct segment_info *g, void *arg)
{
    const struct details *d = arg;
    char id[MCFS_ID_TEXT_MAX], node[MCFS_ID_TEXT_MAX] = "";
    if (g->node)
        mcfs_id_format(directory_client_id(d->m->directory, g->node), node);
    json_array_append_new(
        d->list,
        json_pack("{s:o*,s:s,s:s,s:s,s:o*,s:b,s:s,s:I,s:I,s:I,s:I,s:I}", "segment",
                  admin_json_text(g->name, g->name_len), "id", mcfs_id_format(g->id, id), "node",
                  node, "type", "MEMORY", "endpoint", admin_json_text(g->endpoint, g->endpoint_len),
                  "connected", g->state != SEGMENT_AWAITED, "state", segment_state_name(g->state),
                  "base", (json_int_t)g->base, "capacity_bytes", (json_int_t)g->size, "used_bytes",
                  (json_int_t)g->used, "largest_free_bytes", (json_int_t)g->largest_free, "ranges",
                  (json_int_t)g->ranges));
}

void admin_memory_details(struct master *m, json_t *list)
{
    struct details d = {m, list};
    each(m, add_detail, &d);
}

/* A name as a label's value. */
static void put_label(struct mcfs_buf *b, const struct segment_info *g)
{
    for (uint32_t i = 0; i < g->name_len; i++) {
        unsigned char c = (unsigned char)g->name[i];
        if (c < 0x20 || c >= 0x7f || c == '%')
            mcfs_buf_printf(b, "%%%02X", c);
        else
            mcfs_buf_printf(b, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
}

struct lines {
    struct mcfs_buf *b;
    const char *metric;
    bool used;
};

static void put_line(const struct segment_info *g, void *arg)
{
    const struct lines *l = arg;
    char id[MCFS_ID_TEXT_MAX];
    mcfs_buf_printf(l->b, "mooncakefs_%s{segment=\"", l->metric);
    put_label(l->b, g);
    mcfs_buf_printf(l->b, "\",id=\"%s\"} %" PRIu64 "\n", mcfs_id_format(g->id, id),
                    l->used ? g->used : g->size);
}

static void put_figure(struct mcfs_buf *b, const char *name, const char *type, const char *help,
                       uint64_t value)
{
    mcfs_buf_printf(b,
                    "# HELP mooncakefs_%s %s\n# TYPE mooncakefs_%s %s\nmooncakefs_%s %" PRIu64 "\n",
                    name, help, name, type, name, value);
}

void admin_memory_metrics(struct master *m, struct mcfs_buf *b)
{
    struct segments_sum sum;
    struct evict_counts evicted = {0};
    struct lines capacity = {b, "segment_capacity_bytes", false};
    struct lines used = {b, "segment_used_bytes", true};
    unsigned slot = directory_enter(m->directory);
    segments_sum(directory_segments(m->directory), &sum);
    directory_leave(m->directory, slot);
    if (restoring_is_over(m->restoring))
        evictor_counts(m->evictor, &evicted);
    put_figure(b, "segments", "gauge", "Memory segments.", sum.count);
    put_figure(b, "memory_held_bytes", "gauge",
               "Bytes that are nobody's and may still be read or written.", sum.held_bytes);
    put_figure(b, "allocation_failures_total", "counter", "Puts into memory that found no room.",
               sum.failures);
    put_figure(b, "memory_evicted_objects_total", "counter",
               "Objects whose memory replicas were evicted.", evicted.objects);
    put_figure(b, "memory_evicted_bytes_total", "counter", "Bytes of those replicas.",
               evicted.bytes);
    mcfs_buf_append_str(b,
                        "# HELP mooncakefs_segment_capacity_bytes Size of a memory segment.\n"
                        "# TYPE mooncakefs_segment_capacity_bytes gauge\n");
    each(m, put_line, &capacity);
    mcfs_buf_append_str(b,
                        "# HELP mooncakefs_segment_used_bytes Bytes allocated in it.\n"
                        "# TYPE mooncakefs_segment_used_bytes gauge\n");
    each(m, put_line, &used);
}
