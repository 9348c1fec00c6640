/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ctl.h"

#include "common/cleanup.h"
#include "common/file.h"

#include <limits.h>
#include <mntent.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define AT(field) offsetof(struct ctl_options, field)

static const struct mcfs_flag flags[] = {
    {"mount", MCFS_FLAG_STRING, AT(mount), NULL, NULL, "mount point whose master is meant", 0},
    {"master", MCFS_FLAG_STRING, AT(master), NULL, "MOONCAKEFS_MASTER_ADDRESS",
     "the master's address: HOST:PORT or unix:PATH", 0},
    {"auth_key_file", MCFS_FLAG_STRING, AT(auth_key_file), NULL, "MOONCAKEFS_AUTH_KEY_FILE",
     "file whose first key is proven to master and nodes over TCP; a mount's own if not given", 0},
    {"tenant", MCFS_FLAG_STRING, AT(tenant), "default", NULL, "tenant of the keys", 0},
    {"timeout", MCFS_FLAG_DURATION, AT(timeout_ms), "10s", NULL, "time to wait for an answer",
     1000},
    {"json", MCFS_FLAG_BOOL, AT(json), "false", NULL, "print JSON", 0},
    {"physical", MCFS_FLAG_BOOL, AT(physical), "false", NULL, "locate: disk extents, too", 0},
    {"force", MCFS_FLAG_BOOL, AT(force), "false", NULL, "rm: pinned and leased objects, too", 0},
    {"regex", MCFS_FLAG_BOOL, AT(regex), "false", NULL,
     "rm, stat: the word is a regular expression over keys", 0},
    {"soft", MCFS_FLAG_BOOL, AT(soft), "false", NULL,
     "pin: only against eviction, as long as anything else can go", 0},
    {"ttl", MCFS_FLAG_DURATION, AT(ttl_ms), "0", NULL,
     "pin --soft: for how long; 0: as long as the master's default", 1000},
    {"store", MCFS_FLAG_STRING, AT(store), NULL, NULL,
     "snapshot, restore: a directory or s3://BUCKET/PREFIX instead of a master's", 0},
    {"cluster", MCFS_FLAG_STRING, AT(cluster), NULL, NULL,
     "the cluster whose snapshots are meant, where there are several", 0},
    {"keep", MCFS_FLAG_U32, AT(keep), "0", NULL,
     "snapshot prune: delete all but the newest so many; 0: delete no snapshot", 0},
    {"min_age", MCFS_FLAG_DURATION, AT(min_age_ms), "1h", NULL,
     "snapshot prune: age of what an interrupted checkpoint left", 1000},
    {"check", MCFS_FLAG_BOOL, AT(check), "false", NULL, "restore: only tell what would be kept", 0},
    {"repair", MCFS_FLAG_BOOL, AT(repair), "false", NULL, "fsck: drop what is proven bad", 0},
    {"bandwidth", MCFS_FLAG_SIZE, AT(bandwidth), "0", NULL,
     "fsck, scrub: most bytes read in a second; 0: no limit", 0},
    {"backend", MCFS_FLAG_STRING, AT(backend), NULL, "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR",
     "fsck, scrub: the directory's layout, instead of what lies there", 0},
    {"fsdir", MCFS_FLAG_STRING, AT(fsdir), "file_per_key_dir", "MOONCAKE_OFFLOAD_FSDIR",
     "fsck, scrub: the folder of the file-per-key layout", 0},
    {"help", MCFS_FLAG_BOOL, AT(help), "false", NULL, "this help", 0},
    {"version", MCFS_FLAG_BOOL, AT(version), "false", NULL, "the version", 0},
    MCFS_FLAG_END};

static const struct command {
    const char *name, *words, *help;
    ctl_fn fn;
} commands[] = {
    {"status", "", "one screen: master, nodes, tiers, keys, snapshots, warnings", ctl_status},
    {"locate", "PATH|KEY", "from the key to file and offset (--physical: to the disk)", ctl_locate},
    {"ls", "[PREFIX]", "keys below a prefix", ctl_ls},
    {"stat", "KEY", "what the master knows of an object, or (--regex) of all that a pattern finds",
     ctl_stat},
    {"get", "KEY [FILE]", "read an object (to standard output)", ctl_get},
    {"put", "KEY FILE", "store a file as an object ('-': standard input)", ctl_put},
    {"rm", "KEY...", "remove objects, or (--regex) all that a pattern finds", ctl_rm},
    {"pin", "KEY...", "pin objects: neither evicted nor removed", ctl_pin},
    {"unpin", "KEY...", "unpin them", ctl_unpin},
    {"snapshot", "list|create|show|verify|diff|prune ...",
     "snapshots, of a master or (--store) where they lie", ctl_snapshot},
    {"fsck", "DIR [--repair]", "check an offload directory, drop what is proven bad", ctl_fsck},
    {"scrub", "DIR", "read every value in it against its checksum", ctl_scrub},
    {"restore", "--check [DIR|ID]", "what a master would keep of a snapshot", ctl_restore},
};

void ctl_print_json(json_t *value)
{
    json_dumpf(value, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(value);
}

json_t *ctl_json_bytes(struct mcfs_slice s)
{
    json_t *v = json_stringn(s.len ? s.data : "", s.len);
    if (v)
        return v;
    _cleanup_buf_ struct mcfs_buf b = MCFS_BUF_INIT;
    for (size_t i = 0; i < s.len; i++) {
        unsigned char ch = (unsigned char)s.data[i];
        char two[2] = {(char)(0xc0 | ch >> 6), (char)(0x80 | (ch & 0x3f))};
        if (ch < 0x80)
            mcfs_buf_append(&b, &ch, 1);
        else
            mcfs_buf_append(&b, two, 2);
    }
    return json_stringn((char *)b.data, b.len);
}

const char *ctl_bytes(uint64_t bytes)
{
    static char texts[8][32];
    static unsigned next;
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char *text = texts[next++ % MCFS_ARRAY_SIZE(texts)];
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < MCFS_ARRAY_SIZE(units); unit++)
        value /= 1024;
    snprintf(text, sizeof(texts[0]), unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

const char *ctl_age(int64_t ms)
{
    static char texts[4][32];
    static unsigned next;
    char *text = texts[next++ % MCFS_ARRAY_SIZE(texts)];
    int64_t s = ms / 1000;
    if (s < 60)
        snprintf(text, sizeof(texts[0]), "%llds", (long long)s);
    else if (s < 3600)
        snprintf(text, sizeof(texts[0]), "%lldm %llds", (long long)s / 60, (long long)s % 60);
    else if (s < 86400)
        snprintf(text, sizeof(texts[0]), "%lldh %lldm", (long long)s / 3600,
                 (long long)s % 3600 / 60);
    else
        snprintf(text, sizeof(texts[0]), "%lldd %lldh", (long long)s / 86400,
                 (long long)s % 86400 / 3600);
    return text;
}

/* Takes the master's address from a mount's own description. */
static int from_mount(struct ctl *c, const char *mount, struct mcfs_error *err)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/.mooncakefs/config.json", mount);
    /* A control file has no size before it is read. */
    _cleanup_file_ FILE *f = fopen(path, "re");
    json_error_t bad;
    json_t *config = f ? json_loadf(f, 0, &bad) : NULL;
    const char *address = json_string_value(json_object_get(config, "master"));
    const char *tenant = json_string_value(json_object_get(config, "tenant"));
    if (!address) {
        json_decref(config);
        return mcfs_fail(err, MCFS_INVALID_PARAMS, "%s is not a mooncakefs mount", mount);
    }
    const char *keys = json_string_value(json_object_get(config, "auth_key_file"));
    if (keys && !c->o.auth_key_file)
        c->o.auth_key_file = strdup(keys);
    c->master_address = strdup(address);
    c->mount = strdup(mount);
    if (tenant && strcmp(c->o.tenant, MCFS_DEFAULT_TENANT) == 0) {
        free(c->o.tenant);
        c->o.tenant = strdup(tenant);
    }
    json_decref(config);
    return 0;
}

/* The first mooncakefs that is mounted here. */
static int from_mounts(struct ctl *c)
{
    FILE *f = setmntent("/proc/self/mounts", "re");
    struct mntent *m;
    int rc = -1;
    while (f && rc && (m = getmntent(f)))
        if (strcmp(m->mnt_type, "fuse.mooncakefs") == 0)
            rc = from_mount(c, m->mnt_dir, NULL);
    if (f)
        endmntent(f);
    return rc;
}

static int find_master(struct ctl *c, struct mcfs_error *err)
{
    if (c->o.mount)
        return from_mount(c, c->o.mount, err);
    if (c->o.master) {
        c->master_address = strdup(c->o.master);
        return 0;
    }
    if (from_mounts(c) == 0)
        return 0;
    return mcfs_fail(err, MCFS_INVALID_PARAMS,
                     "no master: nothing is mounted here; use --mount or --master");
}

int ctl_connect(struct ctl *c, struct mcfs_error *err)
{
    if (c->master)
        return 0;
    if (!c->master_address && find_master(c, err))
        return -1;
    if (c->o.auth_key_file && !c->keys && !(c->keys = mcfs_rpc_keys_load(c->o.auth_key_file, err)))
        return -1;
    struct mcfs_master_config config = {
        .address = c->master_address, .keys = c->keys, .timeout_ms = (uint32_t)c->o.timeout_ms};
    c->tenant = mcfs_slice_str(c->o.tenant);
    c->master = mcfs_master_open(&config, err);
    return c->master ? 0 : -1;
}

char *ctl_key(struct ctl *c, const char *word, size_t *len)
{
    char key[MCFS_KEY_MAX], tenant[MCFS_TENANT_MAX + 1], real[PATH_MAX];
    ssize_t n = strchr(word, '/') ? getxattr(word, "user.mooncake.key", key, sizeof(key)) : -1;
    if (n < 0) {
        *len = strlen(word);
        return strdup(word);
    }
    ssize_t t = getxattr(word, "user.mooncake.tenant", tenant, sizeof(tenant) - 1);
    if (t > 0) {
        tenant[t] = 0;
        free(c->o.tenant);
        c->o.tenant = strdup(tenant);
    }
    /* The mount that the path lies on is the one that is meant. */
    if (!c->master && !c->o.mount && !c->o.master && realpath(word, real))
        for (char *slash; (slash = strrchr(real, '/')) && slash > real;) {
            *slash = 0;
            if (from_mount(c, real, NULL) == 0)
                break;
        }
    char *copy = malloc((size_t)n + 1);
    if (copy)
        memcpy(copy, key, (size_t)n);
    *len = (size_t)n;
    return copy;
}

struct pick {
    struct mcfs_master_node best;
    bool found, local;
};

static void consider(const struct mcfs_master_node *n, void *arg)
{
    struct pick *p = arg;
    char host[64] = "";
    uint64_t room = n->capacity_bytes - MCFS_MIN(n->used_bytes, n->capacity_bytes);
    if (!n->connected)
        return;
    gethostname(host, sizeof(host) - 1);
    bool local = strcmp(host, n->name) == 0;
    uint64_t best_room =
        p->best.capacity_bytes - MCFS_MIN(p->best.used_bytes, p->best.capacity_bytes);
    if (p->found && (p->local > local || (p->local == local && best_room >= room)))
        return;
    p->best = *n;
    p->local = local;
    p->found = true;
}

int ctl_pick_node(struct ctl *c, struct mcfs_master_node *out, struct mcfs_error *err)
{
    struct pick p = {0};
    if (mcfs_master_nodes(c->master, consider, &p, err))
        return -1;
    if (!p.found)
        return mcfs_fail(err, MCFS_SEGMENT_NOT_FOUND, "no node is connected to the master");
    *out = p.best;
    return 0;
}

static void usage(FILE *to)
{
    fprintf(to, "usage: mooncakefsctl [OPTION...] COMMAND [WORD...]\n\ncommands:\n");
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(commands); i++)
        fprintf(to, "  %-10s %-14s %s\n", commands[i].name, commands[i].words, commands[i].help);
    fprintf(to, "  %-10s %-14s %s\n", "bench", "NAME ...", "benchmarks, JSON result last");
    fprintf(to, "\noptions, with -- before them:\n");
    mcfs_flags_help(flags, to);
}

int main(int argc, char **argv)
{
    static char help[] = "--help", version[] = "--version";
    struct ctl c = {0};
    struct mcfs_error err = MCFS_ERROR_INIT;
    signal(SIGPIPE, SIG_DFL);
    if (argc > 1 && strcmp(argv[1], "bench") == 0)
        return ctl_bench(argc - 2, argv + 2);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "-h") == 0)
            argv[i] = help;
        else if (strcmp(argv[i], "-V") == 0)
            argv[i] = version;
    if (mcfs_flags_init(flags, &c.o, &err) ||
        mcfs_flags_parse_argv(flags, &c.o, &argc, argv, &err)) {
        fprintf(stderr, "mooncakefsctl: %s\n", err.msg);
        mcfs_flags_free(flags, &c.o);
        return EXIT_USAGE;
    }
    int status = EXIT_USAGE;
    const struct command *command = NULL;
    for (size_t i = 0; argc > 1 && i < MCFS_ARRAY_SIZE(commands); i++)
        if (strcmp(commands[i].name, argv[1]) == 0)
            command = &commands[i];
    if (c.o.version) {
        printf("mooncakefsctl %s\n", MCFS_VERSION);
        status = EXIT_DONE;
    } else if (c.o.help) {
        usage(stdout);
        status = EXIT_DONE;
    } else if (!command) {
        if (argc > 1)
            fprintf(stderr, "mooncakefsctl: no command '%s'\n", argv[1]);
        usage(stderr);
    } else {
        status = command->fn(&c, argc - 2, argv + 2, &err);
        if (status == EXIT_USAGE)
            fprintf(stderr, "usage: mooncakefsctl %s %s\n", command->name, command->words);
        else if (status == EXIT_FAILED)
            fprintf(stderr, "mooncakefsctl: %s\n", err.msg);
    }
    mcfs_master_close(c.master);
    mcfs_rpc_keys_free(c.keys);
    free(c.master_address);
    free(c.mount);
    mcfs_flags_free(flags, &c.o);
    return status;
}
