"""A pull whose store is killed at any moment, from a real registry."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pronk.protocol import following
from pronk.protocol.following import Following
from pronk.protocol.messages.changes import Progress, PullModel
from pronk.protocol.names import parse_name
from pronk.workers.store.layout import Library
from pronk.workers.store.pulling.journal import boot_id, read_journal
from pronk.workers.store.pulling.ranges import Ranges
from support.faulty import Asked, Faulty, faulty
from support.pushed import push_model
from support.registry import needs_registry, plain_registry
from support.store_process import StoreProcess, library_of, log_of, store_process

KILLS = 200
SIDE_BY_SIDE = 3
"""Stores with libraries of their own: one starts while another one pulls or is looked at."""
PATIENCE = 300.0
MIB = 1024 * 1024
CONTENT = random.Random(7).randbytes(48 * MIB + 4321)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ENDS = ("verifying sha256 digest", "writing manifest")

Moment = Callable[[Progress], float | None]
"""Says of each line that a pull reports after how many seconds the store is to be killed."""


class Pulls:
    """Pulls of one model into one library, by one store after another."""

    def __init__(self, root: Path, proxy: Faulty, dice: random.Random) -> None:
        self._root = root
        self._proxy = proxy
        self._dice = dice
        self._library = library_of(root)
        self._name = f"{proxy.host}/library/m:latest"
        self.killed = self.resumed = self.finished = 0
        """Kills in the middle of a pull, pulls that went on where another one was killed, and
        pulls after which the model was there."""

    async def pull(self) -> None:
        """One life of a store, and a look at what it left."""
        known, complete = claimed(self._library), is_complete(self._library)
        self.resumed += known.size > 0
        self._proxy.asked.clear()
        async with store_process(self._root, PRONK_PULL_CONNECTIONS="4") as store:
            if self._dice.random() < 0.1:
                # While it starts, and tidies up behind the last one.
                unfinished = await self._follow(store, lambda line: None, self._dice.uniform(0, 2))
            else:
                unfinished = await self._follow(store, self._moment(known), PATIENCE)
            assert await store.kill() == -signal.SIGKILL
        self.killed += unfinished
        assert_not_asked_again(self._proxy, known, complete)
        await asyncio.to_thread(assert_sound, self._library)
        library = Library(self._library)
        there = library.find(parse_name(self._name))
        assert there or unfinished
        if there:
            self.finished += 1
            assert [model.blob for model in library.models()] == [DIGEST]
            shutil.rmtree(self._library)

    def _moment(self, known: Ranges) -> Moment:
        """When a store is killed that goes on behind what is `known`."""
        match self._dice.choices(("time", "bytes", "end"), (4, 4, 2))[0]:
            case "time":
                seconds = self._dice.uniform(0, 0.2)
                return lambda line: seconds
            case "bytes":
                least = self._dice.randint(known.size, max(known.size, len(CONTENT) * 3 // 4))
                seconds = self._dice.uniform(0, 0.1)  # reports come every tenth
                return lambda line: seconds if (line.completed or 0) >= least else None
            case _:
                status = self._dice.choice(ENDS)
                seconds = self._dice.uniform(0, 0.01)
                return lambda line: seconds if line.status == status else None

    async def _follow(self, store: StoreProcess, moment: Moment, patience: float) -> bool:
        """Has the store pull until it is to be killed, which `moment` says or the end of
        `patience`. Returns whether the pull was not done by then.
        """
        name = self._name
        with Following(store.questions, lambda call: PullModel(call, name, True)) as change:
            try:
                async with asyncio.timeout(patience) as limit:
                    chosen = False
                    while True:
                        steps = await change.take()
                        if steps.changed:
                            return False
                        delays = [s for s in map(moment, steps.progress) if s is not None]
                        if delays and not chosen:
                            chosen = True
                            limit.reschedule(asyncio.get_running_loop().time() + min(delays))
            except TimeoutError:
                assert chosen or patience < PATIENCE
                return True


@needs_registry
async def test_kills_lose_nothing_that_was_written_down_and_leave_no_wrong_blob(
    tmp_path: Path, roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "UNANSWERED", 3600)  # a store may start for as long as it takes
    weights = tmp_path / "weights"
    weights.write_bytes(CONTENT)
    with plain_registry(tmp_path) as registry:
        await asyncio.to_thread(push_model, registry.url, "library/m:latest", weights)
        places = [pulls(root, registry.host, number) for number, root in enumerate(roots)]
        done: list[Pulls] = []

        async def kill_often(place: int) -> None:
            async with places[place] as stores:
                done.append(stores)
                while sum(each.killed for each in done) < KILLS:
                    await stores.pull()

        async with asyncio.TaskGroup() as group:
            for place in range(len(places)):
                group.create_task(kill_often(place))
    # Many a kill was in the middle, and many at the end.
    assert sum(each.finished for each in done) >= 10
    assert sum(each.resumed for each in done) >= 20
    for root in roots:
        assert "Traceback" not in log_of(root).read_text()


@pytest.fixture
def roots():
    """Short paths, for there are Unix sockets below them."""
    made = [Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp")) for _ in range(SIDE_BY_SIDE)]
    yield made
    for root in made:
        shutil.rmtree(root, ignore_errors=True)


@asynccontextmanager
async def pulls(root: Path, registry: str, seed: int) -> AsyncIterator[Pulls]:
    async with faulty(registry) as proxy:
        yield Pulls(root, proxy, random.Random(seed))


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
