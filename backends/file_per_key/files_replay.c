/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/file_per_key/files_replay.h"

#include "common/cleanup.h"

/* The next place at which a record begins, or len. */
static size_t next_record(const uint8_t *data, size_t at, size_t len)
{
    struct log_record r;
    while (at < len && !log_parse_record(data + at, len - at, &r))
        at++;
    return at;
}

struct replay_file *replay_find(const struct replay *r, uint64_t id)
{
    size_t from = 0, to = r->count;
    while (from < to) {
        size_t mid = from + (to - from) / 2;
        if (r->v[mid].id < id)
            from = mid + 1;
        else
            to = mid;
    }
    return from < r->count && r->v[from].id == id ? &r->v[from] : NULL;
}

/* The object's file becomes one of a removed object. */
static void forget(struct replay *r, struct file_entry *e)
{
    struct replay_file *f = replay_find(r, e->id);
    mcfs_table_del(&r->table, e);
    if (f)
        f->entry = NULL;
    file_entry_drop(e);
}

static int add_file(struct replay *r, struct file_entry *e, uint64_t at)
{
    if (r->count == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 256;
        struct replay_file *v = realloc(r->v, cap * sizeof(*v));
        if (!v)
            return -1;
        r->v = v;
        r->cap = cap;
    }
    if (mcfs_table_add(&r->table, e))
        return -1;
    r->v[r->count++] = (struct replay_file){.id = e->id, .record = at, .entry = e};
    return 0;
}

static int replay_put(struct replay *r, const struct log_record *rec, uint64_t at, unsigned shard)
{
    struct file_entry *e = file_entry_new(rec->key);
    if (!e)
        return -1;
    e->version = rec->version;
    e->id = rec->offset;
    e->size = rec->size;
    e->attr = rec->attr;
    e->crc32c = rec->crc32c;
    e->has_crc = rec->has_crc;
    e->data_type = rec->data_type;
    e->shard = (uint8_t)shard;
    struct file_entry *other = file_find(&r->table, rec->key, rec->version);
    if (other)
        forget(r, other);
    if (add_file(r, e, at)) {
        file_entry_drop(e);
        return -1;
    }
    r->last_id = e->id;
    if (r->next_id <= e->id)
        r->next_id = e->id + 1;
    return 0;
}

static int replay_rekey(struct replay *r, struct file_entry *e, const struct log_record *rec)
{
    struct file_entry *other = file_find(&r->table, rec->new_key, rec->new_version);
    char *key = malloc(rec->new_key.len ? rec->new_key.len : 1);
    if (!key)
        return -1;
    memcpy(key, rec->new_key.data, rec->new_key.len);
    if (other == e) {
        free(key);
        return 0;
    }
    if (other)
        forget(r, other);
    mcfs_table_del(&r->table, e);
    free(e->key);
    e->key = key;
    e->key_len = (uint32_t)rec->new_key.len;
    e->version = rec->new_version;
    if (mcfs_table_add(&r->table, e) == 0)
        return 0;
    struct replay_file *f = replay_find(r, e->id);
    if (f)
        f->entry = NULL;
    file_entry_drop(e);
    return -1;
}

/* Whether a record can be one of ours. */
static bool makes_sense(const struct replay *r, const struct log_record *rec)
{
    switch (rec->type) {
    case LOG_PUT: /* ids only grow */
        return rec->offset > r->last_id && rec->offset < UINT64_MAX / 2 &&
               rec->size <= INT64_MAX / 2 && storage_key_is_valid(rec->key);
    case LOG_REKEY:
        return storage_key_is_valid(rec->new_key);
    case LOG_DELETE:
    case LOG_ATTR:
    case LOG_SYNC:
        break;
    }
    return true;
}

static int replay_record(struct replay *r, const struct log_record *rec, uint64_t at,
                         unsigned shard)
{
    struct file_entry *e;
    switch (rec->type) {
    case LOG_PUT:
        return replay_put(r, rec, at, shard);
    case LOG_SYNC:
        r->sure_to = rec->synced_to && rec->synced_to < at ? rec->synced_to : at;
        return 0;
    case LOG_DELETE:
    case LOG_ATTR:
    case LOG_REKEY:
        break;
    }
    e = file_find(&r->table, rec->key, rec->version);
    if (!e)
        return 0; /* its PUT record is one of those that were stepped over */
    if (rec->type == LOG_REKEY)
        return replay_rekey(r, e, rec);
    if (rec->type == LOG_DELETE)
        forget(r, e);
    else
        e->attr = rec->attr;
    return 0;
}

int files_replay(const void *data, size_t len, unsigned shard, struct replay *out,
                 struct mcfs_error *err)
{
    const uint8_t *p = data;
    struct mcfs_error bad = MCFS_ERROR_INIT;
    size_t at = 0;
    *out = (struct replay){.table = MCFS_TABLE_INIT(file_entry_hash)};
    uint64_t next = 0;
    if (log_parse_header(p, len, &next, &bad) == 0 && next < UINT64_MAX / 2) {
        at = LOG_HEADER_SIZE;
    } else if (bad.code == MCFS_INVALID_VERSION) {
        if (err)
            *err = bad;
        return -1;
    } else {
        next = 0;
        out->no_header = true;
        size_t to = next_record(p, 0, len);
        out->stepped_over = to < len ? to : 0;
        at = to < len ? to : 0;
    }
    out->next_id = next;
    out->end = at;
    while (at < len) {
        struct log_record r;
        size_t n = log_parse_record(p + at, len - at, &r);
        if (!n) {
            at = next_record(p, at, len);
            out->stepped_over += at < len ? at - out->end : 0;
            continue;
        }
        if (!makes_sense(out, &r))
            out->stepped_over += n;
        else if (replay_record(out, &r, at, shard))
            return mcfs_fail_errno(err, ENOMEM, "index");
        at += n;
        out->end = at;
    }
    return 0;
}

void replay_free(struct replay *r)
{
    for (size_t i = 0; i < r->count; i++)
        file_entry_drop(r->v[i].entry);
    free(r->v);
    mcfs_table_free(&r->table);
    *r = (struct replay){.v = NULL};
}
