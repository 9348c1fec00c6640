/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small snapshot of which one file holds anything, read as a restore and a browser would.  The
 * first byte says which: 0 `metadata`, with no `mooncakefs` beside it; 1 `mooncakefs`; 2 the same
 * without its last two fields, for which the right checksum and offset are put; 3 the manifest, the
 * descriptor and latest.txt, separated by zeros.
 */
#include "common/crc32c.h"
#include "common/mp.h"
#include "snapshot/extra.h"
#include "snapshot/snapshot.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ID "20260101_000000_000"

enum { METADATA, SEGMENTS, TASKS, MANIFEST, DESCRIPTOR, EXTRA, LATEST, FILES };
static const char *const names[FILES] = {"metadata",     "segments",       "task_manager",
                                         "manifest.txt", "descriptor.txt", "mooncakefs",
                                         "latest.txt"};

struct memory_store {
    struct mcfs_object_store base;
    struct mcfs_slice files[FILES]; /* data NULL: absent */
};

static int index_of(const char *name)
{
    int i = 0;
    while (i < FILES - 1 && strcmp(strrchr(name, '/') + 1, names[i]) != 0)
        i++;
    return i;
}

static const struct mcfs_slice *find(struct mcfs_object_store *s, const char *name)
{
    const struct mcfs_slice *f = &((struct memory_store *)s)->files[index_of(name)];
    return f->data ? f : NULL;
}

static ssize_t memory_read(struct mcfs_object_store *s, const char *name, uint64_t off, void *buf,
                           size_t len, struct mcfs_error *err)
{
    const struct mcfs_slice *f = find(s, name);
    if (!f)
        return mcfs_fail_errno(err, ENOENT, "%s", name);
    size_t n = off < f->len ? f->len - (size_t)off : 0;
    n = n < len ? n : len;
    if (n)
        memcpy(buf, f->data + off, n);
    return (ssize_t)n;
}

static int memory_stat(struct mcfs_object_store *s, const char *name, struct mcfs_object_info *info,
                       struct mcfs_error *err)
{
    const struct mcfs_slice *f = find(s, name);
    if (!f)
        return mcfs_fail_errno(err, ENOENT, "%s", name);
    *info = (struct mcfs_object_info){name, f->len, 0};
    return 0;
}

static int memory_list(struct mcfs_object_store *s, const char *prefix, mcfs_object_list_fn fn,
                       void *arg, struct mcfs_error *err)
{
    struct mcfs_object_info info = {"mooncake_master_snapshot/" ID "/descriptor.txt", 5, 0};
    (void)s;
    (void)prefix;
    (void)err;
    fn(&info, arg);
    return 0;
}

struct mcfs_object_store_put {
    struct memory_store *store;
    int file;
    struct mcfs_buf content;
};

static struct mcfs_object_store_put *memory_begin(struct mcfs_object_store *s, const char *name,
                                                  struct mcfs_error *err)
{
    struct mcfs_object_store_put *p = calloc(1, sizeof(*p));
    (void)err;
    p->store = (struct memory_store *)s;
    p->file = index_of(name);
    return p;
}

static int memory_write(struct mcfs_object_store_put *p, const void *data, size_t len,
                        struct mcfs_error *err)
{
    (void)err;
    if (len)
        mcfs_buf_append(&p->content, data, len);
    return 0;
}

static int memory_commit(struct mcfs_object_store_put *p, struct mcfs_error *err)
{
    (void)err;
    p->store->files[p->file] = mcfs_slice(p->content.data, p->content.len);
    free(p);
    return 0;
}

static const struct mcfs_object_store_ops memory_ops = {.name = "memory",
                                                        .put_begin = memory_begin,
                                                        .put_write = memory_write,
                                                        .put_commit = memory_commit,
                                                        .read = memory_read,
                                                        .stat = memory_stat,
                                                        .list = memory_list};

static struct memory_store whole = {.base = {&memory_ops}};

static void write_whole(void)
{
    struct snap_node node = {{1, 2}, mcfs_slice_str("n"), mcfs_slice_str("e"), 5};
    struct snap_writer_config config = {.store = &whole.base,
                                        .cluster = "",
                                        .id = ID,
                                        .info = {0, 0, 5, 9},
                                        .shard_count = 2,
                                        .nodes = &node,
                                        .node_count = 1};
    struct mcfs_error err;
    struct snap_replica r = {.id = 1, .status = 3, .type = MCFS_REPLICA_LOCAL_DISK};
    struct snap_object o = {.tenant = mcfs_slice_str("t"),
                            .key = mcfs_slice_str("k"),
                            .replica_count = 1,
                            .replicas = &r};
    struct snap_writer *w = snap_writer_begin(&config, &err);
    struct snap_encoder *e = snap_encoder_new();
    for (uint32_t shard = 0; shard < 2; shard++) {
        struct mcfs_slice metadata, extra;
        snap_encode_begin(e);
        snap_encode_object(e, &o, &err);
        snap_encode_object(e, &o, &err);
        snap_encode_end(e, &metadata, &extra, &err);
        snap_writer_shard(w, shard, metadata, extra, &err);
    }
    snap_encoder_free(e);
    uint64_t objects = 0;
    struct snap_reader *r2 = NULL;
    if (snap_writer_commit(w, &err) == 0)
        r2 = snap_reader_open(&whole.base, "", ID, &err);
    if (!r2 || snap_reader_verify(r2, &objects, &err) || objects != 4)
        abort();
    snap_reader_close(r2);
}

static int sum_object(const struct snap_object *o, void *arg, struct mcfs_error *err)
{
    (void)err;
    *(uint64_t *)arg += o->size + o->replica_count + o->key.len;
    return 0;
}

/* Mode 2: what is between the last `files` and the end is the tail. */
static void complete_extra(const uint8_t *data, size_t size, struct mcfs_buf *out)
{
    static const char files[] =
        "\xa5"
        "files",
                      shards[] =
                          "\xa6"
                          "shards";
    const uint8_t *tail = memmem(data, size, files, sizeof(files) - 1);
    const uint8_t *head = memmem(data, size, shards, sizeof(shards) - 1);
    size_t at = tail ? (size_t)(tail - data) : size;
    uint32_t crc = head ? mcfs_crc32c(0, data, (size_t)(head - data)) : 0;
    if (size)
        mcfs_buf_append(out, data, size);
    mp_put_cstr(out, "crc");
    mp_put_uint(out, mcfs_crc32c(crc, out->data + at, out->len - at));
    mp_put_cstr(out, "index_at");
    mcfs_buf_append(out, "\xcf\0\0\0\0", 5);
    uint8_t offset[4] = {(uint8_t)(at >> 24), (uint8_t)(at >> 16), (uint8_t)(at >> 8), (uint8_t)at};
    mcfs_buf_append(out, offset, 4);
}

static void texts(struct memory_store *s, const uint8_t *data, size_t size)
{
    static const int which[] = {MANIFEST, DESCRIPTOR, LATEST};
    for (int i = 0; i < 3; i++) {
        const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
        size_t len = zero ? (size_t)(zero - data) : size;
        s->files[which[i]] = mcfs_slice(size ? (const char *)data : "", len);
        size -= zero ? len + 1 : size;
        data = zero ? zero + 1 : data;
    }
}

static void use(struct mcfs_object_store *store)
{
    struct mcfs_error err;
    char(*ids)[SNAP_ID_SIZE];
    size_t count;
    uint64_t sum = 0;
    if (snap_repo_candidates(store, "", &ids, &count, &err) == 0)
        free(ids);
    struct snap_reader *r = snap_reader_open_lazily(store, "", ID, &err);
    if (!r)
        return;
    for (uint32_t i = 0; i < snap_reader_shards(r); i++)
        snap_reader_shard(r, i, sum_object, &sum, &err);
    snap_reader_verify(r, &sum, &err);
    snap_reader_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_buf extra = MCFS_BUF_INIT;
    if (!whole.files[LATEST].data)
        write_whole();
    struct memory_store s = whole;
    if (size == 0)
        return 0;
    uint8_t mode = data[0];
    data++, size--;
    struct mcfs_slice rest = mcfs_slice(size ? (const char *)data : "", size);
    if (mode == 0) {
        s.files[METADATA] = rest;
        s.files[EXTRA] = (struct mcfs_slice){NULL, 0};
    } else if (mode == 1) {
        s.files[EXTRA] = rest;
    } else if (mode == 2) {
        complete_extra(data, size, &extra);
        s.files[EXTRA] = mcfs_slice(extra.data, extra.len);
    } else {
        texts(&s, data, size);
    }
    use(&s.base);
    mcfs_buf_free(&extra);
    return 0;
}
