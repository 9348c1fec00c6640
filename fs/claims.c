/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/fs.h"

#include "common/cleanup.h"
#include "common/clock.h"

#define CLAIM_MS 5000

static void drop(struct fs *fs, struct claim *c)
{
    struct inode *w = c->inode;
    c->inode = NULL;
    w->claimed = false;
    if (!w->opens)
        w->gone = true;
    inode_unref(fs->inodes, w);
}

void claim_add(struct fs *fs, struct inode *w)
{
    int64_t now = mcfs_mono_ms();
    MCFS_LOCK_SCOPE(&fs->claims_lock);
    struct claim *place = &fs->claims[0];
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(fs->claims); i++) {
        struct claim *c = &fs->claims[i];
        if (!c->inode || c->made_ms < place->made_ms)
            place = c;
        if (!c->inode)
            break;
    }
    if (place->inode)
        drop(fs, place);
    w->claimed = true;
    *place = (struct claim){w, now};
}

void claim_take(struct fs *fs, struct inode *w)
{
    if (!w->claimed)
        return;
    MCFS_LOCK_SCOPE(&fs->claims_lock);
    w->claimed = false;
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(fs->claims); i++) {
        if (fs->claims[i].inode == w) {
            fs->claims[i].inode = NULL;
            inode_unref(fs->inodes, w);
        }
    }
}

bool stale_once(struct fs *fs, int pid)
{
    int64_t now = mcfs_mono_ms();
    struct stale *st = &fs->stale[(unsigned)pid % MCFS_ARRAY_SIZE(fs->stale)];
    MCFS_LOCK_SCOPE(&fs->claims_lock);
    bool again = st->pid == pid && now - st->when_ms < 1000;
    *st = (struct stale){again ? 0 : pid, now};
    return !again;
}

void claims_sweep(struct fs *fs, bool all)
{
    int64_t now = mcfs_mono_ms();
    MCFS_LOCK_SCOPE(&fs->claims_lock);
    for (size_t i = 0; i < MCFS_ARRAY_SIZE(fs->claims); i++)
        if (fs->claims[i].inode && (all || now - fs->claims[i].made_ms > CLAIM_MS))
            drop(fs, &fs->claims[i]);
}
