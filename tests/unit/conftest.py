"""Fixtures of the unit tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pronk.protocol.state import StateDirectory
from support.played import Stack, running


@pytest.fixture
def state() -> Iterator[StateDirectory]:
    # A Unix socket's path is short: pytest's own temporary directories can be too long for it.
    root = Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp"))
    directory = StateDirectory(root)
    directory.prepare()
    yield directory
    shutil.rmtree(root)


@pytest.fixture
async def stack(state: StateDirectory) -> AsyncIterator[Stack]:
    async with running(state) as stack:
        yield stack
