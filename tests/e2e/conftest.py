# SPDX-License-Identifier: Apache-2.0
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import harness  # noqa: E402


@pytest.fixture
def world():
    w = harness.World()
    yield w
    w.close()


@pytest.fixture
def mount(world):
    return harness.Mount(world)


def pytest_assertrepr_compare(op, left, right):
    """Contents that differ: how, rather than all of them."""
    if op != "==" or not isinstance(left, bytes) or not isinstance(right, bytes):
        return None
    if max(len(left), len(right)) < 200:
        return None
    at = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
    return [f"{len(left)} bytes == {len(right)} bytes",
            f"They differ from byte {at} on: {left[at:at + 40]!r} and {right[at:at + 40]!r}"]
