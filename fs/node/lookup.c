/* SPDX-License-Identifier: Apache-2.0 */
/* What a path is: from what is known, else from the master. */
#include "fs/node/node_private.h"

#include "common/clock.h"
#include "fs/node/known.h"

struct taking {
    struct node *node;
    const struct known_mark *mark;
    struct mcfs_slice tenant, dir;
};

static void take(const struct mcfs_master_neighbour *neighbour, void *arg)
{
    const struct taking *t = arg;
    known_add(t->node->known, t->mark, t->tenant, t->dir, neighbour);
}

int node_lookup(struct node *n, struct mcfs_slice tenant, struct mcfs_slice path,
                struct mcfs_master_lookup *out, struct node_lease *lease,
                const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct known_mark mark;
    if (known_find(n->known, tenant, path, &out->object, lease)) {
        out->has_object = true;
        out->is_dir = false;
        return 0;
    }
    may_wait(n, cancel);
    const char *slash = path.len ? memrchr(path.data, '/', path.len) : NULL;
    struct mcfs_slice dir = mcfs_slice(path.data, slash ? (size_t)(slash + 1 - path.data) : 0);
    struct taking t = {n, &mark, tenant, dir};
    uint32_t ahead = known_ahead(n->known, tenant, dir);
    known_begin(n->known, &mark);
    int rc =
        ahead ? mcfs_master_lookup_ahead(n->master, tenant, path, ahead, out, take, &t, cancel, err)
              : mcfs_master_lookup(n->master, tenant, path, out, cancel, err);
    if (rc)
        return -1;
    *lease = known_lease(n->known, &mark, tenant, path, out->has_object ? out->object.lease_ms : 0);
    return 0;
}

bool node_lease_holds(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                      const struct node_lease *lease)
{
    return known_lease_holds(n->known, tenant, key, lease);
}

void node_forget(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key)
{
    known_forget(n->known, tenant, key);
    /* An object whose name has become a directory's is something else now. */
    for (size_t i = 0; i < key.len; i++)
        if (key.data[i] == '/')
            known_forget(n->known, tenant, mcfs_slice(key.data, i));
}
