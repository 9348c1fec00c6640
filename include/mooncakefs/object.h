/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOONCAKEFS_OBJECT_H
#define MOONCAKEFS_OBJECT_H

/*
 * What every room means by object, replica, tenant and version.  Plain values only: who owns the
 * bytes behind a slice is said by the function that takes or returns it.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MCFS_SHARD_COUNT 1024
#define MCFS_KEY_MAX 4096   /* bytes of an object key */
#define MCFS_TENANT_MAX 255 /* bytes of a tenant name */
#define MCFS_DEFAULT_TENANT "default"

/* Borrowed bytes; not terminated. */
struct mcfs_slice {
    const char *data;
    size_t len;
};

#define MCFS_SLICE_LITERAL(s) ((struct mcfs_slice){(s), sizeof(s) - 1})

static inline struct mcfs_slice mcfs_slice(const void *data, size_t len)
{
    return (struct mcfs_slice){data, len};
}

static inline struct mcfs_slice mcfs_slice_str(const char *s)
{
    return (struct mcfs_slice){s, strlen(s)};
}

static inline bool mcfs_slice_eq(struct mcfs_slice a, struct mcfs_slice b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static inline int mcfs_slice_cmp(struct mcfs_slice a, struct mcfs_slice b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int c = n ? memcmp(a.data, b.data, n) : 0;
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

/* printf helper: "%.*s", MCFS_SLICE_ARG(s) */
#define MCFS_SLICE_ARG(s) (int)(s).len, (s).data ? (s).data : ""

/* Replica kinds and states with Mooncake's numbers (snapshot format, "A replica"). */
enum mcfs_replica_type {
    MCFS_REPLICA_MEMORY = 0,
    MCFS_REPLICA_DISK = 1,
    MCFS_REPLICA_LOCAL_DISK = 2,
    MCFS_REPLICA_DFS = 100,
    MCFS_REPLICA_UNSUPPORTED = 255,
};

enum mcfs_replica_status {
    MCFS_REPLICA_UNDEFINED = 0,
    MCFS_REPLICA_INITIALIZED = 1,
    MCFS_REPLICA_PROCESSING = 2,
    MCFS_REPLICA_COMPLETE = 3,
    MCFS_REPLICA_REMOVED = 4,
    MCFS_REPLICA_FAILED = 5,
};

/* 128-bit id of a node ("client" in Mooncake) or segment, written "<u64>-<u64>" in decimal. */
struct mcfs_id {
    uint64_t hi, lo;
};

static inline bool mcfs_id_eq(struct mcfs_id a, struct mcfs_id b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

/* POSIX attributes that an object keeps across restarts and snapshots. */
struct mcfs_attr {
    uint32_t mode; /* permission bits only (07777) */
    uint32_t uid, gid;
    int64_t mtime_ns; /* nanoseconds since the Unix epoch */
};

#define MCFS_ATTR_DEFAULT_MODE 0644

/*
 * A stored object as nodes and the master exchange it.  `version` names these very bytes: the
 * master hands out a new, greater one for every put of a key, and every read names the version it
 * wants.
 */
struct mcfs_object {
    struct mcfs_slice tenant, key;
    uint64_t version;
    uint64_t size; /* bytes */
    struct mcfs_attr attr;
    uint32_t crc32c; /* of the value; meaningful when has_crc */
    bool has_crc;
    uint8_t data_type; /* Mooncake's ObjectDataType; 0 unknown, 1 kvcache, ... 9 general */
};

#endif
