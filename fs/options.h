/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_OPTIONS_H
#define MCFS_FS_OPTIONS_H

/* What a mount was asked for: source, mount point and -o options. */

#include "common/flags.h"
#include <mooncakefs/error.h>

struct mount_options {
    /* -o name=value; the names are in options.c */
    char *tenant, *storage_path, *backend, *eviction, *master_flags, *log_file, *cluster,
        *temp_pattern, *passthrough, *verify, *opens;
    char *listen, *fsname, *fsdir, *auth_key_file;
    bool ro, allow_other, allow_root, default_permissions, verbose;
    bool ignored; /* options of mount(8) that mean nothing here */
    uint32_t uid, gid, umask, threads;
    bool has_uid, has_gid, has_umask;
    uint64_t rpc_timeout_ms, lease_wait_ms, attr_timeout_ms, refresh_ms;
    uint64_t eviction_max_bytes, eviction_max_physical;
    double eviction_high, eviction_low;
    bool eviction_watermarks;
    uint64_t bucket_size_limit, bucket_keys_limit, capacity, single_object_min, flush_interval_ms;
    uint64_t compact_rate;
    char *offset_persist, *io_engine;
    uint64_t offset_checkpoint_ms;
    uint32_t offset_nodes_max;
    bool offset_record_crc;
    char *uid_text, *gid_text, *umask_text;

    /* the command line */
    bool foreground, debug, help, version, recover;
    char *source; /* NULL: standalone in the default state directory */
    char *mountpoint;
};

/* Takes the command line apart, as mount.fuse and people write it. */
int mount_options_parse(struct mount_options *o, int argc, char **argv, struct mcfs_error *err);
void mount_options_free(struct mount_options *o);
void mount_options_help(void);

/* Most bytes that the store's files may take, 0: what the disk holds. */
uint64_t mount_options_capacity(const struct mount_options *o);

/* What the source means. */
enum source_kind { SOURCE_STANDALONE, SOURCE_MASTER };
struct source {
    enum source_kind kind;
    char *state_dir;      /* malloc'ed; absolute or as given */
    char *master_address; /* SOURCE_MASTER */
    char *snapshots;      /* where a read-only view's snapshots lie, or NULL */
    char *offload;        /* the store that a read-only view shows, or NULL */
};
int source_parse(const struct mount_options *o, struct source *out, struct mcfs_error *err);
void source_free(struct source *s);

#endif
