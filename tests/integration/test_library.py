"""The library is changed through the whole service, by real clients, while models run."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import ollama
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, servers, wait_for

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]


def names(client: ollama.Client) -> set[str | None]:
    return {model.model for model in client.list().models}


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server for the tests here alone, whose processes may die. Its model `counting` counts until
    it is told to stop.
    """
    with servers() as make:
        server = make(start=False)
        weights = server.root / "counting.gguf"
        write_reciting_model(weights, ["01234567890"], context=8192)
        add_model(server.models, "counting", weights)
        server.start()
        yield server


@pytest.fixture
def gone_afterwards(http: httpx.Client) -> Iterator[list[str]]:
    """Models that a test makes on the server that others share, and that are deleted after it."""
    made: list[str] = []
    yield made
    for name in made:
        http.request("DELETE", "/api/delete", json={"model": name})


def test_the_official_client_copies_shows_and_deletes(
    client: ollama.Client, gone_afterwards: list[str]
):
    gone_afterwards.append("llama-copy")
    assert client.copy("demo", "llama-copy").status == "success"
    assert "llama-copy:latest" in names(client)
    shown = client.show("llama-copy")
    assert shown.details
    assert shown.details.family == "llama"
    assert shown.template
    answer = client.chat("llama-copy", QUESTION, options={"temperature": 0})
    assert "blue" in (answer.message.content or "").lower()
    assert client.delete("llama-copy").status == "success"
    assert "llama-copy:latest" not in names(client)
    for refused in (
        lambda: client.delete("llama-copy"),
        lambda: client.copy("llama-copy", "another"),
        lambda: client.show("llama-copy"),
        lambda: client.chat("llama-copy", QUESTION),
    ):
        with pytest.raises(ollama.ResponseError, match="model 'llama-copy' not found") as caught:
            refused()
        assert caught.value.status_code == 404


async def test_the_asynchronous_client_uploads_copies_and_deletes(
    server: Server, tmp_path: Path, gone_afterwards: list[str]
):
    file = tmp_path / "file"
    file.write_bytes(b"a file like any other" * 10_000)
    client = ollama.AsyncClient(host=server.url, timeout=PATIENCE)
    digest = await client.create_blob(file)
    assert digest == await client.create_blob(file)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
        assert (await http.head(f"/api/blobs/{digest}")).status_code == 200
        assert (await http.head(f"/api/blobs/sha256:{'0' * 64}")).status_code == 404
    gone_afterwards.append("of-async")
    assert (await client.copy("demo", "of-async")).status == "success"
    assert (await client.show("of-async")).details
    assert (await client.delete("of-async")).status == "success"


def test_a_file_is_taken_once_and_only_if_it_is_what_its_digest_says(
    client: ollama.Client, http: httpx.Client, tmp_path: Path
):
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 50_000)  # 12.8 MB: more than the store grants at a time
    path = f"/api/blobs/sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert http.head(path).status_code == 404
    wrong = http.post(path, content=b"something else")
    assert (wrong.status_code, "digest" in wrong.json()["error"]) == (400, True)
    assert client.create_blob(file).endswith(path[-64:])
    assert http.head(path).status_code == 200
    again = http.post(path, content=file.read_bytes())
    assert (again.status_code, again.content) == (200, b"")
    assert http.head("/api/blobs/sha256:abc").status_code == 400


@pytest.mark.xdist_group("library")
def test_a_file_is_sent_again_when_the_store_dies(own: Server):
    content = bytes(range(256)) * 50_000
    path = f"/api/blobs/sha256:{hashlib.sha256(content).hexdigest()}"

    def cut_by_the_death_of_the_store() -> Iterator[bytes]:
        (store,) = own.processes("store")
        yield content[: 1 << 20]
        coming = own.models / ".pronk" / "uploads"
        wait_for(lambda: any(file.stat().st_size for file in coming.glob("*")), "a part is there")
        store.send_signal(signal.SIGKILL)
        yield content[1 << 20 :]

    with httpx.Client(base_url=own.url, timeout=PATIENCE) as http:
        cut = http.post(path, content=cut_by_the_death_of_the_store())
        assert (cut.status_code, b"send it again" in cut.content) == (503, True)
        assert http.post(path, content=content).status_code == 201
        assert http.head(path).status_code == 200


@pytest.mark.xdist_group("library")
def test_deleting_a_loaded_model_lets_its_stream_finish(own: Server):
    question = {
        "model": "counting",
        "prompt": "go",
        "options": {"temperature": 0, "num_ctx": 8192, "num_predict": 4000},
    }
    with (
        httpx.Client(base_url=own.url, timeout=PATIENCE) as http,
        http.stream("POST", "/api/generate", json=question) as stream,
    ):
        lines = stream.iter_lines()
        assert json.loads(next(lines))["done"] is False
        assert http.request("DELETE", "/api/delete", json={"model": "counting"}).content == b""
        deleted_at = datetime.now(UTC)
        assert http.post("/api/generate", json=question).status_code == 404
        *_, last = (json.loads(line) for line in lines)
        assert (last["done"], last["eval_count"]) == (True, 4000)
        assert datetime.fromisoformat(last["created_at"]) > deleted_at
    wait_for(lambda: not own.loaded(), "nothing is loaded any more")
