"""Pulls from a real registry: behind TLS with tokens, and through a network that keeps failing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import parse_name
from pronk.protocol.settings import Settings
from pronk.workers.store.layout import Library
from pronk.workers.store.pulling.patience import Terms
from pronk.workers.store.pulling.pull import Puller
from pronk.workers.store.pushing import push
from pronk.workers.store.registry.client import Registry
from pronk.workers.store.registry.manifests import DOCKER_MANIFEST
from pronk.workers.store.registry.transport import Patience
from pronk.workers.store.writing import Writer
from support.faulty import Asked, Fault, faulty
from support.pushed import push_model
from support.registry import needs_registry, plain_registry, tls_registry
from support.writing import adopted, manifest

pytestmark = needs_registry

PATIENCE = 60.0
MIB = 1024 * 1024
WEIGHTS = os.urandom(20 * MIB + 99)
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
TERMS = Terms(tries=50, first_pause=0.01, longest_pause=0.05, stall=0.5)


def silent(
    status: str, digest: str = "", total: int | None = None, completed: int | None = None
) -> None:
    """Reports to nobody."""


@asynccontextmanager
async def client(settings: Settings) -> AsyncIterator[Registry]:
    registry = Registry(settings, Patience(attempts=50, pause=0.0))
    try:
        yield registry
    finally:
        await registry.close()


async def pulled(
    writer: Writer, name: str, registry: Registry, insecure: bool = True, terms: Terms = TERMS
) -> None:
    puller = Puller(writer, registry, connections=4, terms=terms)
    async with asyncio.timeout(PATIENCE):
        await puller.pull(parse_name(name), insecure, silent)
    puller.close()


def assert_whole(root: Path, name: str) -> None:
    [model] = Library(root).models()
    assert (model.name, model.blob) == (parse_name(name), DIGEST)
    assert model.weights
    assert hashlib.sha256(model.weights.read_bytes()).hexdigest() == DIGEST


async def test_what_was_pushed_behind_tls_and_tokens_is_pulled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    with tls_registry(tmp_path / "tls") as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.ca))
        name = f"{server.host}/library/m:latest"
        writer = Writer(here)
        adopted(writer, WEIGHTS)
        writer.keep(b"{}")
        content = {"mediaType": DOCKER_MANIFEST, **json.loads(manifest(WEIGHTS))}
        model = writer.commit(parse_name(name), json.dumps(content).encode())
        settings = Settings.model_validate({"registries": server.access()})
        async with client(settings) as registry:
            await push(
                parse_name(name),
                False,
                library=Library(here),
                writer=writer,
                registry=registry,
                report=silent,
            )
            await pulled(Writer(there), name, registry, insecure=False)
        assert_whole(there, name)
        assert [found.digest for found in Library(there).models()] == [model]
        async with client(Settings()) as stranger:
            with pytest.raises(PronkError) as caught:
                await pulled(Writer(tmp_path / "elsewhere"), name, stranger, insecure=False)
        assert caught.value.code is Code.REGISTRY_FAILED


def failing(dice: random.Random) -> Fault | None:
    """What happens to an answer now: nothing, in every fourth case."""
    return dice.choice(
        [
            None,
            None,
            None,
            Fault(cut=dice.randrange(3 * MIB)),
            Fault(stall=dice.randrange(3 * MIB)),
            Fault(end=dice.randrange(1, 3 * MIB)),
            Fault(lengthless=True, cut=dice.randrange(3 * MIB)),
            Fault(whole=True),
            Fault(longer=dice.randrange(-9999, 9999)),
            Fault(more=os.urandom(99)),
            Fault(status=dice.choice([429, 500, 502, 503, 504])),
            Fault(status=429, headers={"Retry-After": "0"}),
        ]
    )


@pytest.mark.parametrize("seed", range(4))
async def test_a_network_that_keeps_failing_is_got_through(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    weights = tmp_path / "weights"
    weights.write_bytes(WEIGHTS)
    root = tmp_path / "models"
    with plain_registry(tmp_path) as server:
        await asyncio.to_thread(push_model, server.url, "library/m:latest", weights)
        async with faulty(server.host) as proxy, client(Settings()) as registry:

            def fault(asked: Asked) -> Fault | None:
                return failing(dice) if asked.blob else None

            proxy.fault = fault
            name = f"{proxy.host}/library/m:latest"
            await pulled(Writer(root), name, registry)
    assert_whole(root, name)


async def test_corrupted_bytes_never_become_a_model(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(WEIGHTS)
    root = tmp_path / "models"
    writer = Writer(root)
    with plain_registry(tmp_path) as server:
        await asyncio.to_thread(push_model, server.url, "library/m:latest", weights)
        async with faulty(server.host) as proxy, client(Settings()) as registry:
            name = f"{proxy.host}/library/m:latest"
            proxy.fault = lambda asked: Fault(corrupt=77) if asked.blob == DIGEST else None
            with pytest.raises(PronkError) as caught:
                await pulled(writer, name, registry)
            assert DIGEST in caught.value.message
            assert list(Library(root).models()) == []
            # One bad part is made good by fetching all of it again: in one stream, which must not
            # go on with a part because the machine stood still for a moment.
            proxy.fault = lambda asked: (
                Fault(corrupt=77) if asked.blob == DIGEST and asked.start else None
            )
            await pulled(writer, name, registry, terms=Terms())
    assert_whole(root, name)
