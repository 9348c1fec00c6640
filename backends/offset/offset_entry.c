/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/offset/offset_image.h"
#include "backends/offset/offset_record.h"

void offset_list_add(struct offset_list *l, struct offset_entry *e)
{
    e->before = l->last;
    e->after = NULL;
    if (l->last)
        l->last->after = e;
    else
        l->first = e;
    l->last = e;
}

void offset_list_del(struct offset_list *l, struct offset_entry *e)
{
    if (e->before)
        e->before->after = e->after;
    else
        l->first = e->after;
    if (e->after)
        e->after->before = e->before;
    else
        l->last = e->before;
    e->before = e->after = NULL;
}

static int by_offset(const void *a, const void *b)
{
    const struct offset_entry *x = *(struct offset_entry *const *)a,
                              *y = *(struct offset_entry *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

int offset_list_by_place(const struct offset_list *l, struct offset_by_place *out,
                         struct mcfs_error *err)
{
    size_t n = 0;
    for (const struct offset_entry *e = l->first; e; e = e->after)
        n++;
    *out = (struct offset_by_place){malloc((n + 1) * sizeof(struct offset_entry *)), 0};
    if (!out->v)
        return mcfs_fail_errno(err, ENOMEM, "index");
    for (struct offset_entry *e = l->first; e; e = e->after)
        out->v[out->n++] = e;
    qsort(out->v, n, sizeof(struct offset_entry *), by_offset);
    return 0;
}

struct offset_entry *offset_at_place(const struct offset_by_place *all, uint64_t offset)
{
    const struct offset_entry place = {.offset = offset}, *key = &place;
    struct offset_entry **at =
        all->n ? bsearch(&key, all->v, all->n, sizeof(struct offset_entry *), by_offset) : NULL;
    return at ? *at : NULL;
}

struct offset_entry *offset_entry_new(struct mcfs_slice key)
{
    struct offset_entry *e = calloc(1, sizeof(*e));
    if (!e || !(e->key = malloc(key.len ? key.len : 1))) {
        free(e);
        return NULL;
    }
    memcpy(e->key, key.data, key.len);
    e->key_len = (uint32_t)key.len;
    return e;
}

void offset_entry_free(struct offset_entry *e)
{
    if (e)
        free(e->key);
    free(e);
}

void offset_list_free(struct offset_list *l)
{
    while (l->first) {
        struct offset_entry *e = l->first;
        offset_list_del(l, e);
        offset_entry_free(e);
    }
}

struct mcfs_slice offset_entry_disk_key(const struct offset_entry *e)
{
    size_t skip = e->bare ? sizeof(MCFS_DEFAULT_TENANT) : 0;
    return mcfs_slice(e->key + skip, e->key_len - skip);
}

uint64_t offset_entry_value(const struct offset_entry *e)
{
    return e->offset + offset_record_value_at((uint32_t)offset_entry_disk_key(e).len);
}

uint64_t offset_entry_length(const struct offset_entry *e)
{
    return offset_entry_value(e) - e->offset + e->size;
}

struct offset_log_record offset_entry_record(const struct offset_entry *e)
{
    return (struct offset_log_record){.type = OFFSET_LOG_PUT,
                                      .seq = e->seq,
                                      .replaces = OFFSET_SEQ_NONE,
                                      .version = e->version,
                                      .offset = e->offset,
                                      .size = e->size,
                                      .crc32c = e->crc32c,
                                      .attr = e->attr,
                                      .data_type = e->data_type,
                                      .has_crc = e->has_crc,
                                      .record_crc = e->record_crc,
                                      .bare = e->bare,
                                      .key = offset_entry_key(e)};
}
