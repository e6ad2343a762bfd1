from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import ModelName, parse_name
from pronk.protocol.settings import load_settings
from pronk.workers.store.layout import Library
from pronk.workers.store.pulling import download
from pronk.workers.store.pulling.patience import Terms
from pronk.workers.store.pulling.pull import Puller
from pronk.workers.store.registry.client import Registry
from pronk.workers.store.registry.transport import Patience
from pronk.workers.store.writing import Writer
from support.faulty import Asked, Fault, Faulty, faulty
from support.small_registry import SmallRegistry, small_registry

PATIENCE = 60.0
MIB = 1024 * 1024
WEIGHTS = random.Random(5).randbytes(13 * MIB + 12_345)
"""Enough for several pieces."""
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
TERMS = Terms(tries=4, first_pause=0.01, longest_pause=0.05)
IMPATIENT = replace(TERMS, stall=0.15)
STUBBORN = replace(IMPATIENT, tries=100)
"""For pulls that are to succeed: on a busy machine every connection may stall now and then."""


@dataclass
class Line:
    """What a client would have been told."""

    status: str
    digest: str
    total: int | None
    completed: int | None


class Stage:
    """A library, a registry, and between them a network that does what it is told to."""

    def __init__(self, root: Path, registry: SmallRegistry, proxy: Faulty) -> None:
        self.root = root
        self.origin = registry
        self.proxy = proxy
        self.lines: list[Line] = []
        self.writer = Writer(root)
        patience = Patience(attempts=2, pause=0.01)
        self.registry = Registry(load_settings(), patience)
        self.puller = self.new_puller()
        registry.add("library/m:latest", WEIGHTS)

    def new_puller(self, connections: int = 4, terms: Terms = TERMS) -> Puller:
        return Puller(self.writer, self.registry, connections=connections, terms=terms)

    def name(self, model: str = "m") -> ModelName:
        return parse_name(f"{self.proxy.host}/library/{model}:latest")

    def report(
        self,
        status: str,
        digest: str = "",
        total: int | None = None,
        completed: int | None = None,
    ) -> None:
        self.lines.append(Line(status, digest, total, completed))

    async def pull(self, model: str = "m") -> str | None:
        async with asyncio.timeout(PATIENCE):
            return await self.puller.pull(self.name(model), True, self.report)

    async def refused(self, model: str = "m") -> PronkError:
        with pytest.raises(PronkError) as caught:
            await self.pull(model)
        assert str(self.root) not in caught.value.message
        return caught.value

    def fault(self, fault: Callable[[Asked], Fault | None]) -> None:
        """What happens to requests for the weights."""
        self.proxy.fault = lambda asked: fault(asked) if asked.blob == DIGEST else None

    def completed(self, digest: str = DIGEST) -> list[int]:
        return [line.completed or 0 for line in self.lines if line.digest == f"sha256:{digest}"]

    def models(self) -> list[str]:
        return [model.name.display for model in Library(self.root).models()]

    def stored(self, digest: str = DIGEST) -> bytes | None:
        path = self.root / "blobs" / f"sha256-{digest}"
        return path.read_bytes() if path.exists() else None

    def assert_sound(self) -> None:
        """Whatever happened, no blob is another than its name says, and what is listed is whole."""
        for path in (self.root / "blobs").glob("*"):
            assert f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}" == path.name

    def assert_pulled(self) -> None:
        self.assert_sound()
        assert self.stored() == WEIGHTS
        assert self.models() == [self.name().display]
        assert self.left_over() == []

    def left_over(self) -> list[str]:
        return [path.name for path in (self.root / ".pronk" / "partial").glob("*")]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with small_registry(tmp_path / "registry") as registry, faulty(registry.host) as proxy:
        stage = Stage(tmp_path / "models", registry, proxy)
        yield stage
        await stage.registry.close()
        stage.puller.close()


async def test_the_lines_are_those_that_ollamas_clients_expect(stage: Stage) -> None:
    await stage.pull()
    stage.assert_pulled()
    manifest = json.loads((stage.origin.root / "library/m/latest").read_bytes())
    path = stage.root.joinpath("manifests", *stage.name().parts)
    assert path.read_bytes() == (stage.origin.root / "library/m/latest").read_bytes()
    statuses = list(dict.fromkeys(line.status for line in stage.lines))
    config = manifest["config"]["digest"]
    assert statuses == [
        "pulling manifest",
        f"pulling {config[7:19]}",
        f"pulling {DIGEST[:12]}",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    completed = stage.completed()
    assert completed[0] == 0
    assert completed[-1] == len(WEIGHTS)
    assert completed == sorted(completed)
    assert all(line.total == len(WEIGHTS) for line in stage.lines if DIGEST in line.digest)
    assert all(not line.digest for line in stage.lines if "pulling " not in line.status)


async def test_several_connections_fetch_each_byte_once(stage: Stage) -> None:
    stage.fault(lambda asked: Fault(pace=0.005))
    await stage.pull()
    asked = sorted((each.start, each.end) for each in stage.proxy.asked_for(DIGEST))
    assert len(asked) >= 3
    assert asked[0][0] == 0
    assert all(left[1] == right[0] for left, right in pairwise(asked))
    assert stage.proxy.sent[DIGEST] == len(WEIGHTS)


async def test_what_is_there_is_not_fetched(stage: Stage) -> None:
    await stage.pull()
    before = len(stage.proxy.asked_for(DIGEST))
    stage.origin.add("library/other:latest", WEIGHTS, model_type="7B")
    stage.lines.clear()
    await stage.pull("other")
    assert len(stage.proxy.asked_for(DIGEST)) == before
    assert stage.completed() == [len(WEIGHTS)]
    assert len(stage.models()) == 2


async def test_what_takes_a_models_place_tells_that_its_blobs_go(stage: Stage) -> None:
    await stage.pull()
    stage.lines.clear()
    await stage.pull()
    assert stage.lines[-1].status == "success"
    assert "removing unused layers" not in [line.status for line in stage.lines]
    stage.origin.add("library/m:latest", b"new" + WEIGHTS)
    await stage.pull()
    last = [line.status for line in stage.lines][-3:]
    assert last == ["writing manifest", "removing unused layers", "success"]
    assert stage.stored() is None


async def test_a_blob_of_another_size_is_fetched_again(stage: Stage) -> None:
    blobs = stage.root / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"sha256-{DIGEST}").write_bytes(WEIGHTS[:-1])
    await stage.pull()
    stage.assert_pulled()


NETWORK: dict[str, Callable[[Asked], Fault | None]] = {
    "cut at the beginning": lambda asked: Fault(cut=0) if asked.number % 3 == 0 else None,
    "cut in the middle, each time": lambda asked: Fault(cut=700_001),
    "ends too early, and says so": lambda asked: Fault(end=900_000),
    "ends too early, and says nothing": lambda asked: Fault(end=900_000, lengthless=True),
    "says more than it has": lambda asked: Fault(longer=5000) if asked.number % 3 == 0 else None,
    "says less than it has": lambda asked: Fault(longer=-5000) if asked.number % 3 == 0 else None,
    "says more than it has, all of it": lambda asked: (
        Fault(whole=True, longer=5000) if asked.number % 3 == 0 else None
    ),
    "sends more than was asked for": lambda asked: (
        Fault(more=b"x" * 5000) if asked.number % 2 else None
    ),
    "sends more than was asked for, without lengths": lambda asked: Fault(
        more=b"x" * 3_000_000, lengthless=True
    ),
    "without lengths": lambda asked: Fault(lengthless=True),
    "stalls": lambda asked: Fault(stall=500_000) if asked.number % 4 == 3 else None,
    "sends other bytes than it says, once": lambda asked: (
        Fault(shift=1000) if asked.start == 4 * MIB else None
    ),
    "says that these are other bytes": lambda asked: (
        Fault(headers={"Content-Range": "bytes 5-10/100"}) if asked.number % 3 == 0 else None
    ),
    "says that it has another size": lambda asked: (
        Fault(headers={"Content-Range": f"bytes {asked.start}-{(asked.end or 0) - 1}/99999999"})
        if asked.number % 3 == 0
        else None
    ),
    "knows no ranges": lambda asked: Fault(whole=True),
    "knows no ranges and no lengths": lambda asked: Fault(whole=True, lengthless=True),
    "knows ranges now and then": lambda asked: Fault(whole=asked.number % 2 == 0),
    "429": lambda asked: (
        Fault(status=429, headers={"Retry-After": "0"}) if asked.number % 3 else None
    ),
    "503": lambda asked: Fault(status=503) if asked.number % 3 else None,
    "corrupts what it sends in parts": lambda asked: (
        Fault(corrupt=1) if asked.ranged and asked.start else None
    ),
}


@pytest.mark.parametrize("fault", NETWORK.values(), ids=NETWORK)
async def test_a_pull_gets_through(
    stage: Stage, fault: Callable[[Asked], Fault | None], request: pytest.FixtureRequest
) -> None:
    if "stalls" in request.node.name:
        stage.puller = stage.new_puller(terms=STUBBORN)
    stage.fault(fault)
    await stage.pull()
    stage.assert_pulled()
    assert max(stage.completed()) == len(WEIGHTS)


async def test_redirects_are_followed_for_each_part(stage: Stage) -> None:
    signed = f"/v2/library/m/blobs/sha256:{DIGEST}?signed"
    stage.fault(
        lambda asked: (
            None if "signed" in asked.path else Fault(status=307, headers={"Location": signed})
        )
    )
    await stage.pull()
    stage.assert_pulled()
    asked = stage.proxy.asked_for(DIGEST)
    assert sum(1 for each in asked if "signed" in each.path) == len(asked) / 2


LASTING: dict[str, Callable[[Asked], Fault | None]] = {
    "cuts at once": lambda asked: Fault(cut=0),
    "cuts after a byte": lambda asked: Fault(cut=1),
    "stalls": lambda asked: Fault(stall=0),
    "stalls by dripping": lambda asked: Fault(chunk=1, pace=0.02),
    "is too busy": lambda asked: Fault(status=503),
    "says another size": lambda asked: Fault(headers={"Content-Range": "bytes 0-1/2"}),
    "wants to be left alone": lambda asked: Fault(status=429, headers={"Retry-After": "3000"}),
    "compresses": lambda asked: Fault(gzip=True),
    "has no such blob": lambda asked: Fault(status=404),
    "does not know us": lambda asked: Fault(status=401),
    "leads to the metadata of a cloud": lambda asked: Fault(
        status=307, headers={"Location": "http://169.254.169.254/latest"}
    ),
    "leads to a file": lambda asked: Fault(status=307, headers={"Location": "file:///etc/passwd"}),
    "sends something else": lambda asked: Fault(corrupt=5),
}


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
async def test_what_does_not_end_is_one_clear_error_and_harms_nothing(
    stage: Stage,
    fault: Callable[[Asked], Fault | None],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(download, "_SECONDS", 0.02)
    await stage.pull()  # what was there before
    if "stalls" in request.node.name:
        stage.puller = stage.new_puller(terms=IMPATIENT)
    stage.origin.add("library/m:latest", new := os.urandom(7 * MIB))
    digest = hashlib.sha256(new).hexdigest()
    stage.proxy.fault = lambda asked: fault(asked) if asked.blob == digest else None
    error = await stage.refused()
    assert error.code is Code.REGISTRY_FAILED
    assert stage.stored(digest) is None
    stage.assert_sound()
    assert stage.models() == [stage.name().display]
    assert stage.stored() == WEIGHTS
    # And as soon as it is over, it works, in the same process.
    stage.proxy.fault = lambda asked: None
    if "stalls" in request.node.name:
        stage.puller = stage.new_puller(terms=STUBBORN)
    await stage.pull()
    assert stage.stored(digest) == new
    assert stage.stored() is None  # the old model's, which nobody needs
    assert stage.left_over() == []


async def test_a_gzip_bomb_fills_nothing(stage: Stage) -> None:
    bomb = zlib.compress(bytes(64 * MIB), 9)
    stage.origin.path(DIGEST).write_bytes(bomb)
    stage.fault(lambda asked: Fault(headers={"Content-Encoding": "deflate"}))
    await stage.refused()
    assert sum(path.stat().st_size for path in stage.root.rglob("*") if path.is_file()) < MIB


async def test_what_is_wrong_is_thrown_away_and_fetched_once_more_in_one_stream(
    stage: Stage,
) -> None:
    stage.fault(lambda asked: Fault(corrupt=5) if asked.start == 0 else None)
    error = await stage.refused()
    assert DIGEST in error.message
    asked = stage.proxy.asked_for(DIGEST)
    assert [each.ranged for each in asked].count(False) == 1
    assert not asked[-1].ranged
    assert stage.left_over() == []


async def test_parts_stay_when_it_is_given_up_and_are_not_fetched_again(stage: Stage) -> None:
    stage.fault(lambda asked: Fault(cut=0) if asked.start >= 8 * MIB else None)
    error = await stage.refused()
    assert "pull again" in error.message
    sent = stage.proxy.sent[DIGEST]
    assert sent >= 8 * MIB
    stage.fault(lambda asked: None)
    stage.lines.clear()
    await stage.pull()
    stage.assert_pulled()
    assert stage.proxy.sent[DIGEST] == len(WEIGHTS)
    assert stage.completed()[0] == sent


async def test_cancelling_keeps_what_came_and_the_next_one_goes_on(stage: Stage) -> None:
    stage.fault(lambda asked: Fault(stall=3_000_000))
    stage.puller = stage.new_puller(terms=Terms())
    pulling = asyncio.create_task(stage.pull())
    async with asyncio.timeout(PATIENCE):
        while stage.proxy.sent.get(DIGEST, 0) < 3_000_000 or max(stage.completed()) == 0:
            await asyncio.sleep(0.01)
    pulling.cancel()
    with suppress(asyncio.CancelledError):
        await pulling
    stage.fault(lambda asked: None)
    stage.lines.clear()
    await stage.pull()
    stage.assert_pulled()
    assert stage.completed()[0] >= 2 * MIB
    assert sum(1 for asked in stage.proxy.asked_for(DIGEST) if asked.start == 0) == 1


async def test_two_models_that_share_a_blob_fetch_it_once(stage: Stage) -> None:
    stage.origin.add("library/other:latest", WEIGHTS, model_type="7B")
    stage.fault(lambda asked: Fault(pace=0.005))
    await asyncio.gather(stage.pull(), stage.pull("other"))
    assert stage.proxy.sent[DIGEST] == len(WEIGHTS)
    assert len(stage.models()) == 2
    stage.assert_sound()


async def test_many_pulls_have_no_more_connections_than_one(stage: Stage) -> None:
    contents = {f"m{number}": os.urandom(9 * MIB) for number in range(4)}
    for name, content in contents.items():
        stage.origin.add(f"library/{name}:latest", content)
    large = {hashlib.sha256(content).hexdigest() for content in contents.values()}
    stall = 4 * MIB - 1
    stage.proxy.fault = lambda asked: Fault(stall=stall) if asked.blob in large else None
    stage.puller = stage.new_puller(connections=4, terms=Terms())
    pulls = [asyncio.create_task(stage.pull(name)) for name in contents]
    async with asyncio.timeout(PATIENCE):
        while any(stage.proxy.sent.get(digest, 0) < stall for digest in large):
            await asyncio.sleep(0.01)
    assert len([asked for asked in stage.proxy.asked if asked.blob in large]) <= 4 + 3
    for pull in pulls:
        pull.cancel()
    await asyncio.gather(*pulls, return_exceptions=True)
    stage.proxy.fault = lambda asked: None
    await asyncio.gather(*(stage.pull(name) for name in contents))
    assert [stage.stored(digest) for digest in sorted(large)].count(None) == 0
    stage.assert_sound()


async def test_who_waits_for_anothers_download_takes_over_when_that_ends(stage: Stage) -> None:
    stage.origin.add("library/other:latest", WEIGHTS, model_type="7B")
    stage.fault(lambda asked: Fault(stall=2_500_000))
    stage.puller = stage.new_puller(terms=Terms())
    first = asyncio.create_task(stage.pull())
    async with asyncio.timeout(PATIENCE):
        while not any(stage.completed()):
            await asyncio.sleep(0.01)
    stage.lines.clear()
    second = asyncio.create_task(stage.pull("other"))
    async with asyncio.timeout(PATIENCE):
        while not any(line.status == "pulling manifest" for line in stage.lines):
            await asyncio.sleep(0.01)
    stage.fault(lambda asked: None)
    first.cancel()
    await second
    assert stage.stored() == WEIGHTS
    assert len(stage.models()) == 1
    stage.assert_sound()


async def test_a_model_keeps_its_old_content_until_the_new_one_is_whole(stage: Stage) -> None:
    await stage.pull()
    stage.origin.add("library/m:latest", new := os.urandom(6 * MIB))
    digest = hashlib.sha256(new).hexdigest()
    reached = asyncio.Event()

    def hold(asked: Asked) -> Fault | None:
        if asked.blob != digest:
            return None
        reached.set()
        return Fault(stall=5 * MIB)

    stage.proxy.fault = hold
    pulling = asyncio.create_task(stage.pull())
    await asyncio.wait_for(reached.wait(), PATIENCE)
    model = Library(stage.root).load(stage.name())
    assert model.blob == DIGEST
    stage.proxy.fault = lambda asked: None
    assert await pulling == model.digest  # no name stands for it any more
    assert Library(stage.root).load(stage.name()).blob == digest


async def test_a_pull_that_does_not_fit_is_refused_before_it_begins(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vfs(path: Any) -> Any:
        return type("Status", (), {"f_bavail": len(WEIGHTS) - 1, "f_frsize": 1})

    monkeypatch.setattr(os, "statvfs", vfs)
    error = await stage.refused()
    assert error.code is Code.STORAGE_FULL
    assert not stage.proxy.asked_for(DIGEST)


async def test_a_disk_that_others_fill_ends_it_before_the_last_byte(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_SETTLED", MIB)
    room = stage.writer.require_room
    asked: list[int] = []

    def filled(size: int) -> None:
        asked.append(size)
        room(size if len(asked) < 2 else 2**60)

    monkeypatch.setattr(stage.writer, "require_room", filled)
    # No connection comes to its end meanwhile, nor breaks: that the room is gone is news enough.
    stage.puller = stage.new_puller(terms=replace(TERMS, stall=PATIENCE * 2))
    stage.fault(lambda asked: Fault(stall=3 * MIB))
    error = await stage.refused()
    assert error.code is Code.STORAGE_FULL
    assert asked == sorted(asked, reverse=True)
    assert 0 < stage.proxy.sent[DIGEST] < len(WEIGHTS)
    monkeypatch.undo()
    stage.fault(lambda asked: None)
    await stage.pull()
    stage.assert_pulled()


async def test_a_disk_that_fills_up_is_an_error_and_the_parts_stay(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwritev

    def full(file: int, blocks: Any, offset: int) -> int:
        if offset >= 8 * MIB:
            raise OSError(28, "No space left on device")
        return write(file, blocks, offset)

    monkeypatch.setattr(os, "pwritev", full)
    error = await stage.refused()
    assert error.code is Code.STORAGE_FULL
    monkeypatch.setattr(os, "pwritev", write)
    told = max(stage.completed())
    assert 0 < told <= 8 * MIB
    stage.lines.clear()
    await stage.pull()
    stage.assert_pulled()
    assert stage.completed()[0] == told


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"{" * 10_000,
        b'{"layers": []}',
        b" " * (MIB + 1),
        json.dumps(
            {
                "schemaVersion": 2,
                "config": {"mediaType": "x", "digest": "sha256:../../etc/passwd", "size": 1},
                "layers": [],
            }
        ).encode(),
    ],
)
async def test_a_manifest_that_is_none_is_refused(stage: Stage, manifest: bytes) -> None:
    stage.origin.put("library/m", "latest", manifest)
    error = await stage.refused()
    assert error.code is Code.REGISTRY_FAILED
    assert stage.models() == []


async def test_a_model_that_is_not_there(stage: Stage) -> None:
    assert (await stage.refused("missing")).code is Code.NOT_FOUND


async def test_one_connection_is_one_request(stage: Stage) -> None:
    stage.puller = stage.new_puller(connections=1)
    await stage.pull()
    stage.assert_pulled()
    assert len(stage.proxy.asked_for(DIGEST)) == 1


async def test_an_empty_blob_and_one_of_one_byte(stage: Stage) -> None:
    stage.origin.add(
        "library/m:latest",
        b"x",
        {"mediaType": "application/vnd.ollama.image.license", **stage.origin.blob(b"")},
    )
    await stage.pull()
    assert stage.stored(hashlib.sha256(b"").hexdigest()) == b""
    assert stage.stored(hashlib.sha256(b"x").hexdigest()) == b"x"
    stage.assert_sound()
