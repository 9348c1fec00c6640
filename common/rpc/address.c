/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rpc/address.h"

#include "common/rpc/rpc.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static int parse_unix(const char *path, struct rpc_address *out, struct mcfs_error *err)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&out->addr;
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(un->sun_path))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "unix:%s: a socket path has 1 to %zu bytes; this one has %zu", path,
                         sizeof(un->sun_path) - 1, len);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, len + 1);
    out->len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    return 0;
}

int rpc_address_parse(const char *text, struct rpc_address *out, struct mcfs_error *err)
{
    memset(out, 0, sizeof(*out));
    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(text + 5, out, err);

    const char *colon = strrchr(text, ':');
    char host[256];
    size_t len = colon ? (size_t)(colon - text) : 0;
    if (len == 0 || len >= sizeof(host) || !colon[1])
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%s' is not an address: HOST:PORT or unix:PATH",
                         text);
    memcpy(host, text, len);
    host[len] = 0;
    char *name = host;
    if (host[0] == '[' && host[len - 1] == ']') {
        host[len - 1] = 0;
        name++;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    int rc = getaddrinfo(name, colon + 1, &hints, &list);
    if (rc)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s: %s", text, gai_strerror(rc));
    memcpy(&out->addr, list->ai_addr, list->ai_addrlen);
    out->len = list->ai_addrlen;
    freeaddrinfo(list);
    return 0;
}

bool mcfs_rpc_address_is_local(const char *address)
{
    struct rpc_address a;
    if (rpc_address_parse(address, &a, NULL))
        return false;
    switch (a.addr.ss_family) {
    case AF_UNIX:
        return true;
    case AF_INET: {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&a.addr;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    case AF_INET6:
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)&a.addr)->sin6_addr);
    default:
        return false;
    }
}
