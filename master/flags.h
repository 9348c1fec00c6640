/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_FLAGS_H
#define MCFS_MASTER_FLAGS_H

/* The master's options: Mooncake's names and defaults. */

#include "common/flags.h"

struct master_flags {
    char *rpc_address, *rpc_socket, *metrics_host, *cluster_id, *memory_allocator, *auth_key_file;
    char *allocation_strategy;
    double eviction_ratio, eviction_high_watermark_ratio;
    bool allow_evict_soft_pinned_objects;
    bool snapshot_read_only;
    char *metrics_token_file, *config_path;
    char *tenant_quota_connector_type, *tenant_quota_connector_uri;
    bool enable_multi_tenants;
    char *snapshot_object_store_type, *snapshot_catalog_store_type, *snapshot_backup_dir;
    char *snapshot_local_path, *state_dir, *log_file, *pid_file;
    uint32_t rpc_port, rpc_thread_num, metrics_port, snapshot_retention_count;
    uint64_t default_kv_lease_ttl_ms, client_ttl_ms, put_start_discard_timeout_ms;
    uint64_t put_start_release_timeout_ms, default_kv_soft_pin_ttl_ms;
    uint64_t snapshot_interval_ms, snapshot_child_timeout_ms, memory_limit;
    bool enable_snapshot, enable_snapshot_restore, verbose, die_with_parent;
};

extern const struct mcfs_flag master_flag_table[];

/* Takes argv apart; -h and -V are left to the caller. */
int master_flags_parse(struct master_flags *flags, int *argc, char **argv, struct mcfs_error *err);

#endif
