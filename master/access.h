/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_ACCESS_H
#define MCFS_MASTER_ACCESS_H

#include "master/master.h"

/* Whether the request's caller may ask for this: 0, or -1 with ILLEGAL_CLIENT.  A key that is bound
 * to tenants is good for requests about these tenants, in sessions that came with it.  name and
 * params are the method's row in rpc_methods.h.  Tenants further inside of params are the method's
 * own to check. */
int access_check(struct master *m, const char *name, const char *params,
                 const struct mcfs_rpc_request *r, struct mcfs_error *err);

#endif
