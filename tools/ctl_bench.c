/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ctl.h"

#include "common/cleanup.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

static const struct {
    const char *name, *help;
} benchmarks[] = {
    {"master", "the directory and the master over RPC: puts, look-ups, checkpoints, memory"},
    {"backend",
     "a node-local store: batches beside fio, recovery (needs root and fio); or "
     "\"backend mooncake\": by the options of Mooncake's storage_backend_bench"},
    {"trace", "a KV-cache trace over files in limited room, on a mount and on ext4"},
    {"snapshot", "snapshots in a directory or in S3: writing, verifying, comparing, restoring"},
    {"mount", "a mount beside ext4 and libfuse's passthrough_ll (needs root)"},
};

/* Beside this program in the build tree, else where it was installed. */
static void run(const char *name, char **argv)
{
    char self[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        snprintf(path, sizeof(path), "%.*s/bench-%s", (int)(slash - self), self, name);
        argv[0] = path;
        execv(path, argv);
    }
    snprintf(path, sizeof(path), "%s/bench-%s", MCFS_LIBEXECDIR, name);
    argv[0] = path;
    execv(path, argv);
}

int ctl_bench(int argc, char **argv)
{
    for (size_t i = 0; argc > 0 && i < MCFS_ARRAY_SIZE(benchmarks); i++) {
        if (strcmp(argv[0], benchmarks[i].name) != 0)
            continue;
        run(benchmarks[i].name, argv);
        fprintf(stderr, "mooncakefsctl: bench-%s: %s\n", argv[0], strerror(errno));
        return EXIT_FAILED;
    }
    fprintf(stderr, "usage: mooncakefsctl bench NAME [OPTION...]   (--help: its options)\n\n");
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(benchmarks); i++)
        fprintf(stderr, "  %-10s %s\n", benchmarks[i].name, benchmarks[i].help);
    return EXIT_USAGE;
}
