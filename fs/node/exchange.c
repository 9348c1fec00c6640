/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two objects get each other's keys.  The master does its part in one step; the store's part is two
 * renames, and a death between them would leave both contents under one key, of which the newer
 * would win and the other be lost.  So what is about to be done is written down first
 * (<state>/exchange), and the next start finishes it before anybody is told what is stored here.
 */
#include "fs/node/hold.h"
#include "fs/node/node_private.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mp.h"

#define INTENT_MAX 16384
#define BRING_MAX 8 /* times an object may change while it is being brought here */

/* side[i]: the object `key` of `version` becomes `new_version` of the other side's key. */
struct intent {
    struct mcfs_slice tenant;
    struct {
        struct mcfs_slice key;
        uint64_t version, new_version;
    } side[2];
};

static int write_intent(struct node *n, const struct intent *x, struct mcfs_error *err)
{
    _cleanup_free_ char *path = state_dir_path(n->config.state, "exchange");
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    mp_put_array(&b, 7);
    mp_put_str(&b, x->tenant);
    for (unsigned i = 0; i < 2; i++) {
        mp_put_str(&b, x->side[i].key);
        mp_put_uint(&b, x->side[i].version);
        mp_put_uint(&b, x->side[i].new_version);
    }
    if (b.failed)
        return mcfs_fail_errno(err, ENOMEM, "exchange");
    return mcfs_write_file(path, b.data, b.len, 0600, true, err);
}

static void remove_intent(struct node *n)
{
    _cleanup_free_ char *path = state_dir_path(n->config.state, "exchange");
    unlink(path);
}

static bool read_intent(struct mp_reader *r, struct intent *x)
{
    if (!mp_read_array_of(r, 7) || !mp_read_raw(r, &x->tenant))
        return false;
    for (unsigned i = 0; i < 2; i++)
        if (!mp_read_raw(r, &x->side[i].key) || !mp_read_uint(r, &x->side[i].version) ||
            !mp_read_uint(r, &x->side[i].new_version))
            return false;
    return mp_done(r);
}

/* One of the store's renames; what has been done already is fine. */
static int rekey(struct node *n, const struct intent *x, unsigned i, struct mcfs_error *err)
{
    struct mcfs_error local = MCFS_ERROR_INIT;
    if (n->ops->rekey(n->store, x->tenant, x->side[i].key, x->side[i].version, x->side[!i].key,
                      x->side[i].new_version, &local) == 0 ||
        local.code == MCFS_REPLICA_IS_GONE)
        return 0;
    if (err)
        *err = local;
    return -1;
}

static int rekey_both(struct node *n, const struct intent *x, struct mcfs_error *err)
{
    return rekey(n, x, 0, err) || rekey(n, x, 1, err) ? -1 : 0;
}

int node_finish_exchange(struct node *n, struct mcfs_error *err)
{
    _cleanup_free_ char *path = state_dir_path(n->config.state, "exchange");
    _cleanup_free_ char *data = NULL;
    struct mcfs_error local = MCFS_ERROR_INIT;
    struct intent x;
    ssize_t len = mcfs_read_file_alloc(path, INTENT_MAX, &data, &local);
    if (len < 0 && local.errnum == ENOENT)
        return 0;
    struct mp_reader r = mp_reader(len > 0 ? data : "", len > 0 ? (size_t)len : 0);
    if (len < 0 || !read_intent(&r, &x))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "%s: %s; an exchange of two objects was begun and cannot be finished "
                         "(remove the file to go on without)",
                         path, len < 0 ? local.msg : "damaged");
    mcfs_info("%s: an exchange of %.*s and %.*s was begun and is finished now", path,
              (int)MCFS_MIN(x.side[0].key.len, 200), x.side[0].key.data,
              (int)MCFS_MIN(x.side[1].key.len, 200), x.side[1].key.data);
    if (rekey_both(n, &x, err))
        return -1;
    remove_intent(n);
    return 0;
}

/* The object as the master knows it, stored by this node, or by none: then the store's part of the
 * exchange finds nothing to do for it.  *first gets the version that it had
 * where it was. */
static int bring(struct node *n, struct mcfs_slice tenant, struct mcfs_slice key,
                 struct mcfs_master_object *object, uint64_t *first,
                 const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_backend_place place;
    struct node_put_result out = {0};
    for (unsigned i = 0; i < BRING_MAX; i++) {
        if (mcfs_master_get(n->master, tenant, key, object, cancel, err))
            return -1;
        if (object->version != out.version)
            *first = object->version;
        if (n->ops->locate(n->store, tenant, key, object->version, &place, NULL) == 0 ||
            node_is_in_memory_alone(object))
            return 0;
        if (node_copy_here(n, tenant, key, object, key, false, &out, cancel, err))
            return -1;
    }
    return mcfs_fail_errno(err, EBUSY, "exchange");
}

/* Takes the store's part back: the same in the other direction, written down likewise. */
static void undo(struct node *n, const struct intent *x)
{
    struct mcfs_error err = MCFS_ERROR_INIT;
    struct intent back = {.tenant = x->tenant};
    for (unsigned i = 0; i < 2; i++) {
        back.side[i].key = x->side[i].key;
        back.side[i].version = x->side[!i].new_version;
        back.side[i].new_version = x->side[!i].version;
    }
    if (write_intent(n, &back, &err) || rekey_both(n, &back, &err))
        mcfs_warning("%.*s: cannot take an exchange back: %s",
                     (int)MCFS_MIN(x->side[0].key.len, 200), x->side[0].key.data, err.msg);
    else
        remove_intent(n);
}

static int exchange_at_master(struct node *n, const struct intent *x,
                              const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    int64_t began = mcfs_mono_ms(), pause_ms = LEASE_POLL_FIRST_MS;
    uint32_t lease_ms;
    struct mcfs_master_exchange m = {.tenant = x->tenant};
    for (unsigned i = 0; i < 2; i++) {
        m.side[i].key = x->side[i].key;
        m.side[i].version = x->side[i].version;
        m.side[i].new_version = x->side[!i].new_version;
    }
    while (mcfs_master_exchange(n->master, &m, &lease_ms, cancel, err))
        if (!node_wait_for_lease(n, began, &pause_ms, cancel, err))
            return -1;
    return 0;
}

/* Both keys are locked, as is the exchange. */
static int exchange_locked(struct node *n, struct intent *x, uint64_t first[2],
                           const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    struct mcfs_master_object object[2];
    for (unsigned i = 0; i < 2; i++)
        if (bring(n, x->tenant, x->side[i].key, &object[i], &first[i], cancel, err))
            return -1;
    for (unsigned i = 0; i < 2; i++) {
        x->side[i].version = object[i].version;
        /* What was there is there, so nothing is set aside for it. */
        if (mcfs_master_put_start(n->master, x->tenant, x->side[!i].key, 0, true,
                                  &x->side[i].new_version, cancel, err))
            return -1;
    }
    for (unsigned i = 0; i < 2; i++)
        held_set_keep(n->held, x->tenant, x->side[i].key, x->side[i].version);
    int rc = write_intent(n, x, err);
    if (rc == 0) {
        rc = rekey_both(n, x, err);
        if (rc == 0)
            rc = exchange_at_master(n, x, cancel, err);
        /* An interrupted or unanswered Exchange may have been carried out: the versions are greater
         * than those before, so the next inventory makes it so. */
        if (rc == 0 || err->errnum == EINTR || err->code == MCFS_RPC_FAIL)
            remove_intent(n);
        else
            undo(n, x);
    }
    for (unsigned i = 0; i < 2; i++)
        held_set_done(n->held, x->tenant, x->side[i].key, x->side[i].version);
    if (rc)
        for (unsigned i = 0; i < 2; i++)
            mcfs_master_put_revoke(n->master, x->side[i].new_version, NULL);
    return rc;
}

int node_exchange(struct node *n, struct mcfs_slice tenant, struct mcfs_slice a,
                  struct mcfs_slice b, uint64_t versions[4], const struct mcfs_cancel *cancel,
                  struct mcfs_error *err)
{
    struct mcfs_error local = MCFS_ERROR_INIT;
    struct intent x = {.tenant = tenant, .side = {{.key = a}, {.key = b}}};
    MCFS_LOCK_SCOPE(&n->exchange_lock);
    node_lock_keys(n, a, b);
    uint64_t session;
    int rc;
    err = err ? err : &local;
    do { /* again when a new master knows nothing of the puts that the last one had started */
        session = mcfs_master_session(n->master);
        rc = exchange_locked(n, &x, versions, cancel, err);
    } while (rc && err->code == MCFS_OBJECT_NOT_FOUND && mcfs_master_session(n->master) != session);
    node_forget(n, tenant, a);
    node_forget(n, tenant, b);
    node_unlock_keys(n, a, b);
    versions[2] = x.side[1].new_version;
    versions[3] = x.side[0].new_version;
    return rc;
}
