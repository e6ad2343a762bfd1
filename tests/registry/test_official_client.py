"""The official Python client fills a real registry, and gets back what it has put there."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import ollama
import pytest

from support.library import add_model
from support.registry import RunningRegistry, needs_registry, plain_registry
from support.server import PATIENCE, Server, ServerMaker

pytestmark = [needs_registry, pytest.mark.xdist_group("official client")]

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    with plain_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


def names(client: ollama.Client) -> set[str | None]:
    return {model.model for model in client.list().models}


def statuses(stream: Iterator[ollama.ProgressResponse]) -> list[str | None]:
    """Each of them once, in order."""
    return list(dict.fromkeys(part.status for part in stream))


def weights(directory: Path) -> Path:
    """A model's file, called as nobody else calls it."""
    file = directory / "own.gguf"
    file.write_bytes(files("pronk.workers.store.demo").joinpath("demo.gguf").read_bytes())
    return file


def test_create_push_delete_and_pull(
    client: ollama.Client, registry: RunningRegistry, tmp_path: Path
):
    name = f"{registry.host}/library/teacher:v1"
    digest = client.create_blob(weights(tmp_path))
    made = statuses(
        client.create(
            name,
            files={"own.gguf": digest},
            system="You are a teacher.",
            license=["MIT", "and another"],
            parameters={"temperature": 0.0, "stop": ["###"]},
            messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}],
            stream=True,
        )
    )
    assert made[0] == "parsing GGUF"
    assert made[-2:] == ["writing manifest", "success"]
    before = client.show(name)
    pushed = statuses(client.push(name, insecure=True, stream=True))
    assert pushed[0] == "retrieving manifest"
    assert f"pushing {digest[7:19]}" in pushed
    assert pushed[-2:] == ["pushing manifest", "success"]

    assert client.delete(name).status == "success"
    assert name not in names(client)
    parts = list(client.pull(name, insecure=True, stream=True))
    pulled = statuses(iter(parts))
    assert pulled[0] == "pulling manifest"
    assert f"pulling {digest[7:19]}" in pulled
    assert pulled[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    ends = {part.digest: part for part in parts if part.digest}
    assert all(part.total and part.completed == part.total for part in ends.values())

    after = client.show(name)
    assert (after.template, after.parameters, after.modelinfo) == (
        before.template,
        before.parameters,
        before.modelinfo,
    )
    assert after.model_dump()["license"] == before.model_dump()["license"]
    answer = client.chat(name, QUESTION, options=GREEDY)
    assert "blue" in (answer.message.content or "").lower()
    assert client.delete(name).status == "success"


async def test_the_asynchronous_client(server: Server, registry: RunningRegistry, tmp_path: Path):
    client = ollama.AsyncClient(host=server.url, timeout=PATIENCE)
    name = f"{registry.host}/library/of-async:latest"
    digest = await client.create_blob(weights(tmp_path))
    made = await client.create(name, files={"own.gguf": digest}, quantize=None)
    assert made.status == "success"
    assert (await client.push(name, insecure=True)).status == "success"
    assert (await client.delete(name)).status == "success"
    parts = [part async for part in await client.pull(name, insecure=True, stream=True)]
    assert parts[-1].status == "success"
    assert (await client.pull(name, insecure=True)).status == "success"
    assert (await client.delete(name)).status == "success"


def test_a_pull_goes_on_when_the_store_is_killed(
    make_server: ServerMaker, registry: RunningRegistry, tmp_path: Path
):
    server = make_server()
    client = ollama.Client(host=server.url, timeout=PATIENCE)
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.write(b"not everything in a registry can be run")
        file.truncate(256 * 2**20)
    add_model(server.models, "big", big)
    name = f"{registry.host}/library/big:v1"
    client.copy("big", name)
    client.push(name, insecure=True)
    for each in ("big", name):
        client.delete(each)
    (blob,) = (file for file in server.models.glob("blobs/*") if file.stat().st_size > 2**20)
    blob.unlink()
    kills, seen = 0, []
    for part in client.pull(name, insecure=True, stream=True):
        seen.append(part.status)
        if not kills and part.total and 0 < (part.completed or 0) < part.total:
            (store,) = server.processes("store")
            store.kill()
            kills += 1
    assert kills
    assert seen[-1] == "success"
    assert blob.stat().st_size == 256 * 2**20


@pytest.mark.parametrize("stream", [True, False])
def test_what_the_registry_does_not_have(
    client: ollama.Client, registry: RunningRegistry, stream: bool
):
    name = f"{registry.host}/library/nothing"
    with pytest.raises(ollama.ResponseError, match="pull model manifest: file does not exist"):
        list(client.pull(name, insecure=True, stream=stream))
    assert f"{name}:latest" not in names(client)
