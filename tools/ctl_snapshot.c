/* SPDX-License-Identifier: Apache-2.0 */
/* mooncakefsctl snapshot list, create, prune, and restore --check. */
#include "tools/ctl_snapshot.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "master/client/restore_check.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* ---- which snapshots ---- */

int ctl_snapshots_open(struct ctl *c, const char *word, struct ctl_snapshots *s,
                       struct mcfs_error *err)
{
    bool id = word && (snap_id_is_valid(word) || strcmp(word, "latest") == 0);
    *s = (struct ctl_snapshots){0};
    if (word && !id)
        return snap_place_open(word, c->o.cluster, &s->place, err);
    if (c->o.store) {
        if (snap_place_open(c->o.store, c->o.cluster, &s->place, err))
            return -1;
    } else {
        if (ctl_connect(c, err))
            return -1;
        s->place.store = mcfs_master_snapshot_store(c->master, err);
        if (!s->place.store)
            return -1;
    }
    if (id && snap_id_is_valid(word))
        memcpy(s->place.id, word, SNAP_ID_SIZE);
    return 0;
}

void ctl_snapshots_close(struct ctl_snapshots *s)
{
    snap_place_close(&s->place);
}

int ctl_snapshots_id(struct ctl_snapshots *s, char id[SNAP_ID_SIZE], struct mcfs_error *err)
{
    struct snap_entry *list;
    size_t count;
    if (s->place.id[0]) {
        memcpy(id, s->place.id, SNAP_ID_SIZE);
        return 0;
    }
    if (snap_repo_latest(s->place.store, s->place.cluster, id))
        return 0;
    if (snap_repo_list(s->place.store, s->place.cluster, &list, &count, err))
        return -1;
    if (count)
        memcpy(id, list[0].id, SNAP_ID_SIZE);
    free(list);
    return count ? 0 : mcfs_fail(err, MCFS_FILE_NOT_FOUND, "there is no snapshot");
}

void ctl_progress(uint64_t done, uint64_t all, void *arg)
{
    static int64_t last;
    char bar[41];
    int64_t now = mcfs_mono_ms();
    (void)arg;
    if (!isatty(STDERR_FILENO) || !all || (done < all && now - last < 100))
        return;
    last = now;
    size_t full = (size_t)(done * 40 / all);
    memset(bar, '.', 40);
    memset(bar, '#', full);
    bar[40] = 0;
    if (done < all)
        fprintf(stderr, "\r[%s] %3u%%", bar, (unsigned)(done * 100 / all));
    else
        fprintf(stderr, "\r%50s\r", "");
}

/* ---- list, create, prune ---- */

static int snapshot_list(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct ctl_snapshots s;
    struct snap_entry *list;
    size_t count;
    char latest[SNAP_ID_SIZE] = "";
    if (argc > 1)
        return EXIT_USAGE;
    if (ctl_snapshots_open(c, argc ? argv[0] : NULL, &s, err))
        return EXIT_FAILED;
    int rc = snap_repo_list(s.place.store, s.place.cluster, &list, &count, err);
    if (rc == 0)
        snap_repo_latest(s.place.store, s.place.cluster, latest);
    ctl_snapshots_close(&s);
    if (rc)
        return EXIT_FAILED;
    json_t *json = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(json, json_pack("{s:s, s:I, s:I}", "id", list[i].id, "created_ms",
                                              (json_int_t)list[i].info.created_ms, "bytes",
                                              (json_int_t)list[i].bytes));
        if (!c->o.json)
            printf("%s  %10s  %s old%s\n", list[i].id, ctl_bytes(list[i].bytes),
                   ctl_age(mcfs_wall_ms() - list[i].info.created_ms),
                   strcmp(list[i].id, latest) == 0 ? "  latest" : "");
    }
    free(list);
    if (c->o.json)
        ctl_print_json(json);
    else
        json_decref(json);
    return EXIT_DONE;
}

/* Returns when the snapshot is published. */
static int snapshot_create(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    char id[32], last[32], failure[256];
    bool running = true;
    int64_t began = mcfs_mono_ms();
    (void)argv;
    if (argc)
        return EXIT_USAGE;
    if (ctl_connect(c, err) || mcfs_master_snapshot_create(c->master, id, err))
        return EXIT_FAILED;
    while (running) {
        poll(NULL, 0, 20);
        if (mcfs_master_snapshot_state(c->master, &running, last, failure, err))
            return EXIT_FAILED;
    }
    if (strcmp(last, id) != 0) {
        mcfs_fail(err, MCFS_INTERNAL_ERROR, "snapshot %s failed: %s", id, failure);
        return EXIT_FAILED;
    }
    if (c->o.json)
        ctl_print_json(
            json_pack("{s:s, s:I}", "id", id, "took_ms", (json_int_t)(mcfs_mono_ms() - began)));
    else
        printf("%s\n", id);
    return EXIT_DONE;
}

static int snapshot_prune(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    uint32_t snapshots = 0, files = 0;
    int rc;
    if (argc > 1)
        return EXIT_USAGE;
    const char *where = argc ? argv[0] : c->o.store;
    if (where) {
        struct snap_place place;
        if (snap_place_open(where, c->o.cluster, &place, err))
            return EXIT_FAILED;
        rc = snap_repo_prune(place.store, place.cluster, c->o.keep, (int64_t)c->o.min_age_ms,
                             &snapshots, &files, err);
        snap_place_close(&place);
    } else {
        rc =
            ctl_connect(c, err) || mcfs_master_snapshot_prune(c->master, c->o.keep, c->o.min_age_ms,
                                                              &snapshots, &files, err)
                ? -1
                : 0;
    }
    if (rc)
        return EXIT_FAILED;
    if (c->o.json)
        ctl_print_json(json_pack("{s:I, s:I}", "snapshots", (json_int_t)snapshots, "files",
                                 (json_int_t)files));
    else
        printf("%u snapshots deleted, and %u files that interrupted checkpoints left\n", snapshots,
               files);
    return EXIT_DONE;
}

int ctl_snapshot(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    static const struct {
        const char *name;
        ctl_fn fn;
    } commands[] = {{"list", snapshot_list},     {"create", snapshot_create},
                    {"show", ctl_snapshot_show}, {"verify", ctl_snapshot_verify},
                    {"diff", ctl_snapshot_diff}, {"prune", snapshot_prune}};
    for (size_t i = 0; argc > 0 && i < MCFS_ARRAY_SIZE(commands); i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].fn(c, argc - 1, argv + 1, err);
    return EXIT_USAGE;
}

/* ---- restore --check ---- */

static void add_failed(const char *id, const char *why, void *arg)
{
    json_array_append_new(
        arg, json_pack("{s:s, s:o}", "id", id, "error", ctl_json_bytes(mcfs_slice_str(why))));
}

static void print_check(const struct mcfs_restore_check *r, const json_t *failed)
{
    size_t i;
    json_t *v;
    json_array_foreach((json_t *)(uintptr_t)failed, i, v)
        printf("snapshot %s cannot be restored: %s\n", json_string_value(json_object_get(v, "id")),
               json_string_value(json_object_get(v, "error")));
    if (!r->id[0]) {
        printf("nothing can be restored: a master would start empty\n");
        return;
    }
    printf("snapshot %s: %" PRIu64 " keys kept with %" PRIu64 " replicas, %" PRIu64
           " dropped, in %.2f s and %s\n",
           r->id, r->kept, r->replicas, r->incomplete + r->twice + r->lost_memory, r->seconds,
           ctl_bytes(r->memory_bytes));
    if (r->incomplete)
        printf("  %" PRIu64 " have no complete replica\n", r->incomplete);
    if (r->twice)
        printf("  %" PRIu64 " are there twice\n", r->twice);
    if (r->lost_memory)
        printf("  %" PRIu64 " lie in memory segments that are not there, or in others' ranges\n",
               r->lost_memory);
}

int ctl_restore(struct ctl *c, int argc, char **argv, struct mcfs_error *err)
{
    struct ctl_snapshots s;
    struct mcfs_restore_check r;
    if (argc > 1 || !c->o.check)
        return EXIT_USAGE;
    if (ctl_snapshots_open(c, argc ? argv[0] : NULL, &s, err))
        return EXIT_FAILED;
    json_t *failed = json_array();
    struct mcfs_restore_check_watch watch = {ctl_progress, add_failed, failed};
    int rc = mcfs_restore_check(s.place.store, s.place.cluster, s.place.id, &watch, &r, err);
    ctl_snapshots_close(&s);
    if (rc) {
        json_decref(failed);
        return EXIT_FAILED;
    }
    uint64_t dropped = r.incomplete + r.twice + r.lost_memory;
    if (c->o.json)
        ctl_print_json(json_pack(
            "{s:s, s:I, s:I, s:{s:I, s:I, s:I}, s:I, s:f, s:I, s:O}", "id", r.id, "keys_kept",
            (json_int_t)r.kept, "keys_dropped", (json_int_t)dropped, "dropped",
            "no_complete_replica", (json_int_t)r.incomplete, "duplicate", (json_int_t)r.twice,
            "memory_lost", (json_int_t)r.lost_memory, "replicas", (json_int_t)r.replicas, "seconds",
            r.seconds, "memory_bytes", (json_int_t)r.memory_bytes, "failed_candidates", failed));
    else
        print_check(&r, failed);
    bool none = !r.id[0];
    json_decref(failed);
    if (none)
        mcfs_fail(err, MCFS_FILE_NOT_FOUND, "no snapshot can be restored");
    return none ? EXIT_FAILED : EXIT_DONE;
}
