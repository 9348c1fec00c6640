/* SPDX-License-Identifier: Apache-2.0 */
/* A pattern and a key, with a NUL between them: whatever they are, matching ends. */
#include "master/pattern.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t len = nul ? (size_t)(nul - data) : size;
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct pattern *p = pattern_new(mcfs_slice(data, len), &err);
    if (!p && (err.code != MCFS_INVALID_PARAMS || !err.msg[0]))
        __builtin_trap();
    if (p && pattern_match(p, mcfs_slice(data + len, size - len), &err) < 0 && !err.msg[0])
        __builtin_trap();
    pattern_free(p);
    return 0;
}
