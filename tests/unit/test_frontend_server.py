"""The frontend over real HTTP and real sockets, with scheduler, store and workers played here."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pronk.frontend import bodies as bodies_module
from pronk.frontend import link as link_module
from pronk.frontend import relay as relay_module
from pronk.frontend.server import Frontend
from pronk.protocol.channels import Dealer, Router
from pronk.protocol.codec import decode
from pronk.protocol.errors import Code
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fleet import (
    Hello,
    PeerHeartbeat,
    Refused,
    SchedulerHeartbeat,
    WhoAreYou,
)
from pronk.protocol.messages.generation import (
    Cancel,
    Chunk,
    Chunks,
    Evict,
    Evicted,
    Failed,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Lost,
    Preload,
    Preloaded,
    Started,
)
from pronk.protocol.messages.library import (
    CallFailed,
    ListModels,
    ModelDetails,
    ModelList,
    ModelResolved,
    ModelShown,
    ModelSummary,
    ResolveModel,
    ShowModel,
)
from pronk.protocol.messages.status import ListRunning, RunningList, RunningModel
from pronk.protocol.process import new_incarnation
from pronk.protocol.settings import Settings
from pronk.protocol.state import StateDirectory

DIGEST = "d" * 64
DETAILS = ModelDetails("", "gguf", "llama", ["llama"], "7.1M", "Q8_0")
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a condition, at most ten seconds."""
    async with asyncio.timeout(10):
        while not (value := condition()):
            await asyncio.sleep(0.005)
    assert value, what
    return value


class PlayedWorker:
    """Answers as a worker does: straight to the frontend."""

    def __init__(self, header: Generate) -> None:
        self.id = new_incarnation()
        self.header = header
        self.cancelled: list[Cancel] = []
        self._dealer = Dealer(header.reply_to, self.id, self._received)
        self._index = 0

    def _received(self, message: Any, body: bytes) -> None:
        assert isinstance(message, Cancel)
        self.cancelled.append(message)

    def started(self) -> PlayedWorker:
        self._dealer.send(Started(self.header.request, self.header.attempt, self.id))
        return self

    def says(self, *texts: str, skip: int = 0) -> PlayedWorker:
        for text in texts:
            index = self._index + skip
            chunk = Chunk(self.header.request, self.header.attempt, index, [7], text)
            self._dealer.send(Chunks([chunk]))
            self._index += 1
        return self

    def finished(self, *, eval_count: int | None = None, context: list[int] | None = None) -> None:
        self._dealer.send(
            Finished(
                request=self.header.request,
                attempt=self.header.attempt,
                reason=FinishReason.STOP,
                eval_count=self._index if eval_count is None else eval_count,
                eval_duration=2_000,
                prompt_eval_count=5,
                prompt_eval_duration=1_000,
                context=context,
            )
        )

    def failed(self, code: Code, message: str) -> None:
        failure = Failure(code, message)
        self._dealer.send(Failed(self.header.request, self.header.attempt, failure))

    def close(self) -> None:
        self._dealer.close()


class PlayedScheduler:
    """Collects what the frontend says, and answers each request as the test has it."""

    def __init__(self, state: StateDirectory) -> None:
        self.boot_id = new_incarnation()
        self.peers: set[str] = set()
        self.seen: list[Any] = []
        self.bodies: dict[tuple[str, int], bytes] = {}
        self.workers: list[PlayedWorker] = []
        self.on_generate: Callable[[Generate], None] = lambda header: None
        self.running: list[RunningModel] = []
        self._router = Router(state.scheduler, self._received, max_body=100 * 2**20)
        self._beating = asyncio.create_task(self._beat())

    def all(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.seen if isinstance(message, kind)]

    def worker(self, header: Generate) -> PlayedWorker:
        self.workers.append(PlayedWorker(header))
        return self.workers[-1]

    def tell(self, message: Any) -> None:
        for peer in self.peers:
            self._router.send(peer, message)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            self.tell(SchedulerHeartbeat(self.boot_id))

    def _received(self, peer: str, message: Any, body: bytes) -> None:
        if isinstance(message, Hello):
            self.peers.add(peer)
            self._router.send(peer, SchedulerHeartbeat(self.boot_id))
        elif peer not in self.peers:
            self._router.send(peer, WhoAreYou(self.boot_id))
            return
        if not isinstance(message, PeerHeartbeat):
            self.seen.append(message)
        match message:
            case Generate():
                self.bodies[message.request, message.attempt] = body
                self.on_generate(message)
            case Preload():
                self.tell(Preloaded(message.request))
            case Evict():
                self.tell(Evicted(message.request))
            case ListRunning():
                self.tell(RunningList(message.call, self.running))

    def close(self) -> None:
        self._beating.cancel()
        for worker in self.workers:
            worker.close()
        self._router.close()


class PlayedStore:
    """A library with one model."""

    def __init__(self, state: StateDirectory) -> None:
        self._router = Router(state.store, self._received)

    def _received(self, peer: str, message: Any, body: bytes) -> None:
        self._router.send(peer, self._answer(message))

    def _answer(self, message: Any) -> Any:
        match message:
            case ListModels(call):
                return ModelList(call, [ModelSummary("demo:latest", DIGEST, 9, 1.5e9, DETAILS)])
            case ResolveModel(call, "demo" | "demo:latest"):
                return ModelResolved(call, "demo:latest", DIGEST, ["completion"])
            case ShowModel(call, "demo" | "demo:latest", verbose):
                return ModelShown(
                    call=call,
                    modelfile="FROM demo",
                    parameters="",
                    template="{{ .Prompt }}",
                    system="",
                    license="",
                    details=DETAILS,
                    model_info={"general.architecture": "llama"},
                    capabilities=["completion"],
                    modified_at=1.5e9,
                    tensors=[{"name": "output.weight"}] if verbose else [],
                )
        return CallFailed(message.call, Failure(Code.NOT_FOUND, "no such model"))

    def close(self) -> None:
        self._router.close()


class Stack:
    """A frontend, its played peers, and a client."""

    def __init__(self, state: StateDirectory, settings: Settings) -> None:
        self.state = state
        self.settings = settings
        self.scheduler = PlayedScheduler(state)
        self.store = PlayedStore(state)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.frontend = Frontend(settings, listener)
        self.client = aiohttp.ClientSession(f"http://127.0.0.1:{self.port}")
        self._stopped = False

    async def stop_frontend(self) -> None:
        if not self._stopped:
            self._stopped = True
            await self.frontend.stop()

    def restart_scheduler(self) -> None:
        workers, self.scheduler.workers = self.scheduler.workers, []
        self.scheduler.close()
        self.scheduler = PlayedScheduler(self.state)
        self.scheduler.workers = workers

    async def request(self, method: str, path: str, **arguments: Any) -> tuple[int, Any, Any]:
        """Status, parsed JSON body, headers."""
        async with self.client.request(method, path, **arguments) as response:
            return response.status, json.loads(await response.read()), response.headers

    async def lines(self, path: str, question: dict[str, Any]) -> list[dict[str, Any]]:
        async with self.client.post(path, json=question) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "application/x-ndjson"
            return [json.loads(line) for line in (await response.read()).splitlines()]


@pytest.fixture
def state() -> Iterator[StateDirectory]:
    # A Unix socket's path is short: pytest's own temporary directories can be too long for it.
    root = Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp"))
    directory = StateDirectory(root)
    directory.prepare()
    yield directory
    shutil.rmtree(root)


@contextlib.asynccontextmanager
async def running(state: StateDirectory, **settings: Any) -> AsyncIterator[Stack]:
    stack = Stack(state, Settings(state=state.root, **settings))
    await stack.frontend.start()
    try:
        await until(lambda: stack.scheduler.all(Hello), "the frontend announces itself")
        yield stack
    finally:
        await stack.client.close()
        await stack.stop_frontend()
        stack.scheduler.close()
        stack.store.close()


@pytest.fixture
async def stack(state: StateDirectory) -> AsyncIterator[Stack]:
    async with running(state) as stack:
        yield stack


def answering(stack: Stack, *texts: str, context: list[int] | None = None) -> None:
    """Has every request answered with these pieces."""
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header).started().says(*texts).finished(context=context)
    )


def starting(stack: Stack, *texts: str) -> None:
    """Has every request begun with these pieces, and not ended."""
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header).started().says(*texts) and None
    )


def read_to_the_end(client: socket.socket) -> int:
    """Bytes that a connection still holds, until it is closed or cut."""
    size = 0
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            size += len(data)
    return size


# What the wire looks like


async def test_a_chat_streams_one_line_a_piece_and_ends_with_one_line_of_accounts(
    stack: Stack,
) -> None:
    answering(stack, "Hel", "", "lo", " \u2028ü\n")
    *pieces, last = await stack.lines("/api/chat", QUESTION)
    assert [line["message"]["content"] for line in pieces] == ["Hel", "lo", " \u2028ü\n"]
    for line in pieces:
        assert list(line) == ["model", "created_at", "message", "done"]
        assert line["model"] == "demo"
        assert line["done"] is False
    assert list(last) == [
        *("model", "created_at", "message", "done", "done_reason"),
        *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
        *("eval_count", "eval_duration"),
    ]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert (last["eval_count"], last["prompt_eval_count"]) == (4, 5)
    parts = last["load_duration"] + last["prompt_eval_duration"] + last["eval_duration"]
    assert last["total_duration"] >= parts
    assert last["load_duration"] >= 0


async def test_without_streaming_there_is_one_object_with_the_whole_text(stack: Stack) -> None:
    answering(stack, "Hel", "lo")
    status, answer, headers = await stack.request(
        "POST", "/api/chat", json={**QUESTION, "stream": False}
    )
    assert status == 200
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert answer["message"] == {"role": "assistant", "content": "Hello"}
    assert answer["done"] is True
    assert answer["eval_count"] == 2


async def test_generate_answers_with_response_and_context(stack: Stack) -> None:
    answering(stack, "Hi", context=[1, 2, 3])
    *pieces, last = await stack.lines("/api/generate", {"model": "demo", "prompt": "hello"})
    assert [line["response"] for line in pieces] == ["Hi"]
    assert list(last)[:6] == ["model", "created_at", "response", "done", "done_reason", "context"]
    assert last["response"] == ""
    assert last["context"] == [1, 2, 3]


async def test_what_the_worker_gets_is_what_the_client_asked(stack: Stack) -> None:
    answering(stack, "x")
    await stack.lines(
        "/api/chat",
        {
            "model": "demo",
            "messages": [{"role": "User", "content": "hi"}, {"role": "assistant"}],
            "options": {"seed": 7, "num_ctx": 64.0, "stop": "###", "top_k": 3, "mirostat": 1},
            "keep_alive": "1h30m",
        },
    )
    (header,) = stack.scheduler.all(Generate)
    assert (header.model, header.digest, header.seed) == ("demo:latest", DIGEST, 7)
    assert (header.context_length, header.keep_alive) == (64, 5400.0)
    assert len(header.prefix) == 3
    body = decode(stack.scheduler.bodies[header.request, 1])
    assert isinstance(body, GenerateBody)
    assert [(message.role, message.content) for message in body.messages] == [
        ("user", "hi"),
        ("assistant", ""),
    ]
    assert body.options.stop == ["###"]
    assert body.options.top_k == 3


async def test_curl_without_a_json_content_type_is_understood(stack: Stack) -> None:
    answering(stack, "ok")
    status, answer, _ = await stack.request(
        "POST",
        "/api/generate",
        data=b'{"name": "demo", "prompt": "x", "stream": false}',
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert (status, answer["response"]) == (200, "ok")


@pytest.mark.parametrize(
    ("path", "question", "reason"),
    [
        ("/api/chat", {}, "load"),
        ("/api/chat", {"messages": []}, "load"),
        ("/api/generate", {"prompt": ""}, "load"),
        ("/api/chat", {"keep_alive": 0}, "unload"),
        ("/api/generate", {"keep_alive": "0"}, "unload"),
    ],
)
async def test_a_request_without_a_prompt_loads_or_unloads(
    stack: Stack, path: str, question: dict[str, Any], reason: str
) -> None:
    status, answer, headers = await stack.request("POST", path, json={"model": "demo", **question})
    assert (status, answer["done"], answer["done_reason"]) == (200, True, reason)
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    text = answer["message"]["content"] if path == "/api/chat" else answer["response"]
    assert text == ""
    assert len(stack.scheduler.all(Preload if reason == "load" else Evict)) == 1


async def test_models_are_listed_shown_and_seen_running(stack: Stack) -> None:
    stack.scheduler.running = [
        RunningModel("demo:latest", DIGEST, 10, 0, 4096, None, DETAILS),
        RunningModel("other:1b", DIGEST, 10, 5, 4096, 1.5e9, DETAILS),
    ]
    _, tags, _ = await stack.request("GET", "/api/tags")
    assert tags["models"][0]["modified_at"] == "2017-07-14T02:40:00.000000Z"
    assert tags["models"][0]["name"] == tags["models"][0]["model"] == "demo:latest"
    _, shown, _ = await stack.request("POST", "/api/show", json={"model": "demo"})
    assert shown["model_info"] == {"general.architecture": "llama"}
    assert not {"license", "system", "parameters", "tensors"} & set(shown)
    _, verbose, _ = await stack.request("POST", "/api/show", json={"name": "demo", "verbose": True})
    assert verbose["tensors"] == [{"name": "output.weight"}]
    _, ps, _ = await stack.request("GET", "/api/ps")
    assert ps["models"][0]["expires_at"].startswith("2318")
    assert ps["models"][1]["expires_at"] == "2017-07-14T02:40:00.000000Z"


async def test_the_root_says_what_scripts_look_for(stack: Stack) -> None:
    async with stack.client.get("/") as response:
        assert await response.text() == "Ollama is running"
        assert response.headers["Server"].startswith("Pronk/")
        assert response.content_type == "text/plain"
    for path in ("/", "/api/version", "/api/tags", "/api/ps"):
        async with stack.client.head(path) as response:
            assert response.status == 200, path
            assert await response.read() == b""


# Errors


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/nothing", 404),
        ("POST", "/api/pull", 404),
        ("GET", "/%ff/%00", 404),
        ("GET", "/api/chat", 405),
        ("DELETE", "/api/tags", 405),
    ],
)
async def test_unknown_paths_and_wrong_methods(
    stack: Stack, method: str, path: str, status: int
) -> None:
    answered, error, headers = await stack.request(method, path)
    assert (answered, list(error)) == (status, ["error"])
    assert headers["Server"].startswith("Pronk/")
    assert ("Allow" in headers) == (status == 405)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "missing request body"),
        (b" \n", "missing request body"),
        (b"{", "not valid JSON"),
        (b'{"model": "demo",}', "line 1, column"),
        (b"[1]", "must be a JSON object"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b'{"model": "demo", "options": {"temperature": NaN}}', "not valid JSON"),
        (b'{"model":' + b"[" * 5000, "not valid JSON"),
        (b"{}", "model is required"),
        (b'{"model": "", "messages": []}', "model is required"),
        (b'{"model": 7}', "model: must be a valid string; got 7"),
        (b'{"model": "demo", "messages": [{"role": "robot"}]}', "messages[0].role: must be"),
        (b'{"model": "demo", "messages": [{}]}', "messages[0].role is required"),
        (b'{"model": "demo", "messages": "hi"}', "messages: must be a valid list"),
        (b'{"model": "demo", "options": {"temperature": "hot"}}', "options.temperature"),
        (b'{"model": "demo", "keep_alive": "soon"}', "keep_alive"),
        (b'{"model": "demo", "stream": "yes"}', "stream"),
    ],
)
async def test_a_bad_body_is_a_400_that_says_where(stack: Stack, body: bytes, message: str) -> None:
    status, error, _ = await stack.request("POST", "/api/chat", data=body)
    assert status == 400
    assert message in error["error"]


async def test_an_unknown_model_is_a_404_that_says_how_to_get_it(stack: Stack) -> None:
    for path, name in (("/api/chat", "nothere"), ("/api/show", "a\0b"), ("/api/show", "x" * 999)):
        question = {**QUESTION, "model": name}
        status, error, _ = await stack.request("POST", path, json=question)
        assert status == 404
        assert error["error"].startswith(f"model '{name[:100]}")
        assert "not found" in error["error"]
        assert "demo" in error["error"]


@pytest.mark.parametrize(
    ("extra", "status", "message"),
    [
        ({"tools": [{"type": "function"}]}, 400, '"demo" does not support tools'),
        ({"think": True}, 400, '"demo" does not support thinking'),
        ({"format": "json"}, 501, "format"),
        ({"logprobs": True}, 501, "logprobs"),
        ({"messages": [{"role": "user", "images": ["eA=="]}]}, 400, "does not support vision"),
    ],
)
async def test_what_a_model_or_this_version_cannot_do_is_refused(
    stack: Stack, extra: dict[str, Any], status: int, message: str
) -> None:
    answered, error, _ = await stack.request("POST", "/api/chat", json={**QUESTION, **extra})
    assert answered == status
    assert message in error["error"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("code", "status"),
    [(Code.LOAD_FAILED, 500), (Code.QUEUE_FULL, 503), (Code.INVALID_REQUEST, 400)],
)
async def test_what_fails_before_the_first_piece_has_its_own_status(
    stack: Stack, code: Code, status: int, stream: bool
) -> None:
    retry_after = 1.2 if code is Code.QUEUE_FULL else None
    stack.scheduler.on_generate = lambda header: stack.scheduler.tell(
        Failed(header.request, header.attempt, Failure(code, "because", retry_after))
    )
    answered, error, headers = await stack.request(
        "POST", "/api/chat", json={**QUESTION, "stream": stream}
    )
    assert (answered, error) == (status, {"error": "because"})
    assert headers.get("Retry-After") == ("2" if retry_after else None)


async def test_what_fails_later_is_told_on_the_last_line(stack: Stack) -> None:
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header).started().says("Hi").failed(Code.INTERNAL, "because")
    )
    first, last = await stack.lines("/api/chat", QUESTION)
    assert first["message"]["content"] == "Hi"
    assert last == {"error": "because"}


async def test_bodies_over_their_bound_are_refused_however_they_come(
    state: StateDirectory,
) -> None:
    async def in_chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 1000

    big = b'{"model": "%s"}' % (b"x" * 30_000)
    bomb = gzip.compress(b" " * 50_000_000)
    async with running(state, max_generation_body=20_000, max_control_body=2_000) as stack:
        for path, body, headers in (
            ("/api/chat", big, {}),
            ("/api/chat", in_chunks(), {}),
            ("/api/show", big[:3000], {}),
            ("/api/show", bomb[:1900], {"Content-Encoding": "gzip"}),
            ("/api/chat", bomb[:19_000], {"Content-Encoding": "gzip"}),
        ):
            status, error, _ = await stack.request("POST", path, data=body, headers=headers)
            assert status == 413
            assert "PRONK_MAX_" in error["error"]
        status, _, _ = await stack.request("POST", "/api/chat", data=big[:3000])
        assert status == 400  # chat's own bound admits it; it is only half a JSON text


async def test_bodies_that_arrive_together_have_one_bound(state: StateDirectory) -> None:
    async with running(state, max_queue_bytes=10_000) as stack:
        status, error, headers = await stack.request("POST", "/api/chat", data=b" " * 20_000)
        assert (status, "busy" in error["error"]) == (503, True)
        assert int(headers["Retry-After"]) >= 1
        status, _, _ = await stack.request("POST", "/api/chat", data=b" " * 9_000)
        assert status == 400  # what was refused takes no room any more


async def test_a_body_that_stops_arriving_is_not_waited_for(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies_module, "PATIENCE", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(b'POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"m')
    assert b" 408 " in await reader.readline()
    writer.close()


async def test_compressed_bodies_are_read_and_broken_ones_refused(stack: Stack) -> None:
    answering(stack, "ok")
    packed = gzip.compress(json.dumps({**QUESTION, "stream": False}).encode())
    for body, encoding, expected in (
        (packed, "gzip", 200),
        (b"not gzip at all", "gzip", 400),
        (packed, "compress", 415),
    ):
        status, _, _ = await stack.request(
            "POST", "/api/chat", data=body, headers={"Content-Encoding": encoding}
        )
        assert status == expected


async def test_a_client_that_waits_for_100_continue_gets_it(stack: Stack) -> None:
    answering(stack, "ok")
    status, answer, _ = await stack.request(
        "POST", "/api/chat", json={**QUESTION, "stream": False}, expect100=True
    )
    assert (status, answer["message"]["content"]) == (200, "ok")


async def test_what_is_not_http_is_refused_and_harms_nobody(stack: Stack) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(b"\x16\x03\x01 hello\r\n\r\n")
    assert b" 400 " in await reader.readline()
    writer.close()
    status, _, _ = await stack.request("GET", "/api/version")
    assert status == 200


async def test_web_pages_from_elsewhere_are_refused(stack: Stack) -> None:
    good, _, headers = await stack.request(
        "GET", "/api/version", headers={"Origin": "http://localhost:3000"}
    )
    assert good == 200
    assert headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
    bad, error, headers = await stack.request(
        "GET", "/api/version", headers={"Origin": "https://evil.example"}
    )
    assert (bad, list(error)) == (403, ["error"])
    assert "Access-Control-Allow-Origin" not in headers
    rebound, _, _ = await stack.request("GET", "/api/tags", headers={"Host": "evil.example"})
    assert rebound == 403
    async with stack.client.options(
        "/api/chat", headers={"Origin": "tauri://localhost"}
    ) as response:
        assert response.status == 204
        assert "Authorization" in response.headers["Access-Control-Allow-Headers"]
        assert response.headers["Access-Control-Allow-Origin"] == "tauri://localhost"


# Lives and deaths


@pytest.mark.parametrize("texts", [(), ("Hi",)])
async def test_a_client_that_leaves_has_its_generation_cancelled(
    stack: Stack, texts: tuple[str, ...]
) -> None:
    starting(stack, *texts)
    asking = asyncio.create_task(stack.client.post("/api/chat", json=QUESTION))
    worker = await until(lambda: stack.scheduler.workers, "a worker has it")
    if texts:
        response = await asking
        await response.content.readline()
        response.close()
    else:
        asking.cancel()
    await until(lambda: worker[0].cancelled, "the worker is told")
    await until(lambda: stack.scheduler.all(Cancel), "the scheduler is told")


async def test_a_client_that_leaves_the_queue_is_taken_out_of_it(stack: Stack) -> None:
    asking = asyncio.create_task(stack.client.post("/api/chat", json=QUESTION))
    (header,) = await until(lambda: stack.scheduler.all(Generate), "it waits")
    asking.cancel()
    (cancel,) = await until(lambda: stack.scheduler.all(Cancel), "the scheduler is told")
    assert (cancel.request, cancel.attempt) == (header.request, header.attempt)
    # It may have been on its way to a worker already: that one is told when it speaks.
    worker = stack.scheduler.worker(header).started()
    await until(lambda: worker.cancelled, "a worker that got it all the same is told")


async def test_a_worker_lost_before_the_first_piece_is_not_noticed(stack: Stack) -> None:
    def serve(header: Generate) -> None:
        worker = stack.scheduler.worker(header).started()
        if header.attempt == 1:
            stack.scheduler.tell(
                Lost(header.request, 1, Failure(Code.WORKER_LOST, "it died")),
            )
        else:
            # What is left of the first attempt must not mix with the second.
            stack.scheduler.workers[0].says("old")
            worker.says("new").finished()

    stack.scheduler.on_generate = serve
    *pieces, last = await stack.lines("/api/chat", QUESTION)
    assert [line["message"]["content"] for line in pieces] == ["new"]
    assert last["done"] is True
    first, second = stack.scheduler.all(Generate)
    assert (first.request, first.seed, first.attempt, second.attempt) == (
        *(second.request, second.seed),
        *(1, 2),
    )


async def test_a_request_that_loses_two_workers_ends_with_an_error(stack: Stack) -> None:
    stack.scheduler.on_generate = lambda header: stack.scheduler.tell(
        Lost(header.request, header.attempt, Failure(Code.WORKER_LOST, "it died"))
    )
    status, error, _ = await stack.request("POST", "/api/chat", json=QUESTION)
    assert (status, error) == (500, {"error": "it died"})
    assert len(stack.scheduler.all(Generate)) == 2


async def test_a_worker_lost_in_mid_stream_ends_it_with_an_error(stack: Stack) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        (header,) = stack.scheduler.all(Generate)
        stack.scheduler.tell(Lost(header.request, 1, Failure(Code.WORKER_LOST, "it died")))
        assert json.loads(await response.content.readline()) == {"error": "it died"}
        assert await response.content.read() == b""


@pytest.mark.parametrize("shown", [True, False])
async def test_missing_tokens_are_the_loss_of_the_attempt(stack: Stack, shown: bool) -> None:
    def serve(header: Generate) -> None:
        worker = stack.scheduler.worker(header).started()
        if header.attempt == 1:
            worker.says(*(["Hi"] if shown else [])).says("gap", skip=1)
        else:
            worker.says("whole").finished()

    stack.scheduler.on_generate = serve
    *pieces, last = await stack.lines("/api/chat", QUESTION)
    if shown:
        assert [line["message"]["content"] for line in pieces] == ["Hi"]
        assert "lost on its way" in last["error"]
    else:
        assert [line["message"]["content"] for line in pieces] == ["whole"]
    await until(lambda: stack.scheduler.workers[0].cancelled, "the broken attempt is cancelled")


async def test_an_end_that_counts_more_tokens_than_came_is_no_end(stack: Stack) -> None:
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header).started().says("Hi").finished(eval_count=2)
    )
    *_, last = await stack.lines("/api/chat", QUESTION)
    assert "lost on its way" in last["error"]


async def test_a_new_scheduler_hears_of_everything_again(stack: Stack) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        (running_one,) = stack.scheduler.all(Generate)
        stack.scheduler.on_generate = lambda header: None
        waiting = asyncio.create_task(
            stack.request("POST", "/api/chat", json={**QUESTION, "stream": False})
        )
        await until(lambda: len(stack.scheduler.all(Generate)) == 2, "a second one waits")
        before = stack.scheduler.all(Generate)[1]
        stack.restart_scheduler()
        answering(stack, "late")
        status, answer, _ = await waiting
        assert (status, answer["message"]["content"]) == (200, "late")
        (again,) = stack.scheduler.all(Generate)
        assert (again.request, again.attempt) == (before.request, before.attempt)
        reports = {
            report.request: report.worker
            for hello in stack.scheduler.all(Hello)
            for report in hello.requests
        }
        worker = stack.scheduler.workers[0]
        assert reports[running_one.request] == worker.id
        # The stream that ran did not notice.
        worker.says("there").finished()
        rest = [json.loads(line) for line in (await response.content.read()).splitlines()]
        assert rest[0]["message"]["content"] == "there"
        assert rest[-1]["done"] is True


async def test_without_a_scheduler_ps_says_so_and_the_library_answers(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "QUESTION_SECONDS", 0.2)
    stack.scheduler.close()
    status, error, headers = await stack.request("GET", "/api/ps")
    assert status == 503
    assert "scheduler" in error["error"]
    assert int(headers["Retry-After"]) >= 1
    status, tags, _ = await stack.request("GET", "/api/tags")
    assert (status, len(tags["models"])) == (200, 1)


async def test_a_scheduler_with_another_boot_id_is_greeted_again(stack: Stack) -> None:
    stack.scheduler.boot_id = new_incarnation()
    await until(lambda: len(stack.scheduler.all(Hello)) == 2, "a second greeting")


async def test_nobody_waits_for_ever_for_a_scheduler(
    state: StateDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "QUIET", 0.5)
    async with running(state, max_queue=1) as stack:
        stack.scheduler.close()
        await until(lambda: "no heartbeat" in caplog.text, "the silence is noticed")
        asking = {
            asyncio.create_task(stack.request("POST", "/api/chat", json=QUESTION)) for _ in range(2)
        }
        done, waiting = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        status, error, _ = done.pop().result()
        assert (status, "too many" in error["error"]) == (503, True)
        for module in (link_module, relay_module):
            monkeypatch.setattr(module, "GONE", 0.5)
        status, error, headers = await waiting.pop()
        assert (status, "scheduler" in error["error"]) == (503, True)
        assert int(headers["Retry-After"]) >= 1


async def test_a_client_that_does_not_read_is_dropped_and_its_generation_cancelled(
    state: StateDirectory,
) -> None:
    async with running(state, max_stream_buffer=200_000) as stack:
        starting(stack, "Hi")
        body = json.dumps(QUESTION).encode()
        with socket.create_connection(("127.0.0.1", stack.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n")
            client.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            (worker,) = await until(lambda: stack.scheduler.workers, "a worker has it")
            for _ in range(2_000):
                worker.says("x" * 50_000)
                await asyncio.sleep(0)
                if worker.cancelled:
                    break
            await until(lambda: worker.cancelled, "the worker is told")
            client.settimeout(10)
            # It finds the connection cut, with much less in it than was generated.
            got = await asyncio.to_thread(read_to_the_end, client)
            assert got < 100_000_000
        status, _, _ = await stack.request("GET", "/api/version")
        assert status == 200


async def test_at_shutdown_every_stream_gets_its_end(stack: Stack) -> None:
    starting(stack, "Hi")
    async with stack.client.post("/api/chat", json=QUESTION) as response:
        await response.content.readline()
        whole = asyncio.create_task(
            stack.request("POST", "/api/chat", json={**QUESTION, "stream": False})
        )
        await until(lambda: len(stack.scheduler.workers) == 2, "two are under way")
        began = time.monotonic()
        await stack.stop_frontend()
        assert time.monotonic() - began < 2
        # aiohttp raises here if the chunked body is not terminated as it has to be.
        rest = json.loads(await response.content.read())
        assert "shutting down" in rest["error"]
        status, error, _ = await whole
        assert status == 503
        assert "shutting down" in error["error"]
    for worker in stack.scheduler.workers:
        await until(lambda worker=worker: worker.cancelled, "the workers are told")
    assert not list((stack.state.root / "run").glob("frontend-*"))


# The process


@contextlib.contextmanager
def process(state: StateDirectory, port: int, **arguments: Any) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "PRONK_STATE": str(state.root),
        "PRONK_HOST": f"127.0.0.1:{port}",
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "pronk.frontend"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        **arguments,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_serves_an_inherited_socket_and_leaves_when_told(
    state: StateDirectory, signum: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with process(state, 1, stdin=listener) as child:
            async with (
                aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client,
                client.get("/api/version") as response,
            ):
                assert response.status == 200
            child.send_signal(signum)
            began = time.monotonic()
            assert await asyncio.to_thread(child.wait, 10) == 0
            assert time.monotonic() - began < 2
    assert not list((state.root / "run").glob("frontend-*"))


async def test_a_process_that_the_scheduler_refuses_ends_with_status_1(
    state: StateDirectory,
) -> None:
    scheduler = PlayedScheduler(state)
    with process(state, 0, stdin=subprocess.DEVNULL) as child:
        await until(lambda: scheduler.all(Hello), "it announces itself")
        scheduler.tell(Refused(Failure(Code.INVALID_REQUEST, "wrong version")))
        _, errors = await asyncio.to_thread(child.communicate, None, 10)
        assert child.returncode == 1
        assert errors.splitlines()[-1].endswith("the scheduler refuses it: wrong version")
    scheduler.close()


def test_an_occupied_port_is_one_line_and_status_1(state: StateDirectory) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with process(state, port, stdin=subprocess.DEVNULL) as child:
            _, errors = child.communicate(timeout=20)
            assert child.returncode == 1
            assert len(errors.splitlines()) == 1
            assert f"127.0.0.1:{port}" in errors
