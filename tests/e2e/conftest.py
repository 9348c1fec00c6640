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
