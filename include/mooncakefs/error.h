/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOONCAKEFS_ERROR_H
#define MOONCAKEFS_ERROR_H

/*
 * The one error type.  A function that can fail returns 0 or -1 (or a pointer or NULL) and
 * takes `struct mcfs_error *err` last.  It fills in a code (Mooncake's number, so that clients of
 * its master recognise it), an errno for POSIX callers, and a message that names the path, key or
 * peer.  Errors travel up unlogged and are printed once, at the edge: an RPC reply, a FUSE reply,
 * or main().  Every function accepts err == NULL.
 */

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

/* X(name, number, errno): numbers as in Mooncake's ErrorCode. */
#define MCFS_ERROR_CODES(X)                                                                        \
    X(OK, 0, 0)                                                                                    \
    X(INTERNAL_ERROR, -1, EIO)                                                                     \
    X(BUFFER_OVERFLOW, -10, EOVERFLOW)                                                             \
    X(SHARD_INDEX_OUT_OF_RANGE, -100, EINVAL)                                                      \
    X(SEGMENT_NOT_FOUND, -101, ENOENT)                                                             \
    X(SEGMENT_ALREADY_EXISTS, -102, EEXIST)                                                        \
    X(CLIENT_NOT_FOUND, -103, ENOENT)                                                              \
    X(NO_AVAILABLE_HANDLE, -200, ENOSPC)                                                           \
    X(INVALID_VERSION, -300, EINVAL)                                                               \
    X(INVALID_KEY, -400, EINVAL)                                                                   \
    X(WRITE_FAIL, -500, EIO)                                                                       \
    X(INVALID_PARAMS, -600, EINVAL)                                                                \
    X(ILLEGAL_CLIENT, -601, EPERM)                                                                 \
    X(INVALID_WRITE, -700, EIO)                                                                    \
    X(INVALID_READ, -701, EIO)                                                                     \
    X(INVALID_REPLICA, -702, EIO)                                                                  \
    X(REPLICA_IS_NOT_READY, -703, EHOSTDOWN)                                                       \
    X(OBJECT_NOT_FOUND, -704, ENOENT)                                                              \
    X(OBJECT_ALREADY_EXISTS, -705, EEXIST)                                                         \
    X(OBJECT_HAS_LEASE, -706, EBUSY)                                                               \
    X(LEASE_EXPIRED, -707, ESTALE)                                                                 \
    X(OBJECT_HAS_REPLICATION_TASK, -708, EBUSY)                                                    \
    X(REPLICA_NOT_FOUND, -710, ENOENT)                                                             \
    X(REPLICA_ALREADY_EXISTS, -711, EEXIST)                                                        \
    X(REPLICA_IS_GONE, -712, ESTALE)                                                               \
    X(OBJECT_REPLICA_BUSY, -714, EBUSY)                                                            \
    X(TRANSFER_FAIL, -800, EIO)                                                                    \
    X(CHECKSUM_MISMATCH, -801, EIO)                                                                \
    X(RPC_FAIL, -900, EIO)                                                                         \
    X(RPC_TIMEOUT, -901, ETIMEDOUT)                                                                \
    X(UNAVAILABLE_IN_CURRENT_STATUS, -1010, EAGAIN)                                                \
    X(UNAVAILABLE_IN_CURRENT_MODE, -1011, EOPNOTSUPP)                                              \
    X(FILE_NOT_FOUND, -1100, ENOENT)                                                               \
    X(FILE_OPEN_FAIL, -1101, EIO)                                                                  \
    X(FILE_READ_FAIL, -1102, EIO)                                                                  \
    X(FILE_WRITE_FAIL, -1103, EIO)                                                                 \
    X(FILE_LOCK_FAIL, -1105, EBUSY)                                                                \
    X(BUCKET_NOT_FOUND, -1200, ENOENT)                                                             \
    X(BUCKET_ALREADY_EXISTS, -1201, EEXIST)                                                        \
    X(TENANT_QUOTA_EXCEEDED, -1700, EDQUOT)                                                        \
    X(TENANT_NOT_REGISTERED, -1701, EDQUOT)                                                        \
    X(TENANT_QUOTA_INVALID, -1702, EINVAL)

enum mcfs_code {
#define X(name, number, errnum) MCFS_##name = (number),
    MCFS_ERROR_CODES(X)
#undef X
};

struct mcfs_error {
    int code;      /* enum mcfs_code */
    int errnum;    /* errno for POSIX callers, > 0 */
    char msg[256]; /* one line, no trailing newline */
};

#define MCFS_ERROR_INIT                                                                            \
    {                                                                                              \
        0, 0, ""                                                                                   \
    }

/* Sets err to `code` with that code's errno.  Always returns -1, so that callers can write
 * `return mcfs_fail(err, ...)`. */
int mcfs_fail(struct mcfs_error *err, enum mcfs_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same from an errno; the message gets ": <strerror>" appended.  Returns -1. */
int mcfs_fail_errno(struct mcfs_error *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "<prefix>: " before the message that is there.  Returns -1. */
int mcfs_error_prefix(struct mcfs_error *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Name of a code, e.g. "OBJECT_NOT_FOUND"; "UNKNOWN" for a number that is none. */
const char *mcfs_code_name(int code);

/* errno that POSIX callers get for a code; EIO for a number that is none. */
int mcfs_code_errno(int code);

/* The code that stands for an errno (ENOENT -> FILE_NOT_FOUND, ENOSPC -> NO_AVAILABLE_HANDLE, ...).
 */
enum mcfs_code mcfs_code_from_errno(int errnum);

#endif
