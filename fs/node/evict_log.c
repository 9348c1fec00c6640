/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/node/evict_log.h"

#include "common/cleanup.h"
#include "common/crc32c.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mp.h"

#include <endian.h>
#include <fcntl.h>
#include <limits.h>

#define FILE_MAX_BYTES (256u << 20)
#define RECORD_MAX 65536
#define HEAD 8

struct evict_log {
    char *path;
    int fd;
    uint64_t bytes;
    struct block { /* what the names point into */
        struct block *next;
        char bytes[];
    } * blocks;
    struct evict_name *left;
    size_t left_count, left_cap;
    bool sorted; /* by version */
};

void evict_record_put(struct mcfs_buf *b, const struct evict_name *name)
{
    size_t at = b->len;
    mcfs_buf_append(b, "\0\0\0\0\0\0\0\0", HEAD);
    mp_put_array(b, 3);
    mp_put_str(b, name->tenant);
    mp_put_str(b, name->key);
    mp_put_uint(b, name->version);
    if (b->failed)
        return;
    uint32_t len = (uint32_t)(b->len - at - HEAD);
    uint32_t head[2] = {htole32(len), htole32(mcfs_crc32c(0, b->data + at + HEAD, len))};
    memcpy(b->data + at, head, HEAD);
}

static bool read_record(struct mp_reader *p, struct evict_name *name)
{
    return mp_read_array_of(p, 3) && mp_read_raw(p, &name->tenant) && mp_read_raw(p, &name->key) &&
           mp_read_uint(p, &name->version) && mp_done(p) && name->tenant.len > 0 &&
           name->tenant.len <= MCFS_TENANT_MAX && name->key.len <= MCFS_KEY_MAX;
}

size_t evict_records_read(const void *data, size_t len,
                          int (*fn)(const struct evict_name *name, void *arg), void *arg)
{
    const char *p = data;
    size_t at = 0;
    while (len - at >= HEAD) {
        uint32_t head[2];
        struct evict_name name = {0};
        memcpy(head, p + at, HEAD);
        uint32_t size = le32toh(head[0]);
        if (size > RECORD_MAX || size > len - at - HEAD ||
            mcfs_crc32c(0, p + at + HEAD, size) != le32toh(head[1]))
            break;
        struct mp_reader in = mp_reader(p + at + HEAD, size);
        if (!read_record(&in, &name) || fn(&name, arg))
            break;
        at += HEAD + size;
    }
    return at;
}

/* The name's bytes stay where they are. */
static int add(struct evict_log *l, const struct evict_name *name)
{
    if (l->left_count == l->left_cap) {
        size_t cap = l->left_cap ? l->left_cap * 2 : 64;
        struct evict_name *left = realloc(l->left, cap * sizeof(*left));
        if (!left)
            return -1;
        l->left = left;
        l->left_cap = cap;
    }
    l->left[l->left_count++] = *name;
    return 0;
}

static int add_found(const struct evict_name *name, void *arg)
{
    return evict_log_keep(arg, name, 1);
}

static int by_version(const void *a, const void *b)
{
    uint64_t x = ((const struct evict_name *)a)->version,
             y = ((const struct evict_name *)b)->version;
    return (x > y) - (x < y);
}

static int load(struct evict_log *l, struct mcfs_error *err)
{
    _cleanup_free_ char *data = NULL;
    ssize_t len = mcfs_read_file_alloc(l->path, FILE_MAX_BYTES, &data, err);
    if (len < 0)
        return -1;
    size_t fine = evict_records_read(data, (size_t)len, add_found, l);
    l->bytes = (uint64_t)len;
    if (fine < (size_t)len)
        mcfs_info("%s: %zu bytes behind the last whole record are ignored", l->path,
                  (size_t)len - fine);
    return 0;
}

int evict_log_keep(struct evict_log *l, const struct evict_name *names, size_t n)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += names[i].tenant.len + names[i].key.len;
    struct block *b = malloc(sizeof(*b) + bytes);
    if (!b)
        return -1;
    b->next = l->blocks;
    l->blocks = b;
    char *at = b->bytes;
    for (size_t i = 0; i < n; i++) {
        struct evict_name copy = {mcfs_slice(at, names[i].tenant.len),
                                  mcfs_slice(at + names[i].tenant.len, names[i].key.len),
                                  names[i].version};
        memcpy(at, names[i].tenant.data, names[i].tenant.len);
        memcpy(at + names[i].tenant.len, names[i].key.data, names[i].key.len);
        at += names[i].tenant.len + names[i].key.len;
        if (add(l, &copy))
            return -1;
    }
    l->sorted = false;
    return 0;
}

static void forget(struct evict_log *l)
{
    for (struct block *b; (b = l->blocks);) {
        l->blocks = b->next;
        free(b);
    }
    l->left_count = 0;
}

struct evict_log *evict_log_open(const char *path, struct mcfs_error *err)
{
    struct evict_log *l = calloc(1, sizeof(*l));
    if (!l || !(l->path = strdup(path))) {
        free(l);
        mcfs_fail_errno(err, ENOMEM, "%s", path);
        return NULL;
    }
    _cleanup_free_ char *dir = strdup(path);
    char *slash = dir ? strrchr(dir, '/') : NULL;
    l->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (slash)
        *slash = 0;
    if (l->fd < 0)
        mcfs_fail_errno(err, errno, "%s", path);
    else if (load(l, err) == 0 && (!slash || mcfs_sync_dir(dir, err) == 0))
        return l;
    evict_log_free(l);
    return NULL;
}

void evict_log_free(struct evict_log *l)
{
    if (!l)
        return;
    if (l->fd >= 0)
        close(l->fd);
    free(l->path);
    forget(l);
    free(l->left);
    free(l);
}

bool evict_log_has(struct evict_log *l, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version)
{
    size_t low = 0, high = l->left_count;
    if (!l->sorted && high)
        qsort(l->left, high, sizeof(*l->left), by_version);
    l->sorted = true;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (l->left[middle].version < version)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < l->left_count && l->left[low].version == version; low++)
        if (mcfs_slice_eq(l->left[low].tenant, tenant) && mcfs_slice_eq(l->left[low].key, key))
            return true;
    return false;
}

size_t evict_log_left(const struct evict_log *l)
{
    return l->left_count;
}

int evict_log_append(struct evict_log *l, const struct mcfs_buf *records, struct mcfs_error *err)
{
    if (records->failed)
        return mcfs_fail_errno(err, ENOMEM, "%s", l->path);
    if (mcfs_pwrite_full(l->fd, records->data, records->len, l->bytes) || fdatasync(l->fd))
        return mcfs_fail_errno(err, errno, "%s", l->path);
    l->bytes += records->len;
    return 0;
}

uint64_t evict_log_bytes(const struct evict_log *l)
{
    return l->bytes;
}

int evict_log_clear(struct evict_log *l, struct mcfs_error *err)
{
    forget(l);
    if (l->bytes == 0)
        return 0;
    if (ftruncate(l->fd, 0) || fdatasync(l->fd))
        return mcfs_fail_errno(err, errno, "%s", l->path);
    l->bytes = 0;
    return 0;
}
