/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_COMMON_RPC_ADDRESS_H
#define MCFS_COMMON_RPC_ADDRESS_H

#include <mooncakefs/error.h>
#include <sys/socket.h>
#include <sys/un.h>

struct rpc_address {
    struct sockaddr_storage addr;
    socklen_t len;
};

/* Resolves "HOST:PORT", "[v6]:PORT" or "unix:PATH" (the first address that the resolver yields). */
int rpc_address_parse(const char *text, struct rpc_address *out, struct mcfs_error *err);

#endif
