/* SPDX-License-Identifier: Apache-2.0 */
#include "master/modest.h"

#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <linux/sched/types.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000 /* the least that the scheduler takes */

/* A request that comes while we run waits for the end of our slice (Linux 6.12 and later let us
 * choose it).  SCHED_IDLE would give way at once, and get no time at all on a busy machine. */
static void give_way(void)
{
    struct sched_attr attr = {.size = sizeof(attr),
                              .sched_policy = SCHED_BATCH,
                              .sched_nice = 10,
                              .sched_runtime = SLICE_NS};
    if (syscall(SYS_sched_setattr, 0, &attr, 0))
        mcfs_debug("sched_setattr: %s", strerror(errno));
}

void be_modest(void)
{
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, "500", 3) < 0)
            mcfs_debug("oom_score_adj: %s", strerror(errno));
        close(fd);
    }
    give_way();
}
