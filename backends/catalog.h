/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_CATALOG_H
#define MCFS_BACKENDS_CATALOG_H

/*
 * A store that is only read: what lies in a directory that another program wrote, and may be
 * writing still.  A layout fills one in when it opens a directory (catalog_add, catalog_seal);
 * everything behind that is the same for all of them, so their ops tables are made of the functions
 * below.
 *
 * The owner may reuse an object's place at any moment.  A layout therefore says how to tell that a
 * place still holds what was found there (still_there), and every read asks after it has the bytes:
 * a reader gets the right ones or an error, never another object's.  For the same reason no
 * descriptor is offered for splicing.
 *
 * Thread safety: filled in by one thread, read by any.
 */

#include "backends/finding.h"
#include "common/table.h"
#include <mooncakefs/backend.h>

#include <stdatomic.h>

struct catalog_entry {
    const char *key;       /* storage key */
    const char *file;      /* relative to the directory */
    uint64_t version;      /* of two entries of a key the greater one counts */
    uint64_t offset, size; /* of the value */
    uint64_t record;       /* where its record begins; the layout's */
    int64_t mtime_ns;
    uint32_t key_len;
    uint32_t crc32c; /* of the value */
    uint32_t mark;   /* what still_there compares; the layout's */
    bool has_crc, whole_file;
    size_t at;       /* among all; the catalog's own */
    atomic_bool bad; /* its checksum was found wrong after the directory was opened */
    atomic_bool forgotten;
    atomic_bool leaving; /* held back by an eviction of who shows the catalog */
};

struct catalog {
    struct mcfs_backend base;
    char *dir;
    int dir_fd;
    int fd;                     /* of the one file that holds everything, or -1 */
    struct catalog_entry **all; /* in order of version once sealed */
    size_t count, cap;
    struct mcfs_table table;
    uint64_t object_bytes, used_bytes, index_bytes;
    const struct finding_sink *sink;
    /* Whether fd, the entry's file, still holds what was found; NULL: it cannot change. */
    bool (*still_there)(const struct catalog_entry *e, int fd);
    _Atomic uint64_t reads, checksum_errors, forgotten, forgotten_bytes;
};

/* An empty one for a directory that is there. The sink (may be NULL) hears of duplicates. */
struct catalog *catalog_new(const struct mcfs_backend_ops *ops, const char *dir,
                            const struct finding_sink *sink, struct mcfs_error *err);
void catalog_free(struct catalog *c);

/* Enters a copy of e, whose storage key may be one without a tenant.  Of two copies of a key the
 * older one is reported and dropped.  Returns 0 or -1 without memory. */
int catalog_add(struct catalog *c, const struct catalog_entry *e);

/* The entry of a storage key, which may be one without a tenant; NULL: there is none. */
const struct catalog_entry *catalog_find(const struct catalog *c, struct mcfs_slice on_disk);

/* That version of an object, or NULL (REPLICA_IS_GONE). */
struct catalog_entry *catalog_lookup(const struct catalog *c, struct mcfs_slice tenant,
                                     struct mcfs_slice key, uint64_t version,
                                     struct mcfs_error *err);

/* It was removed by who shows the catalog: it is not found any more; readers that are open go on.
 * Returns false when that was so before. */
bool catalog_forget(struct catalog *c, struct catalog_entry *e);

/* Nothing more is entered: puts what is there in order. */
void catalog_seal(struct catalog *c);

/* Refuses to open a layout that is only read for writing. */
int catalog_check_read_only(const struct mcfs_backend_config *config, const char *layout,
                            struct mcfs_error *err);

/* What the open of such a layout returns; c: NULL when reading it has failed. */
struct mcfs_backend *catalog_opened(struct catalog *c, uint64_t dropped,
                                    struct mcfs_backend_recovery *recovery);

/* ---- as in struct mcfs_backend_ops ---- */

/* All of them but name, open and reader_is_verified. */
#define CATALOG_OPS                                                                                \
    .put = catalog_put, .get = catalog_get, .reader_open = catalog_reader_open,                    \
    .reader_close = catalog_reader_close, .reader_fd = catalog_reader_fd,                          \
    .reader_read = catalog_reader_read, .reader_verify = catalog_reader_verify,                    \
    .remove = catalog_remove, .rekey = catalog_rekey, .set_attr = catalog_set_attr,                \
    .locate = catalog_locate, .scan = catalog_scan, .sync = catalog_sync, .stats = catalog_stats,  \
    .close = catalog_close

size_t catalog_put(struct mcfs_backend *b, struct mcfs_backend_put *items, size_t n);
size_t catalog_get(struct mcfs_backend *b, struct mcfs_backend_get *items, size_t n);
struct mcfs_backend_reader *catalog_reader_open(struct mcfs_backend *b, struct mcfs_slice tenant,
                                                struct mcfs_slice key, uint64_t version,
                                                struct mcfs_error *err);
void catalog_reader_close(struct mcfs_backend_reader *r);
int catalog_reader_fd(struct mcfs_backend_reader *r, uint64_t *offset, uint64_t *length);
int64_t catalog_reader_read(struct mcfs_backend_reader *r, void *buf, size_t len, uint64_t off,
                            struct mcfs_error *err);
int catalog_reader_verify(struct mcfs_backend_reader *r, struct mcfs_error *err);
size_t catalog_remove(struct mcfs_backend *b, struct mcfs_backend_name *names, size_t n);
int catalog_rekey(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice from,
                  uint64_t from_version, struct mcfs_slice to, uint64_t to_version,
                  struct mcfs_error *err);
int catalog_set_attr(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                     uint64_t version, const struct mcfs_attr *attr, struct mcfs_error *err);
int catalog_locate(struct mcfs_backend *b, struct mcfs_slice tenant, struct mcfs_slice key,
                   uint64_t version, struct mcfs_backend_place *place, struct mcfs_error *err);
int catalog_scan(struct mcfs_backend *b, mcfs_backend_scan_fn fn, void *arg,
                 struct mcfs_error *err);
int catalog_sync(struct mcfs_backend *b, struct mcfs_error *err);
void catalog_stats(struct mcfs_backend *b, struct mcfs_backend_stats *out);
int catalog_close(struct mcfs_backend *b, struct mcfs_error *err);

#endif
