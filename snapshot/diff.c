/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What changed between two snapshots.  Both are read part by part: a part is the objects of some
 * shards, by the hash of their keys.  Where both have the file `mooncakefs` an object is in the
 * shard of its hash, and a part is one shard of each; elsewhere shards are not trusted, each part
 * is picked from all of them, and there are as few parts as memory allows.
 */
#include "snapshot/reader.h"

#include "common/cleanup.h"
#include "common/hash.h"

#define PART_BYTES (64u << 20) /* of packed metadata in one part */

struct item {
    size_t at; /* tenant and key in the text */
    uint32_t tenant_len, key_len;
    uint64_t size, version, checksum;
    int64_t put_start_ms;
    struct mcfs_id client;
    struct mcfs_attr attr;
};

struct part {
    struct mcfs_buf text, items;
    uint32_t number, of;
    bool picks; /* from shards that hold others' objects, too */
};

static struct mcfs_slice tenant_of(const struct part *p, const struct item *i)
{
    return mcfs_slice(p->text.data + i->at, i->tenant_len);
}

static struct mcfs_slice key_of(const struct part *p, const struct item *i)
{
    return mcfs_slice(p->text.data + i->at + i->tenant_len, i->key_len);
}

static int collect(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct part *p = arg;
    if (p->picks && mcfs_shard_of(o->tenant, o->key) % p->of != p->number)
        return 0;
    struct item item = {.at = p->text.len,
                        .tenant_len = (uint32_t)o->tenant.len,
                        .key_len = (uint32_t)o->key.len,
                        .size = o->size,
                        .version = o->version,
                        .checksum = o->has_checksum ? o->checksum : 0,
                        .put_start_ms = o->put_start_ms,
                        .client = o->put_client,
                        .attr = o->attr};
    mcfs_buf_append(&p->text, o->tenant.data, o->tenant.len);
    mcfs_buf_append(&p->text, o->key.data, o->key.len);
    mcfs_buf_append(&p->items, &item, sizeof(item));
    return p->text.failed || p->items.failed ? mcfs_fail_errno(err, ENOMEM, "diff") : 0;
}

static int compare(const struct part *pa, const struct item *a, const struct part *pb,
                   const struct item *b)
{
    int c = mcfs_slice_cmp(tenant_of(pa, a), tenant_of(pb, b));
    return c ? c : mcfs_slice_cmp(key_of(pa, a), key_of(pb, b));
}

/* What is there twice stands in the order of the snapshot. */
static int compare_items(const void *a, const void *b, void *arg)
{
    const struct item *x = a, *y = b;
    int c = compare(arg, x, arg, y);
    return c ? c : (x->at > y->at) - (x->at < y->at);
}

/* Of what is there twice the first counts, as in a restore. */
static void drop_doubles(struct part *p)
{
    struct item *items = (void *)p->items.data;
    size_t n = p->items.len / sizeof(*items), kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || compare(p, &items[kept - 1], p, &items[i]) != 0)
            items[kept++] = items[i];
    p->items.len = kept * sizeof(*items);
}

static int load(struct snap_reader *r, struct part *p, uint32_t number, uint32_t of,
                struct mcfs_error *err)
{
    mcfs_buf_reset(&p->text);
    mcfs_buf_reset(&p->items);
    p->number = number;
    p->of = of;
    p->picks = !r->has_extra;
    for (uint32_t i = 0; i < r->shard_count; i++)
        if ((p->picks || r->shards[i].metadata.shard % of == number) &&
            snap_reader_shard(r, i, collect, p, err))
            return -1;
    if (p->items.len)
        qsort_r(p->items.data, p->items.len / sizeof(struct item), sizeof(struct item),
                compare_items, p);
    drop_doubles(p);
    return 0;
}

static bool same(const struct item *a, const struct item *b, bool extra)
{
    return a->size == b->size && a->put_start_ms == b->put_start_ms && a->checksum == b->checksum &&
           mcfs_id_eq(a->client, b->client) &&
           (!extra || (a->version == b->version && a->attr.mode == b->attr.mode &&
                       a->attr.uid == b->attr.uid && a->attr.gid == b->attr.gid &&
                       a->attr.mtime_ns == b->attr.mtime_ns));
}

struct diff {
    struct part a, b;
    bool extra; /* both have it */
    int (*fn)(const struct snap_difference *d, void *arg, struct mcfs_error *err);
    void *arg;
    struct snap_diff_counts *counts;
};

static int tell(struct diff *d, const struct item *a, const struct item *b, struct mcfs_error *err)
{
    const struct part *p = b ? &d->b : &d->a;
    const struct item *named = b ? b : a;
    if (!named)
        return 0;
    struct snap_difference out = {.change = !a   ? SNAP_ADDED
                                            : !b ? SNAP_REMOVED
                                                 : SNAP_CHANGED,
                                  .tenant = tenant_of(p, named),
                                  .key = key_of(p, named)};
    if (a) {
        out.old_size = a->size;
        out.old_version = a->version;
    }
    if (b) {
        out.new_size = b->size;
        out.new_version = b->version;
    }
    ++*(!a ? &d->counts->added : !b ? &d->counts->removed : &d->counts->changed);
    return d->fn(&out, d->arg, err);
}

static int merge(struct diff *d, struct mcfs_error *err)
{
    const struct item *a = (const void *)d->a.items.data, *b = (const void *)d->b.items.data;
    size_t i = 0, j = 0, n = d->a.items.len / sizeof(*a), m = d->b.items.len / sizeof(*b);
    while (i < n || j < m) {
        int c = i == n ? 1 : j == m ? -1 : compare(&d->a, &a[i], &d->b, &b[j]);
        if (c == 0 && same(&a[i], &b[j], d->extra))
            d->counts->same++;
        else if (tell(d, c <= 0 ? &a[i] : NULL, c >= 0 ? &b[j] : NULL, err))
            return -1;
        i += c <= 0;
        j += c >= 0;
    }
    return 0;
}

static uint64_t packed_bytes(const struct snap_reader *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->shard_count; i++)
        bytes += r->shards[i].metadata.length;
    return bytes;
}

int snap_diff(struct snap_reader *a, struct snap_reader *b,
              int (*fn)(const struct snap_difference *d, void *arg, struct mcfs_error *err),
              void (*progress)(uint64_t done, uint64_t all, void *arg), void *arg,
              struct snap_diff_counts *counts, struct mcfs_error *err)
{
    uint64_t most = MCFS_MAX(packed_bytes(a), packed_bytes(b));
    struct diff d = {.extra = a->has_extra && b->has_extra, .fn = fn, .arg = arg, .counts = counts};
    uint32_t parts =
        d.extra ? MCFS_SHARD_COUNT : (uint32_t)MCFS_MIN(most / PART_BYTES + 1, MCFS_SHARD_COUNT);
    int rc = 0;
    *counts = (struct snap_diff_counts){0};
    for (uint32_t i = 0; rc == 0 && i < parts; i++) {
        rc = load(a, &d.a, i, parts, err) || load(b, &d.b, i, parts, err) ? -1 : merge(&d, err);
        if (progress)
            progress(i + 1, parts, arg);
    }
    mcfs_buf_free(&d.a.text);
    mcfs_buf_free(&d.a.items);
    mcfs_buf_free(&d.b.text);
    mcfs_buf_free(&d.b.items);
    return rc;
}
