/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MCFS_MASTER_MODEST_H
#define MCFS_MASTER_MODEST_H

/* Makes the calling process, and threads that it starts from now on, give way to others: it gets
 * little processor time when others want some, and is the one to go when memory is short.  What
 * the system does not allow is left as it is. */
void be_modest(void);

#endif
