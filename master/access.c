/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller may do whose key is bound to tenants. */
#include "master/access.h"

#include "common/cleanup.h"

#define WORD(text, prefix) (strncmp(text, prefix, sizeof(prefix) - 1) == 0)

/* Methods about no tenant that a node of some tenants needs: it registers, and sees who is there.
 * The others show or change everything. */
static bool is_open(const char *name)
{
    static const char *const open[] = {"Register", "Nodes", "Status", "Tenants"};
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(open); i++)
        if (strcmp(open[i], name) == 0)
            return true;
    return false;
}

int access_check(struct master *m, const char *name, const char *params,
                 const struct mcfs_rpc_request *r, struct mcfs_error *err)
{
    const struct mcfs_rpc_key *key = mcfs_rpc_conn_key(r->conn);
    struct mp_reader p = r->params;
    struct mcfs_slice tenant;
    uint64_t session;
    if (!mcfs_rpc_key_is_bound(key))
        return 0;
    /* The method table's own words say where session and tenant stand. */
    bool has_session = WORD(params, "[session");
    bool has_tenant = WORD(params, "[session, tenant") || WORD(params, "[tenant");
    if (!has_session && !has_tenant && !is_open(name))
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT,
                         "%s is not for key '%s', which is bound to tenants", name,
                         mcfs_rpc_key_name(key));
    /* Another caller's session would withdraw what that one stores.  A wrong form is the method's
     * own to refuse. */
    if (has_session && mp_read_uint(&p, &session) && session &&
        !nodes_came_with(m->nodes, (uint32_t)(session & 0xffff), mcfs_rpc_key_name(key)))
        return mcfs_fail(err, MCFS_ILLEGAL_CLIENT, "%s: the session is not one of key '%s'", name,
                         mcfs_rpc_key_name(key));
    return has_tenant && mp_read_raw(&p, &tenant) ? mcfs_rpc_key_check(key, tenant, err) : 0;
}
