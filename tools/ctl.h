/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_TOOLS_CTL_H
#define MCFS_TOOLS_CTL_H

/* mooncakefsctl: what its commands share. */

#include "common/flags.h"
#include "master/client/client.h"

#include <jansson.h>

struct ctl_options {
    char *mount, *master, *tenant, *store, *cluster, *backend, *fsdir, *auth_key_file;
    bool json, physical, force, check, repair, help, version, regex, soft;
    uint64_t timeout_ms, min_age_ms, bandwidth, ttl_ms;
    uint32_t keep;
};

struct ctl {
    struct ctl_options o;
    char *mount;          /* mount point that was found, or NULL */
    char *master_address; /* never NULL once connected */
    struct mcfs_master *master;
    struct mcfs_slice tenant;
    struct mcfs_rpc_keys *keys; /* NULL: none to prove */
};

#define EXIT_DONE 0
#define EXIT_FAILED 1
#define EXIT_USAGE 2

/* A command: gets the words behind its name; returns an exit status with err set when it is
 * EXIT_FAILED. */
typedef int (*ctl_fn)(struct ctl *c, int argc, char **argv, struct mcfs_error *err);

/* Finds the master (by option, mount, environment or what is mounted) and connects. */
int ctl_connect(struct ctl *c, struct mcfs_error *err);

/* Prints a JSON value and drops it. */
void ctl_print_json(json_t *value);

/* A JSON string where the bytes are UTF-8, with what is not escaped as \u00XX otherwise. */
json_t *ctl_json_bytes(struct mcfs_slice s);

/* "3.2 GiB" in one of a few static buffers. */
const char *ctl_bytes(uint64_t bytes);

/* "2m 10s" likewise. */
const char *ctl_age(int64_t ms);

/* The key that a word means: a path on a mount, or a key as it is.  malloc'ed; sets the tenant when
 * the path says it. */
char *ctl_key(struct ctl *c, const char *word, size_t *len);

/* The node to put on: this machine's first, else the one with the most room.  0 or -1. */
int ctl_pick_node(struct ctl *c, struct mcfs_master_node *out, struct mcfs_error *err);

/* Disk extents of a range of a file; an empty list where the file system does not tell. */
json_t *ctl_extents(const char *file, uint64_t offset, uint64_t length);

int ctl_fsck(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_scrub(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_status(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_locate(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_ls(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_stat(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_get(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_put(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_rm(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
/* Removes what a pattern finds; the rest of `rm`. */
int ctl_rm_matching(struct ctl *c, const char *pattern, struct mcfs_error *err);
int ctl_pin(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_unpin(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_restore(struct ctl *c, int argc, char **argv, struct mcfs_error *err);
int ctl_snapshot(struct ctl *c, int argc, char **argv, struct mcfs_error *err);

/* Runs a benchmark in this process's place; its words are its own.  Returns only on failure. */
int ctl_bench(int argc, char **argv);

#endif
