/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/history_index.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/hash.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC 0x315849534643434dull /* "MCCFSIX1" */
#define TENANTS_MAX 65535
#define TENANT_BYTES (MCFS_TENANT_MAX + 1)

struct tenant {
    uint64_t first, end; /* entries */
    char name[TENANT_BYTES];
};

/* The file: this, the tenants, the entries, the text of the keys. */
struct header {
    uint64_t magic;
    uint64_t entries, text_bytes;
    uint32_t tenants, sum;    /* sum: CRC-32C of header (sum 0) and tenants */
    uint64_t replica_next_id; /* these two: of the snapshot, whose id alone could come again */
    int64_t created_ms;
};

struct history_index {
    char id[SNAP_ID_SIZE];
    void *map; /* NULL: the bytes are somebody else's */
    size_t map_bytes;
    const struct header *header;
    const struct tenant *tenants;
    const struct history_entry *entries;
    const char *text;
};

const char *history_index_id(const struct history_index *x)
{
    return x->id;
}

const char *history_index_tenant(const struct history_index *x, uint32_t i)
{
    return i < x->header->tenants ? x->tenants[i].name : NULL;
}

const struct history_entry *history_index_entry(const struct history_index *x, uint64_t i)
{
    return &x->entries[i];
}

/* A damaged entry has an empty key, never one that lies outside. */
struct mcfs_slice history_index_key(const struct history_index *x, const struct history_entry *e)
{
    if (e->key_at > x->header->text_bytes || e->key_len > x->header->text_bytes - e->key_at)
        return mcfs_slice("", 0);
    return mcfs_slice(x->text + e->key_at, e->key_len);
}

uint64_t history_index_end(const struct history_index *x, uint32_t tenant)
{
    return tenant < x->header->tenants ? x->tenants[tenant].end : 0;
}

uint64_t history_index_find(const struct history_index *x, uint32_t tenant, struct mcfs_slice key,
                            bool after)
{
    if (tenant >= x->header->tenants)
        return 0;
    uint64_t low = x->tenants[tenant].first, high = x->tenants[tenant].end;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        struct mcfs_slice k = history_index_key(x, &x->entries[middle]);
        if (after && k.len > key.len)
            k.len = key.len; /* what begins with it counts as equal */
        int c = mcfs_slice_cmp(k, key);
        if (c < 0 || (after && c == 0))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- opening ---- */

void history_index_close(struct history_index *x)
{
    if (!x)
        return;
    if (x->map)
        munmap(x->map, x->map_bytes);
    free(x);
}

static uint32_t sum_of(const struct header *h, const struct tenant *tenants)
{
    struct header copy = *h;
    copy.sum = 0;
    uint32_t sum = mcfs_crc32c(0, &copy, sizeof(copy));
    return mcfs_crc32c(sum, tenants, h->tenants * sizeof(*tenants));
}

/* Finds the parts of `bytes` bytes at the header, none of which is taken at its word. */
static bool find_parts(struct history_index *x, size_t bytes, const struct snap_info *info)
{
    const struct header *h = x->header;
    if (bytes < sizeof(*h))
        return false;
    size_t left = bytes - sizeof(*h);
    if (h->magic != MAGIC || h->created_ms != info->created_ms ||
        h->replica_next_id != info->replica_next_id || h->tenants > TENANTS_MAX ||
        h->tenants > left / sizeof(struct tenant))
        return false;
    left -= h->tenants * sizeof(struct tenant);
    x->tenants = (const void *)(h + 1);
    if (h->entries > left / sizeof(struct history_entry))
        return false;
    left -= h->entries * sizeof(struct history_entry);
    x->entries = (const void *)(x->tenants + h->tenants);
    x->text = (const char *)(x->entries + h->entries);
    if (left != h->text_bytes || h->sum != sum_of(h, x->tenants))
        return false;
    for (uint32_t i = 0; i < h->tenants; i++)
        if (x->tenants[i].first > x->tenants[i].end || x->tenants[i].end > h->entries ||
            x->tenants[i].name[TENANT_BYTES - 1])
            return false;
    return true;
}

struct history_index *history_index_from(const void *bytes, size_t len, const char *id,
                                         const struct snap_info *info)
{
    struct history_index *x = calloc(1, sizeof(*x));
    if (!x)
        return NULL;
    memcpy(x->id, id, SNAP_ID_SIZE);
    x->header = bytes;
    if (find_parts(x, len, info))
        return x;
    free(x);
    return NULL;
}

/* NULL when it is not there or not right: then it is made anew. */
static struct history_index *open_file(const char *path, const char *id,
                                       const struct snap_info *info)
{
    struct stat st;
    _cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) || st.st_size <= 0)
        return NULL;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return NULL;
    struct history_index *x = history_index_from(map, (size_t)st.st_size, id, info);
    if (!x) {
        munmap(map, (size_t)st.st_size);
        return NULL;
    }
    x->map = map;
    x->map_bytes = (size_t)st.st_size;
    return x;
}

/* ---- making ---- */

#define SLOTS (2u * 65536)

struct making {
    struct mcfs_buf entries, text, tenants; /* tenants: as they are met */
    uint32_t *slots;                        /* tenants by hash: number + 1, or 0 */
    uint32_t place, last;
    bool (*stop)(void *arg);
    void *arg;
};

static uint32_t tenant_count(const struct making *m)
{
    return (uint32_t)(m->tenants.len / sizeof(struct tenant));
}

static struct tenant *tenant_at(const struct making *m, uint32_t i)
{
    return (struct tenant *)(void *)m->tenants.data + i;
}

/* The tenant's number; TENANTS_MAX when it can have none. */
static uint32_t tenant_number(struct making *m, struct mcfs_slice name)
{
    struct tenant t = {0};
    uint32_t count = tenant_count(m);
    if (name.len > MCFS_TENANT_MAX || (name.len && memchr(name.data, 0, name.len)))
        return TENANTS_MAX;
    if (m->last < count && mcfs_slice_eq(mcfs_slice_str(tenant_at(m, m->last)->name), name))
        return m->last;
    if (!m->slots && !(m->slots = calloc(SLOTS, sizeof(*m->slots)))) {
        m->tenants.failed = true;
        return TENANTS_MAX;
    }
    uint64_t at = mcfs_hash(name.data, name.len) % SLOTS;
    for (; m->slots[at]; at = (at + 1) % SLOTS)
        if (mcfs_slice_eq(mcfs_slice_str(tenant_at(m, m->slots[at] - 1)->name), name))
            return m->last = m->slots[at] - 1;
    if (count == TENANTS_MAX)
        return TENANTS_MAX;
    if (name.len)
        memcpy(t.name, name.data, name.len);
    mcfs_buf_append(&m->tenants, &t, sizeof(t));
    if (m->tenants.failed)
        return TENANTS_MAX;
    m->slots[at] = count + 1;
    return m->last = count;
}

static int add_object(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    struct making *m = arg;
    bool complete = false;
    uint64_t newest = 0;
    uint32_t tenant = tenant_number(m, o->tenant);
    for (uint32_t i = 0; i < o->replica_count; i++) {
        complete |= o->replicas[i].status == MCFS_REPLICA_COMPLETE;
        newest = MCFS_MAX(newest, o->replicas[i].id);
    }
    if (m->tenants.failed)
        return mcfs_fail_errno(err, ENOMEM, "history");
    /* What a master would not restore was not visible either. */
    if (!complete || tenant == TENANTS_MAX || o->key.len > MCFS_KEY_MAX || o->key.len == 0)
        return 0;
    struct history_entry e = {.key_at = m->text.len,
                              .size = o->size,
                              .version = o->version ? o->version : newest,
                              .mtime_ns = o->has_extra
                                              ? o->attr.mtime_ns
                                              : (int64_t)((uint64_t)o->put_start_ms * 1000000),
                              .key_len = (uint32_t)o->key.len,
                              .mode = o->attr.mode,
                              .uid = o->attr.uid,
                              .gid = o->attr.gid,
                              .place = m->place,
                              .tenant = (uint16_t)tenant,
                              .data_type = o->data_type,
                              .hard_pin = o->hard_pin};
    mcfs_buf_append(&m->text, o->key.data, o->key.len);
    mcfs_buf_append(&m->entries, &e, sizeof(e));
    return m->text.failed || m->entries.failed ? mcfs_fail_errno(err, ENOMEM, "history") : 0;
}

static int by_key(const void *a, const void *b, void *arg)
{
    const struct history_entry *x = a, *y = b;
    const struct making *m = arg;
    if (x->tenant != y->tenant)
        return strcmp(tenant_at(m, x->tenant)->name, tenant_at(m, y->tenant)->name);
    return mcfs_slice_cmp(mcfs_slice(m->text.data + x->key_at, x->key_len),
                          mcfs_slice(m->text.data + y->key_at, y->key_len));
}

/* What is there twice stands in the order of the snapshot: the first counts, as in a restore. */
static int by_key_and_place(const void *a, const void *b, void *arg)
{
    const struct history_entry *x = a, *y = b;
    int c = by_key(a, b, arg);
    return c ? c : (x->key_at > y->key_at) - (x->key_at < y->key_at);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tenant *)a)->name, ((const struct tenant *)b)->name);
}

/* Sorts, drops what is there twice, and gives tenants their ranges. */
static void arrange(struct making *m)
{
    struct history_entry *e = (void *)m->entries.data;
    size_t n = m->entries.len / sizeof(*e), kept = 0;
    if (n)
        qsort_r(e, n, sizeof(*e), by_key_and_place, m);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || by_key(&e[kept - 1], &e[i], m) != 0)
            e[kept++] = e[i];
    m->entries.len = kept * sizeof(*e);
    for (size_t i = 0; i < kept; i++) {
        struct tenant *t = tenant_at(m, e[i].tenant);
        t->first = t->end ? t->first : i;
        t->end = i + 1;
    }
    if (tenant_count(m))
        qsort(m->tenants.data, tenant_count(m), sizeof(struct tenant), by_name);
}

static int write_file(const struct making *m, const struct snap_info *info, const char *dir,
                      const char *path, struct mcfs_error *err)
{
    char temporary[PATH_MAX];
    struct header h = {.magic = MAGIC,
                       .entries = m->entries.len / sizeof(struct history_entry),
                       .text_bytes = m->text.len,
                       .tenants = tenant_count(m),
                       .replica_next_id = info->replica_next_id,
                       .created_ms = info->created_ms};
    h.sum = sum_of(&h, tenant_at(m, 0));
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    if (mcfs_make_dirs(dir, 0755, err))
        return -1;
    _cleanup_fd_ int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || mcfs_write_full(fd, &h, sizeof(h)) ||
        mcfs_write_full(fd, m->tenants.data, m->tenants.len) ||
        mcfs_write_full(fd, m->entries.data, m->entries.len) ||
        mcfs_write_full(fd, m->text.data, m->text.len) || fsync(fd) || rename(temporary, path)) {
        mcfs_fail_errno(err, errno, "%s", temporary);
        unlink(temporary);
        return -1;
    }
    return 0;
}

static int make_file(struct snap_reader *r, struct making *m, const char *dir, const char *path,
                     struct mcfs_error *err)
{
    for (m->place = 0; m->place < snap_reader_shards(r); m->place++) {
        if (m->stop(m->arg))
            return mcfs_fail_errno(err, EINTR, "history");
        if (snap_reader_shard(r, m->place, add_object, m, err))
            return -1;
    }
    arrange(m);
    return write_file(m, snap_reader_info(r), dir, path, err);
}

struct history_index *history_index_open(const char *dir, struct mcfs_object_store *store,
                                         const char *cluster, const char *id,
                                         bool (*stop)(void *arg), void *arg, struct mcfs_error *err)
{
    char path[PATH_MAX];
    struct making m = {.stop = stop, .arg = arg};
    snprintf(path, sizeof(path), "%s/%s.index", dir, id);
    struct snap_reader *r = snap_reader_open_lazily(store, cluster, id, err);
    if (!r)
        return NULL;
    struct history_index *x = open_file(path, id, snap_reader_info(r));
    if (!x && make_file(r, &m, dir, path, err) == 0) {
        x = open_file(path, id, snap_reader_info(r));
        if (!x)
            mcfs_fail(err, MCFS_FILE_READ_FAIL, "%s: cannot be mapped", path);
    }
    snap_reader_close(r);
    mcfs_buf_free(&m.entries);
    mcfs_buf_free(&m.text);
    mcfs_buf_free(&m.tenants);
    free(m.slots);
    return x;
}
