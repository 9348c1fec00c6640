/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_SEGMENTS_H
#define MCFS_MASTER_SEGMENTS_H

/*
 * Memory segments: pieces of nodes' memory from which the master hands out ranges, one offset
 * allocator each.  What a range is for is not known here: it belongs to a put that has begun, to a
 * replica, or to nobody and is held until a time at which no reader or slow writer can touch it any
 * more.
 *
 * A segment is `ok`; or `awaited`, when a snapshot or its node's earlier session named it and the
 * node has not mounted it (again): nothing is allocated there, and what lies there is kept for a
 * while; or `draining`: nothing is allocated there, and it goes with its last range or at its
 * deadline; or gone: its number stays until the last who holds a range has let go of it.
 *
 * A node gives a segment a new id whenever the bytes in it are new.  Mounting the same id with the
 * same name, base and size is therefore going on with the bytes that are there.
 *
 * Locks: the table's (its list changes under it alone), then one segment's, then that of the held
 * ranges.  All are inside every lock of the directory; nobody holds two segments' locks.
 * Everything but segments_peek is thread safe.
 */

#include "common/offset_allocator.h"
#include <mooncakefs/object.h>

struct segments;

#define SEGMENT_TEXT_MAX 255 /* bytes of a name or an endpoint */
#define SEGMENT_UNIT_BITS 0
#define SEGMENT_REPLICAS_MAX 16 /* of one object */

enum segment_state { SEGMENT_FREE, SEGMENT_OK, SEGMENT_AWAITED, SEGMENT_DRAINING, SEGMENT_GONE };
enum segment_strategy { SEGMENT_RANDOM, SEGMENT_FREE_RATIO_FIRST };

/* A range that somebody holds. */
struct segment_range {
    uint64_t address, size; /* bytes asked for */
    uint32_t segment;       /* number, from 1 on */
    uint32_t node;          /* in its allocator */
};

struct segment_info {
    uint32_t number, serial; /* a number is used again with another serial */
    uint32_t node;           /* client number of its node; 0: a snapshot did not say */
    struct mcfs_id id;
    uint8_t state; /* enum segment_state */
    uint8_t name_len, endpoint_len, host_len;
    char name[SEGMENT_TEXT_MAX], endpoint[SEGMENT_TEXT_MAX], host[SEGMENT_TEXT_MAX];
    uint64_t base, size;
    uint64_t used, ranges; /* bytes that are allocated, and in how many ranges */
    uint64_t largest_free; /* bytes that one range could get; segments_visit fills it in */
};

static inline struct mcfs_slice segment_name(const struct segment_info *g)
{
    return mcfs_slice(g->name, g->name_len);
}

/* Sets a name, an endpoint or a host; false when it is too long. */
bool segment_set_text(char *to, uint8_t *len, struct mcfs_slice from);

/* "random" or "free_ratio_first"; false for anything else. */
bool segment_strategy_parse(struct mcfs_slice name, enum segment_strategy *to);

struct segments *segments_new(void);
void segments_free(struct segments *s);

/* ---- mounting ---- */

/* A range that the writer of a put may be busy in until then. */
struct segment_busy {
    struct segment_range range;
    int64_t until_mono_ms;
};

/* What a node mounts: id, node, name, endpoint, base and size of `info` count.  hold_ms: how long
 * readers may know addresses of a segment that has given way, or is gone and not swept yet.  busy:
 * ranges of all puts under way; those that were handed out of the same memory, and what is held
 * there, are held in a new segment, too.  SEGMENT_ALREADY_EXISTS:
 * another node's id, another place than the id has, or one that is taken; INVALID_PARAMS.  *gone: a
 * segment gave way, whose replicas are to be swept. */
int segments_mount(struct segments *s, const struct segment_info *info, uint32_t hold_ms,
                   const struct segment_busy *busy, uint32_t busy_count, bool *gone,
                   struct mcfs_error *err);

/* The number of an id that is there (not gone); 0: none. */
uint32_t segments_find(struct segments *s, struct mcfs_id id);

/* No allocations from now on; it goes with its last range, at the latest in `ms`. */
void segments_drain(struct segments *s, uint32_t number, uint64_t ms);

/* It is gone: replicas in it are to be swept. */
void segments_kill(struct segments *s, uint32_t number);

/* The node's segments are awaited for so long: it has begun a new session. */
void segments_await(struct segments *s, uint32_t node, uint64_t ms);

/* All that are awaited are so for so long from now: a restore is over. */
void segments_await_all(struct segments *s, uint64_t ms);

/* Kills what is due: awaited too long, drained, or a node's that alive() denies; returns how many
 * there were. */
uint32_t segments_expire(struct segments *s, bool (*alive)(void *arg, uint32_t node), void *arg);

/* Around a walk that takes out what lies in segments that are gone: afterwards it is known until
 * when there are readers, and those that went before it began count as swept. */
uint64_t segments_sweep_begin(struct segments *s);
void segments_sweep_end(struct segments *s, uint64_t begun);

/* ---- allocating ---- */

struct space_request {
    uint64_t size;     /* bytes of each replica; 0 takes a unit */
    uint32_t replicas; /* at most SEGMENT_REPLICAS_MAX, on segments of different names */
    enum segment_strategy strategy;
    const struct mcfs_slice *preferred; /* names, tried first, in this order */
    uint32_t preferred_count;
    bool again; /* it has been counted as one that found no room */
};

/* Allocates as many of the replicas as there is room for, at least one, into out; returns how many,
 * or 0 with NO_AVAILABLE_HANDLE.  *full: it would have fitted an empty segment. */
uint32_t segments_allocate(struct segments *s, const struct space_request *q,
                           struct segment_range *out, bool *full, struct mcfs_error *err);

/* Gives a range back at once. */
void segments_release(struct segments *s, const struct segment_range *r);

/* Gives it back in so many ms: until then it is nobody's, and not handed out, also when the segment
 * is gone and its node mounts another one there. */
void segments_release_in(struct segments *s, const struct segment_range *r, uint64_t ms);

/* The same for a range that a snapshot held already, which segments_peek_held leaves out: what was
 * written of it is written again. */
void segments_hold_carried(struct segments *s, const struct segment_range *r, uint64_t ms);

/* Adds up what is held beyond a time, by the number of its segment, up to `max`. */
void segments_add_held(struct segments *s, int64_t beyond_mono_ms, uint64_t *bytes, uint32_t max);

/* Gives back what is due; returns how many ranges that were. */
uint32_t segments_release_due(struct segments *s);

/* ---- looking ---- */

/* Whether a range's segment is there; *connected: and its node mounts it now. */
bool segments_live(struct segments *s, uint32_t number, bool *connected);

/* false: there is no such segment (any more); serial 0: whichever has the number. */
bool segments_get(struct segments *s, uint32_t number, uint32_t serial, struct segment_info *out);
uint32_t segments_serial(struct segments *s, uint32_t number);

/* The greatest number in use. */
uint32_t segments_max(struct segments *s);

/* Calls fn for each that is there, or for those of a name or an id (which; NULL: all), outside of
 * all locks; returns how many that were.  To tell its largest free range, a segment's free ranges
 * of that size are walked. */
uint32_t segments_visit(struct segments *s, const struct mcfs_slice *which,
                        void (*fn)(const struct segment_info *g, void *arg), void *arg);

struct segments_sum {
    uint64_t capacity, used; /* bytes of those that are not gone */
    uint64_t failures;       /* allocations that found no room */
    uint64_t held_ranges, held_bytes;
    uint32_t count;
};
void segments_sum(struct segments *s, struct segments_sum *out);

/* used / capacity of what can be allocated from; 0 without any.  Cheap. */
double segments_use(struct segments *s);

/* ---- restoring ---- */

/* Adds an awaited segment of a snapshot; state: as its allocator was, or NULL (all is free).
 * INVALID_PARAMS when its figures contradict themselves; a state that does is replaced by an empty
 * one. */
int segments_restore(struct segments *s, const struct segment_info *info,
                     const struct mcfs_alloc_state *state, struct mcfs_error *err);

/* The range of a restored replica: the allocated one that it names (node), or one that is free;
 * false when it is somebody else's or no range of the segment. */
bool segments_claim(struct segments *s, struct mcfs_id id, uint64_t address, uint64_t size,
                    uint32_t node, struct segment_range *out);

/* Everything has been claimed: what was allocated and is nobody's is given back in so many ms,
 * until when a writer from before may be busy.  Returns how many ranges that were. */
uint64_t segments_claims_end(struct segments *s, uint64_t ms);

/* Takes out everything, as before a restore is tried again; nobody holds a range. */
void segments_clear(struct segments *s);

/* ---- for a checkpoint's child, which takes no lock ---- */

struct segment_peek {
    const struct segment_info *info; /* used, ranges and largest_free are not filled in */
    const struct mcfs_alloc_state *state;
    uint32_t order; /* of its mounting */
};
/* false: no segment, or one that is gone. */
bool segments_peek(struct segments *s, uint32_t number, struct segment_peek *out);

/* Held range i, from 0 on, with the mono ms at which it is given back (0: it is a carried one);
 * false at the end. */
bool segments_peek_held(struct segments *s, uint32_t i, struct segment_range *out,
                        int64_t *until_mono_ms);

#endif
