/* SPDX-License-Identifier: Apache-2.0 */
#include "common/cleanup.h"
#include "common/rpc/keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    char *text = malloc(size + 1);
    if (!text)
        abort();
    if (size)
        memcpy(text, data, size);
    text[size] = 0;
    struct mcfs_rpc_keys *keys = mcfs_rpc_keys_parse(text, size, "text", &err);
    free(text);
    if (!keys) {
        if (err.code == MCFS_OK || !err.msg[0])
            abort();
        return 0;
    }
    const struct mcfs_rpc_key *key = mcfs_rpc_keys_first(keys);
    size_t secret = mcfs_rpc_key_secret(key).len;
    if (secret < 16 || secret > 64 || !mcfs_rpc_key_name(key)[0] ||
        mcfs_rpc_keys_find(keys, mcfs_slice_str(mcfs_rpc_key_name(key))) != key)
        abort();
    /* Whatever a key is bound to, it is not good for a tenant that no text can name. */
    if (mcfs_rpc_key_is_bound(key) && mcfs_rpc_key_allows(key, mcfs_slice("a,b", 3)))
        abort();
    mcfs_rpc_keys_free(keys);
    return 0;
}
