/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of a running master. */
#include "common/cleanup.h"
#include "master/client/session.h"

int mcfs_master_snapshot_create(struct mcfs_master *m, char id[32], struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mcfs_slice text;
    if (master_call(m, "SnapshotCreate", false, 0, &p, &reply, NULL, err))
        return -1;
    if (!mp_read_array_of(&reply.result, 1) || !mp_read_raw(&reply.result, &text))
        return master_bad_answer("SnapshotCreate", err);
    master_copy_text(id, 32, text);
    return 0;
}

int mcfs_master_snapshot_state(struct mcfs_master *m, bool *running, char last_id[32],
                               char last_error[256], struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mcfs_slice id, text;
    if (master_call(m, "SnapshotState", false, 0, &p, &reply, NULL, err))
        return -1;
    if (!mp_read_array_of(&reply.result, 3) || !mp_read_bool(&reply.result, running) ||
        !mp_read_raw(&reply.result, &id) || !mp_read_raw(&reply.result, &text))
        return master_bad_answer("SnapshotState", err);
    master_copy_text(last_id, 32, id);
    master_copy_text(last_error, 256, text);
    return 0;
}

int mcfs_master_snapshots(struct mcfs_master *m,
                          void (*fn)(const struct mcfs_master_snapshot *s, void *arg), void *arg,
                          const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    if (master_call(m, "SnapshotList", false, 0, &p, &reply, cancel, err))
        return -1;
    struct mp_reader *r = &reply.result;
    uint32_t n;
    if (!mp_read_array(r, &n))
        return master_bad_answer("SnapshotList", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_master_snapshot s;
        struct mcfs_slice id;
        if (!mp_read_array_of(r, 3) || !mp_read_raw(r, &id) || !mp_read_int(r, &s.created_ms) ||
            !mp_read_uint(r, &s.bytes))
            return master_bad_answer("SnapshotList", err);
        master_copy_text(s.id, sizeof(s.id), id);
        fn(&s, arg);
    }
    return 0;
}

int mcfs_master_snapshot_files(struct mcfs_master *m, const char *id,
                               void (*fn)(struct mcfs_slice name, uint64_t size, int64_t mtime_ns,
                                          void *arg),
                               void *arg, const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_cstr(&p, id);
    if (master_call(m, "SnapshotFiles", false, 1, &p, &reply, cancel, err))
        return -1;
    struct mp_reader *r = &reply.result;
    uint32_t n;
    if (!mp_read_array(r, &n))
        return master_bad_answer("SnapshotFiles", err);
    for (uint32_t i = 0; i < n; i++) {
        struct mcfs_slice name;
        uint64_t size;
        int64_t mtime_ns;
        if (!mp_read_array_of(r, 3) || !mp_read_raw(r, &name) || !mp_read_uint(r, &size) ||
            !mp_read_int(r, &mtime_ns))
            return master_bad_answer("SnapshotFiles", err);
        fn(name, size, mtime_ns, arg);
    }
    return 0;
}

int64_t mcfs_master_snapshot_read(struct mcfs_master *m, const char *id, const char *name,
                                  uint64_t off, void *buf, uint32_t len,
                                  const struct mcfs_cancel *cancel, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    struct mcfs_slice bytes;
    mp_put_cstr(&p, id);
    mp_put_cstr(&p, name);
    mp_put_uint(&p, off);
    mp_put_uint(&p, len);
    if (master_call(m, "SnapshotRead", false, 4, &p, &reply, cancel, err))
        return -1;
    if (!mp_read_bin(&reply.result, &bytes) || bytes.len > len)
        return master_bad_answer("SnapshotRead", err);
    if (bytes.len)
        memcpy(buf, bytes.data, bytes.len);
    return (int64_t)bytes.len;
}

int mcfs_master_snapshot_prune(struct mcfs_master *m, uint32_t keep, uint64_t min_age_ms,
                               uint32_t *snapshots, uint32_t *files, struct mcfs_error *err)
{
    _cleanup_buf_ struct mcfs_buf p = MCFS_BUF_INIT;
    _cleanup_reply_ struct mcfs_rpc_reply reply = MCFS_RPC_REPLY_INIT;
    mp_put_uint(&p, keep);
    mp_put_uint(&p, min_age_ms);
    if (master_call(m, "SnapshotPrune", false, 2, &p, &reply, NULL, err))
        return -1;
    if (!mp_read_array_of(&reply.result, 2) ||
        !mp_read_u32_max(&reply.result, UINT32_MAX, snapshots) ||
        !mp_read_u32_max(&reply.result, UINT32_MAX, files))
        return master_bad_answer("SnapshotPrune", err);
    return 0;
}
