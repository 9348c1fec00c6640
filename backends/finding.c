/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/finding.h"

#include "common/log.h"

#include <inttypes.h>

static const char *const names[] = {
    [FINDING_INDEX] = "index",         [FINDING_RANGE] = "range",
    [FINDING_RECORD] = "record",       [FINDING_CHECKSUM] = "checksum",
    [FINDING_OVERLAP] = "overlap",     [FINDING_DUPLICATE] = "duplicate",
    [FINDING_MISPLACED] = "misplaced", [FINDING_UNKNOWN] = "unknown_file",
    [FINDING_STALE] = "stale",
};

const char *finding_name(enum finding_kind kind)
{
    return names[kind];
}

bool finding_is_damage(enum finding_kind kind)
{
    return kind != FINDING_STALE && kind != FINDING_UNKNOWN;
}

void finding_report(const struct finding_sink *sink, const struct finding *f)
{
    if (sink && sink->report)
        sink->report(f, sink->arg);
}

void finding_read(const struct finding_sink *sink, uint64_t bytes)
{
    if (sink && sink->read)
        sink->read(bytes, sink->arg);
}

void finding_log(const struct finding *f, void *arg)
{
    const char *dir = arg;
    if (finding_is_damage(f->kind))
        mcfs_warning("%s/%s, offset %" PRIu64 ": %s", dir, f->file, f->offset, f->what);
    else
        mcfs_debug("%s/%s, offset %" PRIu64 ": %s", dir, f->file, f->offset, f->what);
}
