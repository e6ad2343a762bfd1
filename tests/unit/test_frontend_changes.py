"""Changes of the library over real HTTP, with the store's part played."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest

from pronk.frontend.dialects.ollama import library as paths
from pronk.protocol import following
from pronk.protocol.errors import Code
from pronk.protocol.messages.changes import (
    Changed,
    CopyModel,
    CreateModel,
    DeleteModel,
    ModelMessage,
    Progress,
    PullModel,
    PushModel,
    StopCall,
)
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.generation import Evict
from pronk.protocol.messages.library import CallFailed
from support.played import DIGEST, Stack, until

BLOB = "sha256:" + "ab" * 32
DIGITS = "ab" * 32


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions are not repeated, however slow the machine: tests count them."""
    monkeypatch.setattr(following, "REPEAT_SECONDS", 3600.0)


def refusing(stack: Stack, code: Code, message: str = "because", **more: Any) -> None:
    failure = Failure(code, message, **more)
    stack.store.on_change = lambda asked: [CallFailed(asked.call, failure)]


def doing(stack: Stack, *said: tuple[Any, ...], unnamed: str | None = None) -> None:
    """Has every change say this, and succeed."""
    stack.store.on_change = lambda asked: (
        []
        if isinstance(asked, StopCall)
        else [*(Progress(asked.call, *line) for line in said), Changed(asked.call, unnamed)]
    )


async def line_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    return json.loads(await response.content.readline())


# What the wire looks like


async def test_a_pull_is_told_line_by_line_as_ollama_does(stack: Stack) -> None:
    doing(
        stack,
        ("pulling manifest",),
        ("pulling abababababab", BLOB, 100, 0),
        ("pulling 000000000000", "sha256:" + "0" * 64, 7, 7),
        ("success",),
    )
    lines = await stack.lines("/api/pull", {"model": "phi:3b"})
    assert lines == [
        {"status": "pulling manifest"},
        {"status": "pulling abababababab", "digest": BLOB, "total": 100},
        {
            "status": "pulling 000000000000",
            "digest": "sha256:" + "0" * 64,
            "total": 7,
            "completed": 7,
        },
        {"status": "success"},
    ]
    (asked,) = stack.store.asked
    assert (asked.name, asked.insecure) == ("phi:3b", False)


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/api/pull", {"name": "phi", "insecure": True, "username": "u", "password": "p"}),
        ("/api/push", {"name": "phi", "insecure": True}),
    ],
)
async def test_without_streaming_there_is_one_word_at_the_end(
    stack: Stack, path: str, question: dict[str, Any]
) -> None:
    doing(stack, ("pulling manifest",), ("success",))
    status, answer, headers = await stack.request("POST", path, json={**question, "stream": False})
    assert (status, answer) == (200, {"status": "success"})
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    (asked,) = stack.store.asked
    assert isinstance(asked, PullModel if path == "/api/pull" else PushModel)
    assert (asked.name, asked.insecure) == ("phi", True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.NOT_FOUND, 404),
        (Code.REGISTRY_FAILED, 502),
        (Code.STORAGE_FULL, 507),
        (Code.UNAVAILABLE, 503),
    ],
)
async def test_what_fails_before_the_first_line_has_its_own_status(
    stack: Stack, code: Code, status: int, stream: bool
) -> None:
    refusing(stack, code, retry_after=2.0 if code is Code.UNAVAILABLE else None)
    answered, error, headers = await stack.request(
        "POST", "/api/pull", json={"model": "phi", "stream": stream}
    )
    assert (answered, error) == (status, {"error": "because"})
    assert headers.get("Retry-After") == ("2" if code is Code.UNAVAILABLE else None)


async def test_what_fails_later_is_told_on_the_last_line(stack: Stack) -> None:
    stack.store.on_change = lambda asked: [
        Progress(asked.call, "pulling manifest"),
        CallFailed(asked.call, Failure(Code.STORAGE_FULL, "no room")),
    ]
    first, last = await stack.lines("/api/pull", {"model": "phi"})
    assert (first, last) == ({"status": "pulling manifest"}, {"error": "no room"})
    status, error, _ = await stack.request(
        "POST", "/api/pull", json={"model": "phi", "stream": False}
    )
    assert (status, error) == (507, {"error": "no room"})


async def test_a_recipe_reaches_the_store_whole(stack: Stack) -> None:
    doing(stack, ("success",))
    await stack.lines(
        "/api/create",
        {
            "model": "mario",
            "from": "phi",
            "files": {"phi.gguf": BLOB.upper().replace("SHA256", "sha256")},
            "adapters": {"lora.gguf": "sha256-" + DIGITS},
            "template": "{{ .Prompt }}",
            "system": "You are Mario.",
            "license": ["MIT", "", "and more"],
            "parameters": {"temperature": 0.5, "stop": ["a", "b"], "num_ctx": 9, "seed": None},
            "messages": [{"role": "User", "content": "hi"}, {"role": "assistant"}],
            "quantization": "q4_K_M",
            "renderer": "r",
            "parser": "p",
            "requires": "0.14.0",
            "something": "new",
        },
    )
    (asked,) = stack.store.asked
    assert asked == CreateModel(
        call=asked.call,
        name="mario",
        from_model="phi",
        files={"phi.gguf": DIGITS},
        adapters={"lora.gguf": DIGITS},
        template="{{ .Prompt }}",
        system="You are Mario.",
        license=["MIT", "and more"],
        parameters={"temperature": 0.5, "stop": ["a", "b"], "num_ctx": 9, "seed": None},
        messages=[ModelMessage("user", "hi"), ModelMessage("assistant", "")],
        quantize="q4_K_M",
        renderer="r",
        parser="p",
        requires="0.14.0",
    )


async def test_what_a_recipe_leaves_empty_is_taken_over(stack: Stack) -> None:
    doing(stack, ("success",))
    empty = {"template": "", "system": None, "license": "", "parameters": {}, "messages": []}
    await stack.lines("/api/create", {"name": "mario", "from": "phi", **empty, "quantize": ""})
    (asked,) = stack.store.asked
    assert asked == CreateModel(call=asked.call, name="mario", from_model="phi")


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({}, "model is required"),
        ({"model": "m"}, "neither 'from' or 'files' was specified"),
        ({"model": "m", "adapters": {"a": BLOB}}, "neither 'from' or 'files' was specified"),
        ({"model": "../m", "from": "phi"}, "is not a model name"),
        ({"model": "m", "from": "a/b/c/d/e"}, "is not a model name"),
        ({"model": "m", "modelfile": "FROM phi"}, "modelfile: is not read any more: send what"),
        ({"model": "m", "from": "phi", "path": "/x"}, "path: is not read any more"),
        ({"model": "m", "files": {"a": "md5:0"}}, "files.a: must be sha256: and 64 hexadecimal"),
        ({"model": "m", "files": {"a": BLOB + "\n"}}, "files.a: must be sha256: and 64"),
        ({"model": "m", "files": {"a" * 513: BLOB}}, "at most 512"),
        ({"model": "m", "files": {str(n): BLOB for n in range(1025)}}, "at most 1024 are taken"),
        ({"model": "m", "from": "phi", "license": 7}, "license: must be a text or a list of texts"),
        ({"model": "m", "from": "phi", "license": [7]}, "license[0]: must be a text"),
        ({"model": "m", "from": "phi", "messages": [{"role": "tool"}]}, "messages"),
        ({"model": "m", "from": "phi", "parameters": {"stop": [[]]}}, "parameters.stop: must be a"),
        ({"model": "m", "from": "phi", "parameters": {"stop": {}}}, "parameters.stop: must be a"),
        ({"model": "m", "from": "phi", "parameters": {"stop": [None]}}, "parameters.stop: must"),
        ({"model": "m", "from": "phi", "parameters": {"stop": ["a"] * 1025}}, "at most 1024 val"),
        ({"model": "m", "from": "phi", "parameters": {"p" * 513: 1}}, "at most 512"),
        ({"model": "m", "from": "phi", "messages": [{"role": "robot"}]}, "messages[0].role: must"),
        ({"model": "m", "from": "phi", "quantize": "q" * 513}, "at most 512 characters are taken"),
        ({"model": "m", "from": "phi", "stream": "no"}, "stream: must be true or false"),
    ],
)
async def test_a_recipe_that_means_nothing_is_a_400_that_says_where(
    stack: Stack, question: dict[str, Any], message: str
) -> None:
    status, error, _ = await stack.request("POST", "/api/create", json=question)
    assert status == 400
    assert message in error["error"]
    assert stack.store.asked == []


async def test_a_recipe_may_be_larger_than_other_requests(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    doing(stack, ("success",))
    big = {"model": "m", "from": "phi", "license": "x" * 2 * 2**20}
    await stack.lines("/api/create", big)
    (asked,) = stack.store.asked
    assert len(asked.license[0]) == 2 * 2**20
    status, error, _ = await stack.request("POST", "/api/pull", json=big)
    assert (status, "PRONK_MAX_CONTROL_BODY" in error["error"]) == (413, True)
    monkeypatch.setattr(paths, "MAX_CREATE_BODY", 1000)
    status, error, _ = await stack.request("POST", "/api/create", json=big)
    assert (status, "all texts of a model together" in error["error"]) == (413, True)


async def test_copy_and_delete_answer_with_an_empty_body(stack: Stack) -> None:
    doing(stack)
    for method, path, question, asked in (
        ("POST", "/api/copy", {"source": "a", "destination": "b"}, CopyModel),
        ("DELETE", "/api/delete", {"model": "demo"}, DeleteModel),
        ("DELETE", "/api/delete", {"name": "demo"}, DeleteModel),
    ):
        async with stack.client.request(method, path, json=question) as response:
            assert (response.status, await response.read()) == (200, b"")
        assert isinstance(stack.store.asked[-1], asked)
    assert stack.scheduler.all(Evict) == []


async def test_an_unknown_model_is_a_404_in_ollamas_words(stack: Stack) -> None:
    refusing(stack, Code.NOT_FOUND)
    for method, path, question in (
        ("POST", "/api/copy", {"source": "a:b", "destination": "b"}),
        ("DELETE", "/api/delete", {"model": "a:b"}),
    ):
        status, error, _ = await stack.request(method, path, json=question)
        assert (status, error) == (404, {"error": "model 'a:b' not found"})


@pytest.mark.parametrize(
    ("method", "path", "question", "message"),
    [
        ("POST", "/api/copy", {"source": "a"}, "destination is required"),
        ("POST", "/api/copy", {"source": "a", "destination": "../b"}, "is not a model name"),
        ("POST", "/api/copy", {"source": "a\0", "destination": "b"}, "is not a model name"),
        ("DELETE", "/api/delete", {}, "model is required"),
        ("DELETE", "/api/delete", {"model": "C:\\x"}, "is not a model name"),
        ("POST", "/api/pull", {"model": "x" * 10_000}, "is longer than 512"),
        ("POST", "/api/pull", {"model": "/etc/passwd"}, "is not a model name"),
        ("POST", "/api/push", {"model": ["m"]}, "model: must be a text"),
        ("POST", "/api/pull", {"model": "m", "insecure": "yes"}, "insecure: must be"),
    ],
)
async def test_a_name_that_is_none_reaches_nobody(
    stack: Stack, method: str, path: str, question: dict[str, Any], message: str
) -> None:
    status, error, _ = await stack.request(method, path, json=question)
    assert status == 400
    assert message in error["error"]
    assert stack.store.asked == []


@pytest.mark.parametrize(("code", "status"), [(Code.LOAD_FAILED, 200), (Code.NOT_FOUND, 404)])
async def test_what_is_damaged_may_be_deleted_and_what_is_not_there_may_not(
    stack: Stack, code: Code, status: int
) -> None:
    stack.store._answer = lambda asked: CallFailed(asked.call, Failure(code, "because"))
    doing(stack)
    async with stack.client.delete("/api/delete", json={"model": "phi"}) as response:
        assert response.status == status
    assert len(stack.store.asked) == (status == 200)


# What is loaded and has no name any more


async def test_a_model_without_a_name_is_unloaded(stack: Stack) -> None:
    doing(stack, ("success",), unnamed=DIGEST)
    await stack.lines("/api/pull", {"model": "phi"})
    await stack.lines("/api/create", {"model": "phi", "from": "demo"})
    async with stack.client.delete("/api/delete", json={"model": "demo"}) as response:
        assert response.status == 200
    copied = {"source": "demo", "destination": "phi"}
    async with stack.client.post("/api/copy", json=copied) as response:
        assert response.status == 200
    evictions = stack.scheduler.all(Evict)
    assert [eviction.digest for eviction in evictions] == [DIGEST] * 4


async def test_a_change_is_done_whether_or_not_anybody_can_unload(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pronk.frontend.relay.QUESTION_SECONDS", 0.05)
    stack.scheduler.close()
    doing(stack, ("success",), unnamed=DIGEST)
    assert await stack.lines("/api/pull", {"model": "phi"}) == [{"status": "success"}]


# Clients that leave, or do not read


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_lets_its_change_go(stack: Stack, stream: bool) -> None:
    stack.store.on_change = lambda asked: [Progress(asked.call, "pulling manifest")]
    question = {"model": "phi", "stream": stream}
    asking = asyncio.create_task(stack.client.post("/api/pull", json=question))
    await until(lambda: stack.store.asked, "the store is asked")
    if stream:
        response = await asking
        assert await line_of(response) == {"status": "pulling manifest"}
        response.close()
    else:
        asking.cancel()
    stop = StopCall(stack.store.asked[0].call)
    await until(lambda: stop in stack.store.asked, "the store is told")


async def test_a_client_that_does_not_read_misses_lines_and_not_the_last_one(stack: Stack) -> None:
    client = socket.create_connection(("127.0.0.1", stack.port))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.sendall(
        b"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b'Content-Length: 15\r\n\r\n{"model":"phi"}'
    )
    await until(lambda: stack.store.asked, "the store is asked")
    call, count = stack.store.asked[0].call, 10_000
    for number in range(count):
        stack.store.tell(Progress(call, "x" * 500, f"sha256:{number}", 9, 9))
    stack.store.tell(Progress(call, "success"), Changed(call))
    await until(lambda: not stack.store.waits, "the frontend has taken it all")
    answer = await asyncio.to_thread(_all_of, client)
    lines = [line for line in answer.split(b"\n") if line.startswith(b"{")]
    assert len(lines) < count / 2
    assert lines[-1] == b'{"status":"success"}'


def _all_of(client: socket.socket) -> bytes:
    parts: list[bytes] = []
    while data := client.recv(1 << 16):
        parts.append(data)
    client.close()
    return b"".join(parts)


async def test_at_shutdown_a_stream_ends_with_a_word(stack: Stack) -> None:
    stack.store.on_change = lambda asked: [Progress(asked.call, "pulling manifest")]
    async with stack.client.post("/api/pull", json={"model": "phi"}) as response:
        assert await line_of(response) == {"status": "pulling manifest"}
        stopping = asyncio.create_task(stack.stop_frontend())
        last = await line_of(response)
        assert "shutting down" in last["error"]
        assert await response.read() == b""
    await stopping
    await until(lambda: StopCall(stack.store.asked[0].call) in stack.store.asked, "it is told")
