/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RPC_KEYS_H
#define MCFS_COMMON_RPC_KEYS_H

/*
 * The keys that the two ends of a TCP connection prove to each other (see auth.h), read from a file
 * that nobody but its owner may read.  A line is one of
 *
 *     HEX                       the only key; its name is "default"
 *     NAME HEX                  a key with a name
 *     NAME TENANT[,TENANT] HEX  a key that is good for these tenants only ("*": for all)
 *
 * HEX is 32 to 128 hexadecimal digits; empty lines and what follows '#' are passed over.  A server
 * takes every key of its file, a client proves the first of its own.
 *
 * What was loaded never changes, so any thread may ask.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>

struct mcfs_rpc_keys;
struct mcfs_rpc_key;

/* Reads a key file.  Errors: FILE_NOT_FOUND, EPERM when others can read it, INVALID_PARAMS naming
 * path and line. The caller frees the result with mcfs_rpc_keys_free. */
struct mcfs_rpc_keys *mcfs_rpc_keys_load(const char *path, struct mcfs_error *err);

/* The same from a text of len bytes with room for a NUL behind them; it is written over.  path is
 * for messages. */
struct mcfs_rpc_keys *mcfs_rpc_keys_parse(char *text, size_t len, const char *path,
                                          struct mcfs_error *err);

void mcfs_rpc_keys_free(struct mcfs_rpc_keys *keys);

/* The first key; never NULL. */
const struct mcfs_rpc_key *mcfs_rpc_keys_first(const struct mcfs_rpc_keys *keys);

/* The key of a name, or NULL. */
const struct mcfs_rpc_key *mcfs_rpc_keys_find(const struct mcfs_rpc_keys *keys,
                                              struct mcfs_slice name);

/* Whether any of them is bound to tenants. */
bool mcfs_rpc_keys_any_bound(const struct mcfs_rpc_keys *keys);

/* For a key, or NULL, which stands for a caller that needs none and may do everything. */
const char *mcfs_rpc_key_name(const struct mcfs_rpc_key *key); /* "" for NULL */
bool mcfs_rpc_key_is_bound(const struct mcfs_rpc_key *key);
bool mcfs_rpc_key_allows(const struct mcfs_rpc_key *key, struct mcfs_slice tenant);

/* ILLEGAL_CLIENT naming key and tenant unless the key allows it. */
int mcfs_rpc_key_check(const struct mcfs_rpc_key *key, struct mcfs_slice tenant,
                       struct mcfs_error *err);

/* The secret; for auth.c alone. */
struct mcfs_slice mcfs_rpc_key_secret(const struct mcfs_rpc_key *key);

#endif
