/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_BACKENDS_FINDING_H
#define MCFS_BACKENDS_FINDING_H

/*
 * What is wrong, or worth a word, in a store's directory.  Recovery and fsck read a layout by the
 * same code and differ in what they do with the findings: recovery counts and logs them, fsck
 * prints them and may repair.
 */

#include <mooncakefs/object.h>

enum finding_kind {
    FINDING_INDEX,     /* an index file is missing, unreadable or contradicts itself */
    FINDING_RANGE,     /* an object lies outside of its file or of its room in it */
    FINDING_RECORD,    /* bytes that should be a record or message are none */
    FINDING_CHECKSUM,  /* the bytes are not those that were stored */
    FINDING_OVERLAP,   /* two objects share bytes */
    FINDING_DUPLICATE, /* an object is stored twice; the older or misplaced copy */
    FINDING_MISPLACED, /* it is not where its key says */
    FINDING_UNKNOWN,   /* a file that belongs to no store: no damage to what is stored */
    FINDING_STALE,     /* what a crash leaves behind by design: not damage */
};

/* How a finding is repaired by dropping it. */
enum finding_repair {
    REPAIR_NONE,    /* not proven bad, or there is nothing to drop */
    REPAIR_RECORD,  /* wipe the record's head at `offset` of kv_cache.data */
    REPAIR_FILE,    /* remove the file */
    REPAIR_ENTRIES, /* write the .meta again without the entries that lie outside of the file */
    REPAIR_OBJECT,  /* remove the object from its store */
    REPAIR_RECOVER, /* what opening the store for writing does: setting aside, cutting logs */
};

struct finding {
    enum finding_kind kind;
    enum finding_repair repair;
    const char *file;      /* relative to the store's directory */
    uint64_t offset;       /* in the file, where that means something */
    struct mcfs_slice key; /* storage key, empty when it is not known */
    uint64_t version;      /* with a key, where the layout has versions; else 0 */
    const char *what;      /* the sentence's end: "the record's checksum is wrong" */
};

struct finding_sink {
    void (*report)(const struct finding *f, void *arg); /* the finding lives until it returns */
    /* So many bytes of values were read just now: to show progress, or to wait.  May be NULL. */
    void (*read)(uint64_t bytes, void *arg);
    void *arg;
};

/* "checksum", "range", ...; and whether it is damage. */
const char *finding_name(enum finding_kind kind);
bool finding_is_damage(enum finding_kind kind);

/* Reports to a sink; NULL: nobody hears it. */
void finding_report(const struct finding_sink *sink, const struct finding *f);
void finding_read(const struct finding_sink *sink, uint64_t bytes);

/* A sink that logs a warning for each damage; arg: the store's directory, a string. */
void finding_log(const struct finding *f, void *arg);

#endif
