/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_FS_STAGING_AREA_H
#define MCFS_FS_STAGING_AREA_H

/*
 * The files of the staging directory: making and removing one costs many times what is done with
 * it, so those whose content has been stored elsewhere are used again, and new ones are made ahead
 * by whoever has time (staging_area_tidy).
 *
 * A file may carry a label, a few bytes that say what it is and that a restart finds again; one
 * without is dropped at a restart.  Labels are records of a log beside the directory
 * (common/record_log.h), [file's name, label or nil, size or nil, CRC-32C], because an extended
 * attribute costs more: it has ext4 allocate and free a block for each that does not fit the inode.
 * Size and checksum are those of the content, until it changes: after a power cut the disk may have
 * the label and not the bytes, or those that the file held for somebody else since.
 *
 * All functions may be called from any thread.
 */

#include "common/buf.h"

#include <mooncakefs/error.h>
#include <mooncakefs/object.h>
#include <stdbool.h>
#include <stdint.h>

struct staging_area;

/* A file of the area; path NULL: none. */
struct staging_file {
    char *path;
    int fd;
    uint64_t length; /* bytes that it may hold from before; only when it is taken */
    bool labelled;
    bool summed;  /* the label says what the content is */
    bool removed; /* from the directory, since its label could not be taken off */
};
/* What a file holds. */
struct staging_sum {
    uint64_t size;
    uint32_t crc32c;
};

#define STAGING_FILE_NONE                                                                          \
    {                                                                                              \
        .path = NULL, .fd = -1                                                                     \
    }

/* Files of dir (which is there), labels in log_path.  NULL with err on failure. */
struct staging_area *staging_area_open(const char *dir, const char *log_path,
                                       struct mcfs_error *err);

/* Removes files that were kept or made to be used again; all others stay. */
void staging_area_close(struct staging_area *a);

/* Calls fn for each file that has a label, with its path and label (valid during the call), and
 * removes all others: they were never promised, or do not hold what their label says.  Before any
 * file is taken.  0 or -1. */
int staging_area_recover(struct staging_area *a,
                         void (*fn)(const char *path, struct mcfs_slice label, void *arg),
                         void *arg, struct mcfs_error *err);

/* A file without a label to write to, open for reading and writing.  0 or -1. */
int staging_area_take(struct staging_area *a, struct staging_file *f, struct mcfs_error *err);

/* Reads a whole file.  0 or -1. */
int staging_sum_of(int fd, struct staging_sum *sum, struct mcfs_error *err);

/* Opens a file that staging_area_recover has found.  0 or -1. */
int staging_area_adopt(const char *path, struct staging_file *f, struct mcfs_error *err);

/* Labels it, in place of what label it had; sum: of its content.  0 or -1. */
int staging_area_label(struct staging_area *a, struct staging_file *f, const struct mcfs_buf *label,
                       const struct staging_sum *sum, struct mcfs_error *err);

/* The content will change: from now on the label holds whatever it is.  0 or -1. */
int staging_area_changes(struct staging_area *a, struct staging_file *f, struct mcfs_error *err);

/* Label and content survive power loss from now on.  0 or -1. */
int staging_area_sync(struct staging_area *a, const struct staging_file *f, struct mcfs_error *err);

/* Takes the label off, so that no restart finds it; where that cannot be written down the file is
 * removed instead. */
void staging_area_unlabel(struct staging_area *a, struct staging_file *f);

/* Gives a file back, of which nobody needs the content, and makes *f none.  again: it may be used
 * again, and has `length` bytes; gone: it is not at its path any more. */
void staging_area_give(struct staging_area *a, struct staging_file *f, bool again, bool gone,
                       uint64_t length);

/* Lets go of a file that stays where it is. */
void staging_area_leave(struct staging_file *f);

/* Makes files ahead, as many as have lately been needed, and writes the log anew when most of it is
 * outdated.  For a thread that has time, ten times a second. */
void staging_area_tidy(struct staging_area *a);

#endif
