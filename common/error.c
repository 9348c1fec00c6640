/* SPDX-License-Identifier: Apache-2.0 */
#include <mooncakefs/error.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    int code, errnum;
    const char *name;
} codes[] = {
#define X(name, number, errnum) {number, errnum, #name},
    MCFS_ERROR_CODES(X)
#undef X
};

#define CODE_COUNT (sizeof(codes) / sizeof(codes[0]))

const char *mcfs_code_name(int code)
{
    for (size_t i = 0; i < CODE_COUNT; i++)
        if (codes[i].code == code)
            return codes[i].name;
    return "UNKNOWN";
}

int mcfs_code_errno(int code)
{
    for (size_t i = 0; i < CODE_COUNT; i++)
        if (codes[i].code == code)
            return codes[i].errnum;
    return EIO;
}

enum mcfs_code mcfs_code_from_errno(int errnum)
{
    switch (errnum) {
    case 0:
        return MCFS_OK;
    case ENOENT:
        return MCFS_FILE_NOT_FOUND;
    case EEXIST:
        return MCFS_OBJECT_ALREADY_EXISTS;
    case ENOSPC:
        return MCFS_NO_AVAILABLE_HANDLE;
    case EDQUOT:
        return MCFS_TENANT_QUOTA_EXCEEDED;
    case EINVAL:
        return MCFS_INVALID_PARAMS;
    case ETIMEDOUT:
        return MCFS_RPC_TIMEOUT;
    default:
        return MCFS_INTERNAL_ERROR;
    }
}

int mcfs_fail(struct mcfs_error *err, enum mcfs_code code, const char *fmt, ...)
{
    if (!err)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    err->code = code;
    err->errnum = mcfs_code_errno(code);
    return -1;
}

int mcfs_fail_errno(struct mcfs_error *err, int errnum, const char *fmt, ...)
{
    if (!err)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(err->msg)) {
        char text[128];
        /* GNU strerror_r: thread safe, may ignore the buffer. */
        snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %s",
                 strerror_r(errnum, text, sizeof(text)));
    }
    err->code = mcfs_code_from_errno(errnum);
    err->errnum = errnum ? errnum : EIO;
    return -1;
}

int mcfs_error_prefix(struct mcfs_error *err, const char *fmt, ...)
{
    if (!err)
        return -1;
    char old[sizeof(err->msg)];
    memcpy(old, err->msg, sizeof(old));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(err->msg))
        snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %s", old);
    return -1;
}
