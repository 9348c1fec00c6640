/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RPC_AUTH_H
#define MCFS_COMMON_RPC_AUTH_H

/*
 * The handshake of a TCP connection whose server has keys: each side proves, by an HMAC-SHA256 over
 * random bytes of both, that it knows the key that the caller names.  It is two requests before any
 * other:
 *
 *     AuthHello [key's name, 32 random bytes]  ->  [32 random bytes, server's proof]
 *     AuthProve [caller's proof]               ->  nil
 *
 * A proof is HMAC-SHA256(key, "mooncakefs-rpc-1" | 'S' or 'C' | length of the name (1 byte) | name
 * | caller's random bytes | server's random bytes).  Each side's fresh bytes are in both proofs, so
 * that none can be used again, and the letter keeps one side's from being sent back to it.
 *
 * The connection is proven, not what follows on it: who can change packets on the way can still do
 * so, and what travels can be read.
 *
 * Private to common/rpc.
 */

#include "common/mp.h"
#include "common/rpc/keys.h"
#include "common/rpc/rpc.h"

#define AUTH_HELLO "AuthHello"
#define AUTH_PROVE "AuthProve"
#define AUTH_NONCE 32
#define AUTH_PROOF 32
#define AUTH_FRAME_MAX 65536  /* bytes of a message before the proof */
#define AUTH_TIMEOUT_MS 10000 /* from being accepted to the proof */

/* The server's side of one connection until the caller is proven. */
struct rpc_auth {
    const struct mcfs_rpc_key *key; /* that the caller named; NULL before AuthHello */
    uint8_t theirs[AUTH_NONCE], ours[AUTH_NONCE];
    int64_t deadline_ms; /* mcfs_mono_ms() time */
    bool done;           /* proven */
};

/* Takes one request (params at the array's first element), and appends the result.  0, or -1 with
 * ILLEGAL_CLIENT, after which the connection must end. */
int rpc_auth_step(struct rpc_auth *a, const struct mcfs_rpc_keys *keys, struct mcfs_slice method,
                  struct mp_reader *params, uint32_t count, struct mcfs_buf *result,
                  struct mcfs_error *err);

/* The caller's side, on a fresh connection.  0, or -1: ILLEGAL_CLIENT when either side's proof is
 * wrong or the server has no keys, else what the connection failed of. */
int rpc_auth_prove(int fd, const char *address, const struct mcfs_rpc_keys *keys,
                   int64_t deadline_ms, const struct mcfs_cancel *cancel, struct mcfs_error *err);

#endif
