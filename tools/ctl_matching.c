/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefsctl rm --regex: what a pattern finds, walk after walk, until no object is left that
 * only a lease kept. */
#include "common/cleanup.h"
#include "common/clock.h"
#include "tools/ctl.h"

#include <poll.h>

#define PAUSE_MS 20 /* holders of leases have been asked and answer meanwhile */

struct removals {
    uint64_t removed; /* in all walks */
    uint64_t leased;  /* in this one */
    json_t *failed;   /* for other reasons, of the last walk */
    char why[256];    /* the first of them */
};

static void count(const struct mcfs_master_removal *r, void *arg)
{
    struct removals *all = arg;
    if (!r->code || r->code == MCFS_OBJECT_NOT_FOUND) {
        all->removed += !r->code;
        return;
    }
    if (r->code == MCFS_OBJECT_HAS_LEASE)
        all->leased++;
    if (!all->why[0])
        snprintf(all->why, sizeof(all->why), "%.*s", MCFS_SLICE_ARG(r->text));
    json_array_append_new(all->failed,
                          json_pack("{s:o, s:i, s:o}", "key", ctl_json_bytes(r->key), "code",
                                    r->code, "error", ctl_json_bytes(r->text)));
}

static int walk(struct ctl *c, struct mcfs_slice pattern, struct removals *all,
                struct mcfs_error *err)
{
    uint64_t cursor = 0;
    all->leased = 0;
    all->why[0] = 0;
    json_array_clear(all->failed);
    do {
        if (mcfs_master_remove_matching(c->master, c->tenant, &pattern, c->o.force, &cursor, count,
                                        all, NULL, err))
            return -1;
    } while (cursor);
    return 0;
}

int ctl_rm_matching(struct ctl *c, const char *pattern, struct mcfs_error *err)
{
    if (ctl_connect(c, err))
        return EXIT_FAILED;
    struct removals all = {.failed = json_array()};
    int64_t until = mcfs_mono_ms() + (int64_t)c->o.timeout_ms;
    int rc = walk(c, mcfs_slice_str(pattern), &all, err);
    while (rc == 0 && all.leased && mcfs_mono_ms() < until) {
        poll(NULL, 0, PAUSE_MS);
        rc = walk(c, mcfs_slice_str(pattern), &all, err);
    }
    size_t failed = json_array_size(all.failed);
    if (rc == 0 && c->o.json)
        ctl_print_json(
            json_pack("{s:I, s:O}", "removed", (json_int_t)all.removed, "failed", all.failed));
    else if (rc == 0)
        printf("%llu removed\n", (unsigned long long)all.removed);
    if (rc == 0 && failed)
        rc = mcfs_fail(err, MCFS_OBJECT_HAS_LEASE, "%zu were not removed: %s", failed, all.why);
    json_decref(all.failed);
    return rc ? EXIT_FAILED : EXIT_DONE;
}
