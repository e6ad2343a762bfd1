"""Push to a real registry, plain and behind TLS with tokens; broken connections on the way."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import parse_name
from pronk.protocol.registries import RegistryAccess
from pronk.protocol.settings import Settings
from pronk.workers.store.layout import Library
from pronk.workers.store.pushing import push
from pronk.workers.store.registry import uploading
from pronk.workers.store.registry.client import Registry
from pronk.workers.store.registry.credentials import Credentials
from pronk.workers.store.registry.manifests import DOCKER_MANIFEST, parse_manifest
from pronk.workers.store.registry.transport import Patience
from pronk.workers.store.writing import Writer
from support.registry import RunningRegistry, needs_registry, plain_registry, tls_registry

pytestmark = needs_registry

PATIENCE = Patience(silence=5, attempts=4, pause=0.01)
WEIGHTS = os.urandom(3 * 2**20)
OTHER = {"template": b"{{ .Prompt }}", "params": b'{"stop":["a"]}', "license": b""}
CONFIG = "application/vnd.docker.container.image.v1+json"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    with plain_registry(tmp_path_factory.mktemp("plain")) as registry:
        yield registry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "models"


def add(root: Path, name: str, weights: bytes = WEIGHTS, **changes: Any) -> bytes:
    """A model in the library, as Ollama leaves it; returns its manifest."""
    (root / "blobs").mkdir(parents=True, exist_ok=True)

    def layer(media_type: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (root / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    kinds = {"model": weights, **OTHER}
    manifest = {
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST,
        "config": layer(CONFIG, b'{"model_format":"gguf"}'),
        "layers": [
            layer(f"application/vnd.ollama.image.{kind}", content)
            for kind, content in kinds.items()
        ],
        **changes,
    }
    raw = json.dumps(manifest).encode()
    path = root.joinpath("manifests", *parse_name(name).parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return raw


class Told:
    """What a push said."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, int | None, int | None]] = []

    def __call__(
        self,
        status: str,
        digest: str = "",
        total: int | None = None,
        completed: int | None = None,
    ) -> None:
        self.lines.append((status, digest, total, completed))

    @property
    def statuses(self) -> list[str]:
        return list(dict.fromkeys(line[0] for line in self.lines))


@contextlib.asynccontextmanager
async def client(
    access: dict[str, RegistryAccess] | None = None,
) -> AsyncIterator[Registry]:
    registry = Registry(Settings(), PATIENCE, Credentials(access or {}, lambda host: None))
    try:
        yield registry
    finally:
        await registry.close()


async def pushed(root: Path, name: str, registry: Registry, *, insecure: bool = True) -> Told:
    told, library, writer = Told(), Library(root), Writer(root)
    await push(
        parse_name(name), insecure, library=library, writer=writer, registry=registry, report=told
    )
    return told


async def test_what_was_pushed_is_what_was_there(plain: RunningRegistry, root: Path) -> None:
    name = f"{plain.host}/library/whole:latest"
    raw = add(root, name)
    async with client() as registry:
        told = await pushed(root, name, registry)
        repository = registry.repository(parse_name(name), insecure=True)
        assert await repository.manifest() == raw
    blobs = parse_manifest(raw).blobs
    for blob in blobs:
        content = plain.blob(blob.digest).read_bytes()
        assert hashlib.sha256(content).hexdigest() == blob.digest
    assert told.statuses == [
        "retrieving manifest",
        *(f"pushing {blob.digest[:12]}" for blob in blobs),
        "pushing manifest",
        "success",
    ]
    for blob in blobs:
        lines = [line for line in told.lines if line[1] == f"sha256:{blob.digest}"]
        completed = [line[3] for line in lines if line[3] is not None]
        assert completed == sorted(completed)
        assert (completed[0], completed[-1]) == (0, blob.size)
        assert {line[2] for line in lines} == {blob.size}


async def test_what_is_there_is_not_sent_again(
    plain: RunningRegistry, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (f"{plain.host}/{name}" for name in ("a/one:x", "a/one:y", "b/two:x"))
    for name in (first, second, third):
        add(root, name, b"weights of three models")
    async with client() as registry:
        await pushed(root, first, registry)

        def sent(*given: Any) -> bytes:
            raise AssertionError("a blob was sent")

        # The same repository has it; another one of the registry takes it over from there.
        monkeypatch.setattr(uploading, "_read", sent)
        monkeypatch.setattr(uploading.Upload, "_finish", sent)
        await pushed(root, second, registry)
        told = await pushed(root, third, registry)
        assert told.statuses[-1] == "success"
        repository = registry.repository(parse_name(third), insecure=True)
        assert await repository.manifest()


async def test_behind_tls_and_tokens(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_registry(tmp_path / "tls") as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.ca))
        name = f"{server.host}/library/tokens:latest"
        raw = add(root, name)
        known = Settings.model_validate({"registries": server.access()}).registries
        async with client(known) as registry:
            await pushed(root, name, registry, insecure=False)
            repository = registry.repository(parse_name(name), insecure=False)
            assert await repository.manifest() == raw
        assert {request.user for request in server.asked} == {"ann"}
        server.asked.clear()
        wrong = Settings.model_validate({"registries": server.access(password="guess")}).registries
        for access in ({}, wrong):
            async with client(access) as registry:
                with pytest.raises(PronkError) as caught:
                    await pushed(root, name, registry, insecure=False)
            assert caught.value.code is Code.REGISTRY_FAILED
            assert "[registry." in caught.value.message
            assert "guess" not in caught.value.message


class Cutter:
    """Passes connections on to a registry, and cuts each one after some bytes to it."""

    def __init__(self, host: str, *after: int) -> None:
        self._target = host.split(":")
        self._after = list(after)
        self.cuts = 0
        self.host = ""

    async def __aenter__(self) -> Cutter:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        self.host = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address, port = self._target
        there, back = await asyncio.open_connection(address, int(port))

        async def answer() -> None:
            while data := await there.read(65536):
                writer.write(data)
            writer.close()

        answers = asyncio.create_task(answer())
        passed = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                passed += len(data)
                if self._after and passed >= self._after[0]:
                    self._after.pop(0)
                    self.cuts += 1
                    writer.transport.abort()
                    break
                back.write(data)
                await back.drain()
        answers.cancel()
        back.close()
        writer.close()


async def test_a_connection_that_breaks_is_made_again(
    plain: RunningRegistry, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "CHUNK", 2**20)
    async with Cutter(plain.host, 300_000, 1_500_000, 2_500_000) as cutter, client() as registry:
        name = f"{cutter.host}/library/broken:latest"
        raw = add(root, name, os.urandom(3 * 2**20))
        await pushed(root, name, registry)
        assert cutter.cuts == 3
        repository = registry.repository(parse_name(name), insecure=True)
        assert await repository.manifest() == raw
    weights = parse_manifest(raw).layers[0]
    assert hashlib.sha256(plain.blob(weights.digest).read_bytes()).hexdigest() == weights.digest


async def test_a_push_that_is_cancelled_leaves_no_model_and_can_be_made_again(
    plain: RunningRegistry, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{plain.host}/library/cancelled:latest"
    raw = add(root, name, os.urandom(3 * 2**20))
    monkeypatch.setattr(uploading, "CHUNK", 2**20)
    async with client() as registry:
        half = asyncio.Event()

        def report(status: str, digest: str = "", total: Any = None, completed: Any = None) -> None:
            if completed and completed > 2**20:
                half.set()

        whole = push(
            parse_name(name),
            True,
            library=Library(root),
            writer=Writer(root),
            registry=registry,
            report=report,
        )
        task = asyncio.create_task(whole)
        await half.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        repository = registry.repository(parse_name(name), insecure=True)
        with pytest.raises(PronkError) as caught:
            await repository.manifest()
        assert caught.value.code is Code.NOT_FOUND
        await pushed(root, name, registry)
        assert await repository.manifest() == raw


async def test_a_model_that_is_not_there_or_not_whole(plain: RunningRegistry, root: Path) -> None:
    async with client() as registry:
        with pytest.raises(PronkError) as caught:
            await pushed(root, f"{plain.host}/library/absent", registry)
        assert caught.value.code is Code.NOT_FOUND
        name = f"{plain.host}/library/damaged:latest"
        digest = parse_manifest(add(root, name, b"weights that are lost")).layers[0].digest
        (root / "blobs" / f"sha256-{digest}").write_bytes(b"weights")
        with pytest.raises(PronkError, match="damaged in the library") as caught:
            await pushed(root, name, registry)
        assert str(root) not in caught.value.message


async def test_blobs_that_are_not_what_their_digest_says_are_refused_by_the_registry(
    plain: RunningRegistry, root: Path
) -> None:
    name = f"{plain.host}/library/rotten:latest"
    digest = parse_manifest(add(root, name, b"good weights")).layers[0].digest
    (root / "blobs" / f"sha256-{digest}").write_bytes(b"evil weights")
    async with client() as registry:
        with pytest.raises(PronkError, match="DIGEST_INVALID"):
            await pushed(root, name, registry)
        repository = registry.repository(parse_name(name), insecure=True)
        with pytest.raises(PronkError, match="does not exist"):
            await repository.manifest()


async def test_a_name_that_the_registry_does_not_take(plain: RunningRegistry, root: Path) -> None:
    name = f"{plain.host}/Library/Upper:latest"
    add(root, name)
    async with client() as registry:
        with pytest.raises(PronkError) as caught:
            await pushed(root, name, registry)
    assert caught.value.code is Code.REGISTRY_FAILED
