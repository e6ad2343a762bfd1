"""A pull whose process is killed at any moment, from a real registry."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from pronk.protocol.names import parse_name
from pronk.workers.store.layout import Library
from pronk.workers.store.pulling.journal import boot_id, read_journal
from pronk.workers.store.pulling.ranges import Ranges
from support.faulty import Asked, Faulty, faulty
from support.pushed import push_model
from support.registry import needs_registry, plain_registry

KILLS = 200
PATIENCE = 60.0
MIB = 1024 * 1024
CONTENT = random.Random(7).randbytes(48 * MIB + 4321)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ENDS = ("verifying sha256 digest", "writing manifest", "success")


class Pulls:
    """A process whose children pull, one after another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin
        assert process.stdout
        self._input, self._output = process.stdin, process.stdout
        self.pid = 0

    async def start(self) -> None:
        """Returns when a pull begins."""
        self._input.write(b"\n")
        while "pid" not in (line := await self.line()):
            pass
        self.pid = line["pid"]
        await self.line()

    async def line(self) -> dict[str, Any]:
        """The next line; one that was cut by a kill is left out."""
        while True:
            text = await asyncio.wait_for(self._output.readline(), PATIENCE)
            assert text, "the process ended"
            with suppress(ValueError):
                return json.loads(text)

    async def end(self, when: asyncio.Task[None] | None, status: str | None) -> int:
        """Kills it when `when` is done, or when it reports `status`; returns how it ended."""
        while True:
            line = await self.line()
            if "ended" in line:
                if when:
                    when.cancel()
                return line["ended"]
            if status and line.get("status") == status:
                self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@asynccontextmanager
async def pulls(library: Path, name: str) -> AsyncIterator[Pulls]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.pull_often",
        str(library),
        name,
        "4",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    pulls = Pulls(process)
    try:
        yield pulls
    finally:
        pulls.kill()
        process.kill()
        await process.wait()


@needs_registry
async def test_kills_lose_nothing_that_was_written_down_and_leave_no_wrong_blob(
    tmp_path: Path,
) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(CONTENT)
    library = tmp_path / "models"
    dice = random.Random(3)
    killed = finished = resumed = 0
    with plain_registry(tmp_path) as registry:
        await asyncio.to_thread(push_model, registry.url, "library/m:latest", weights)
        async with faulty(registry.host) as proxy:
            name = f"{proxy.host}/library/m:latest"
            async with pulls(library, name) as process:
                while killed < KILLS:
                    known = claimed(library)
                    complete = is_complete(library)
                    resumed += known.size > 0
                    proxy.asked.clear()
                    await process.start()
                    if dice.random() < 0.2:
                        ended = await process.end(None, dice.choice(ENDS))
                    else:
                        later = asyncio.create_task(kill_later(process, dice.uniform(0, 0.2)))
                        ended = await process.end(later, None)
                    assert ended in (0, -signal.SIGKILL)
                    killed += ended != 0
                    assert_not_asked_again(proxy, known, complete)
                    assert_sound(library)
                    if Library(library).find(parse_name(name)):
                        finished += 1
                        assert [model.blob for model in Library(library).models()] == [DIGEST]
                        shutil.rmtree(library)
    # Many a kill was in the middle, and many at the end.
    assert finished >= 10
    assert resumed >= 20


async def kill_later(process: Pulls, seconds: float) -> None:
    await asyncio.sleep(seconds)
    process.kill()


def partial(library: Path) -> Path:
    return library / ".pronk" / "partial" / f"sha256-{DIGEST}"


def claimed(library: Path) -> Ranges:
    """What the journal says is there."""
    journal = partial(library).with_name(partial(library).name + ".json")
    if not partial(library).exists():
        return Ranges()
    return read_journal(journal, DIGEST, len(CONTENT), boot_id()).there


def is_complete(library: Path) -> bool:
    """Whether all of it was verified."""
    places = (library / ".pronk" / "staged", library / "blobs")
    return any((place / f"sha256-{DIGEST}").exists() for place in places)


def assert_not_asked_again(proxy: Faulty, known: Ranges, complete: bool) -> None:
    asked = [asked for asked in proxy.asked if asked.blob == DIGEST]
    assert not (complete and asked)
    assert known.size == known.without(bytes_of(asked)).size


def bytes_of(asked: list[Asked]) -> Ranges:
    return Ranges((each.start, each.end or len(CONTENT)) for each in asked)


def assert_sound(library: Path) -> None:
    """No blob is another than its name says, and the journal claims no byte that is not there."""
    for place in ("blobs", ".pronk/staged"):
        for path in (library / place).glob("sha256-*"):
            assert f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}" == path.name
    if known := list(claimed(library)):
        content = partial(library).read_bytes()
        assert all(content[start:end] == CONTENT[start:end] for start, end in known)
