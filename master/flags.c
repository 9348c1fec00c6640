/* SPDX-License-Identifier: Apache-2.0 */
#include "master/flags.h"

#include "common/cleanup.h"
#include "common/yaml_file.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct master_flags, field)

const struct mcfs_flag master_flag_table[] = {
    {"rpc_address", MCFS_FLAG_STRING, AT(rpc_address), "127.0.0.1", NULL,
     "address to listen on; beyond loopback only with auth_key_file", 0},
    {"rpc_port", MCFS_FLAG_U32, AT(rpc_port), "50051", NULL, "TCP port; 0: no TCP", 0},
    {"rpc_socket", MCFS_FLAG_STRING, AT(rpc_socket), NULL, NULL, "Unix socket to listen on", 0},
    {"rpc_thread_num", MCFS_FLAG_U32, AT(rpc_thread_num), "0", NULL, "event loops; 0: one per core",
     0},
    {"auth_key_file", MCFS_FLAG_STRING, AT(auth_key_file), NULL, NULL,
     "file of keys, one of which TCP callers must prove", 0},
    {"config_path", MCFS_FLAG_STRING, AT(config_path), NULL, NULL,
     "YAML or JSON file of the same options; the command line wins", 0},
    {"enable_multi_tenants", MCFS_FLAG_BOOL, AT(enable_multi_tenants), "false", NULL,
     "only tenants that have a quota may write, and no more than that", 0},
    {"tenant_quota_connector_type", MCFS_FLAG_STRING, AT(tenant_quota_connector_type), "file", NULL,
     "where quotas are kept: file", 0},
    {"tenant_quota_connector_uri", MCFS_FLAG_STRING, AT(tenant_quota_connector_uri), NULL, NULL,
     "the YAML file of quotas; changes are written to it", 0},
    {"metrics_host", MCFS_FLAG_STRING, AT(metrics_host), "127.0.0.1", NULL,
     "admin HTTP address; beyond loopback only with metrics_token_file", 0},
    {"metrics_token_file", MCFS_FLAG_STRING, AT(metrics_token_file), NULL, NULL,
     "file with the token that admin HTTP asks for (Authorization: Bearer)", 0},
    {"metrics_port", MCFS_FLAG_U32, AT(metrics_port), "9003", NULL, "admin HTTP port; 0: none", 0},
    {"cluster_id", MCFS_FLAG_STRING, AT(cluster_id), "mooncake_cluster", NULL,
     "name of the cluster in the snapshot store", 0},
    {"memory_allocator", MCFS_FLAG_STRING, AT(memory_allocator), "offset", NULL,
     "allocator of memory segments: offset", 0},
    {"memory_limit", MCFS_FLAG_SIZE, AT(memory_limit), "0", NULL,
     "most memory for the directory; puts beyond it are refused; 0: none", 0},
    {"default_kv_lease_ttl", MCFS_FLAG_DURATION, AT(default_kv_lease_ttl_ms), "10000", NULL,
     "length of a read lease (ms)", 1},
    {"allocation_strategy", MCFS_FLAG_STRING, AT(allocation_strategy), "random", NULL,
     "where memory replicas go: random, or free_ratio_first", 0},
    {"eviction_high_watermark_ratio", MCFS_FLAG_DOUBLE, AT(eviction_high_watermark_ratio), "0.90",
     NULL, "part of the memory segments' room beyond which memory replicas are evicted", 0},
    {"eviction_ratio", MCFS_FLAG_DOUBLE, AT(eviction_ratio), "0.05", NULL,
     "part of the objects in memory that an eviction takes at least", 0},
    {"client_ttl", MCFS_FLAG_DURATION, AT(client_ttl_ms), "10", NULL,
     "silence after which a node counts as gone (s)", 1000},
    {"put_start_discard_timeout_sec", MCFS_FLAG_DURATION, AT(put_start_discard_timeout_ms), "30",
     NULL, "age at which an unfinished put is given up (s)", 1000},
    {"put_start_release_timeout_sec", MCFS_FLAG_DURATION, AT(put_start_release_timeout_ms), "600",
     NULL, "age at which such a put is forgotten: a slow writer may be busy until then (s)", 1000},
    {"default_kv_soft_pin_ttl", MCFS_FLAG_DURATION, AT(default_kv_soft_pin_ttl_ms), "1800000", NULL,
     "length of a soft pin whose put names none (ms)", 1},
    {"allow_evict_soft_pinned_objects", MCFS_FLAG_BOOL, AT(allow_evict_soft_pinned_objects), "true",
     NULL, "softly pinned objects go when nothing else is left to evict", 0},
    {"enable_snapshot", MCFS_FLAG_BOOL, AT(enable_snapshot), "false", NULL, "take snapshots", 0},
    {"enable_snapshot_restore", MCFS_FLAG_BOOL, AT(enable_snapshot_restore), "false", NULL,
     "restore the newest good snapshot at start", 0},
    {"snapshot_interval_seconds", MCFS_FLAG_DURATION, AT(snapshot_interval_ms), "600", NULL,
     "time between snapshots (s)", 1000},
    {"snapshot_child_timeout_seconds", MCFS_FLAG_DURATION, AT(snapshot_child_timeout_ms), "300",
     NULL, "time a checkpoint may take (s)", 1000},
    {"snapshot_retention_count", MCFS_FLAG_U32, AT(snapshot_retention_count), "2", NULL,
     "snapshots kept", 0},
    {"snapshot_object_store_type", MCFS_FLAG_STRING, AT(snapshot_object_store_type), "local", NULL,
     "where snapshots are kept: local, or s3 (MOONCAKE_AWS_* in the environment)", 0},
    {"snapshot_catalog_store_type", MCFS_FLAG_STRING, AT(snapshot_catalog_store_type), "embedded",
     NULL, "where the list of snapshots is kept: embedded", 0},
    {"snapshot_local_path", MCFS_FLAG_STRING, AT(snapshot_local_path), NULL,
     "MOONCAKE_SNAPSHOT_LOCAL_PATH", "directory of the local snapshot store", 0},
    {"snapshot_read_only", MCFS_FLAG_BOOL, AT(snapshot_read_only), "false", NULL,
     "show the snapshots that are there, and take and delete none", 0},
    {"snapshot_backup_dir", MCFS_FLAG_STRING, AT(snapshot_backup_dir), NULL, NULL,
     "where a snapshot goes that could not be published", 0},
    {"state_dir", MCFS_FLAG_STRING, AT(state_dir), NULL, NULL,
     "directory in which the master remembers its nodes", 0},
    {"log_file", MCFS_FLAG_STRING, AT(log_file), NULL, NULL, "log to this file", 0},
    {"die_with_parent", MCFS_FLAG_BOOL, AT(die_with_parent), "false", NULL,
     "end when the process that started this one ends", 0},
    {"verbose", MCFS_FLAG_BOOL, AT(verbose), "false", NULL, "log more", 0},
    MCFS_FLAG_END};

static int check(const struct master_flags *f, struct mcfs_error *err)
{
    if (strcmp(f->memory_allocator, "offset") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "memory_allocator '%s' is not supported: use 'offset'",
                         f->memory_allocator);
    if (strcmp(f->allocation_strategy, "random") != 0 &&
        strcmp(f->allocation_strategy, "free_ratio_first") != 0)
        return mcfs_fail(
            err, MCFS_INVALID_PARAMS,
            "allocation_strategy '%s' is not supported: use 'random' or 'free_ratio_first'",
            f->allocation_strategy);
    if (!(f->eviction_ratio > 0 && f->eviction_ratio <= 1) ||
        !(f->eviction_high_watermark_ratio > 0 && f->eviction_high_watermark_ratio <= 1))
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "eviction_ratio and eviction_high_watermark_ratio are above 0 and at most "
                         "1");
    bool s3 = strcmp(f->snapshot_object_store_type, "s3") == 0;
    if (!s3 && strcmp(f->snapshot_object_store_type, "local") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "snapshot_object_store_type '%s' is not supported: use 'local' or 's3'",
                         f->snapshot_object_store_type);
    if (strcmp(f->snapshot_catalog_store_type, "embedded") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "snapshot_catalog_store_type '%s' is not supported: use 'embedded'",
                         f->snapshot_catalog_store_type);
    if ((f->enable_snapshot || f->enable_snapshot_restore) && !s3 && !f->snapshot_local_path)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "snapshots need a directory: set MOONCAKE_SNAPSHOT_LOCAL_PATH or "
                         "--snapshot_local_path");
    if (strcmp(f->tenant_quota_connector_type, "file") != 0)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "tenant_quota_connector_type '%s' is not supported: use 'file'",
                         f->tenant_quota_connector_type);
    if (f->enable_multi_tenants && !f->tenant_quota_connector_uri)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "enable_multi_tenants needs a file: --tenant_quota_connector_uri");
    if (f->rpc_port > 65535 || f->metrics_port > 65535)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "a port is a number up to 65535");
    if (!f->rpc_port && !f->rpc_socket)
        return mcfs_fail(err, MCFS_INVALID_PARAMS,
                         "nothing to listen on: set rpc_port or rpc_socket");
    if (f->default_kv_lease_ttl_ms < 100 || f->default_kv_lease_ttl_ms > 3600000)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "default_kv_lease_ttl is 100 ms to 1 h");
    if (f->put_start_discard_timeout_ms > 86400000 || f->put_start_release_timeout_ms > 86400000)
        return mcfs_fail(
            err, MCFS_INVALID_PARAMS,
            "put_start_discard_timeout_sec and put_start_release_timeout_sec are a day "
            "at most");
    if (f->put_start_release_timeout_ms < f->put_start_discard_timeout_ms)
        return mcfs_fail(
            err, MCFS_INVALID_PARAMS,
            "put_start_release_timeout_sec is less than put_start_discard_timeout_sec");
    if (f->default_kv_soft_pin_ttl_ms == 0 || f->default_kv_soft_pin_ttl_ms > 30ull * 86400000)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "default_kv_soft_pin_ttl is 1 ms to 30 days");
    return 0;
}

/* The config_path of the command line, malloc'ed, found by parsing it once for that alone: the file
 * comes before the rest. */
static int find_config(int argc, char **argv, char **path, struct mcfs_error *err)
{
    struct master_flags once;
    memset(&once, 0, sizeof(once));
    char **copy = calloc((size_t)argc + 1, sizeof(*copy));
    if (!copy)
        return mcfs_fail_errno(err, ENOMEM, "options");
    memcpy(copy, argv, (size_t)argc * sizeof(*copy));
    int rc = mcfs_flags_parse_argv(master_flag_table, &once, &argc, copy, err);
    free(copy);
    *path = rc == 0 && once.config_path ? strdup(once.config_path) : NULL;
    mcfs_flags_free(master_flag_table, &once);
    return rc;
}

static int read_config(struct master_flags *flags, const char *path, struct mcfs_error *err)
{
    _cleanup_(mcfs_yaml_free) struct mcfs_yaml y = MCFS_YAML_INIT;
    yaml_node_t *key, *value;
    if (mcfs_yaml_load(&y, path, err))
        return -1;
    yaml_node_t *root = mcfs_yaml_root(&y);
    if (!root || root->type != YAML_MAPPING_NODE)
        return mcfs_yaml_fail(&y, root, err, "a configuration is a mapping of options");
    for (size_t i = 0; mcfs_yaml_pair(&y, root, i, &key, &value); i++) {
        struct mcfs_error why = MCFS_ERROR_INIT;
        const char *name = mcfs_yaml_text(key), *text = mcfs_yaml_text(value);
        if (!name || !text)
            return mcfs_yaml_fail(&y, key, err, "an option has a name and one value");
        if (strcmp(name, "config_path") == 0)
            return mcfs_yaml_fail(&y, key, err, "a configuration names no other");
        if (mcfs_flags_set(master_flag_table, flags, name, strlen(name), text, &why))
            return mcfs_yaml_fail(&y, key, err, "%s", why.msg);
    }
    return 0;
}

int master_flags_parse(struct master_flags *flags, int *argc, char **argv, struct mcfs_error *err)
{
    memset(flags, 0, sizeof(*flags));
    _cleanup_free_ char *config = NULL;
    if (mcfs_flags_init(master_flag_table, flags, err) || find_config(*argc, argv, &config, err) ||
        (config && read_config(flags, config, err)) ||
        mcfs_flags_parse_argv(master_flag_table, flags, argc, argv, err))
        return -1;
    if (*argc > 1)
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "'%s' is not an option", argv[1]);
    return check(flags, err);
}
