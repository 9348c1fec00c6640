/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_QUOTA_H
#define MCFS_MASTER_QUOTA_H

/*
 * How many bytes each tenant may store, from Mooncake's policy file:
 *
 *     version: 1
 *     tenants:
 *       - name: team-a
 *         quota: 200GB
 *
 * (units B, KB, MB, GB, TB of 1024).  A tenant that is not in it may write nothing; none is
 * special.  What is changed while the master runs is written to the file before it counts, whole
 * and durably, so that the next master has it.  Any thread.
 */

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <stdint.h>

struct quotas;

/* Reads the policy file, which need not be there yet. INVALID_PARAMS naming file and line. */
struct quotas *quotas_load(const char *path, struct mcfs_error *err);

/* The same from a text; path is where changes go. */
struct quotas *quotas_parse(const char *text, size_t len, const char *path, struct mcfs_error *err);
void quotas_free(struct quotas *q);

/* Bytes the tenant may store; TENANT_NOT_REGISTERED. */
int quotas_limit(struct quotas *q, struct mcfs_slice tenant, uint64_t *bytes,
                 struct mcfs_error *err);

/* Registers a tenant, or changes its quota. TENANT_QUOTA_INVALID for a name or figure that cannot
 * be one. */
int quotas_set(struct quotas *q, struct mcfs_slice tenant, uint64_t bytes, struct mcfs_error *err);

/* Takes a tenant out; TENANT_NOT_REGISTERED when it is not there. */
int quotas_remove(struct quotas *q, struct mcfs_slice tenant, struct mcfs_error *err);

/* Calls fn for each tenant, by name; fn must not change them. */
void quotas_each(struct quotas *q, void (*fn)(struct mcfs_slice tenant, uint64_t bytes, void *arg),
                 void *arg);

#endif
