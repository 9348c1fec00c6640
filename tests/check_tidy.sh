#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over every source file, with the compile commands of a build folder.
cd "$(dirname "$0")/.." || exit 1
build=$1
find common backends snapshot master fs tools -name '*.c' -print0 |
    xargs -0 -P "$(nproc)" -n 4 clang-tidy --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option \
        2>/dev/null | tee /tmp/tidy.$$
! grep -qE 'warning:|error:' /tmp/tidy.$$
status=$?
rm -f /tmp/tidy.$$
exit $status
