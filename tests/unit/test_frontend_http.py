"""What a client sends the frontend and gets from it, over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from pronk.frontend import bodies as bodies_module
from pronk.protocol.codec import decode
from pronk.protocol.errors import Code
from pronk.protocol.messages.changes import ModelMessage
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.generation import (
    ChatMessage,
    Evict,
    Failed,
    Generate,
    GenerateBody,
    Preload,
    ToolCall,
    ToolChoice,
)
from pronk.protocol.messages.library import ModelShown
from pronk.protocol.messages.status import RunningModel
from pronk.protocol.state import StateDirectory
from support.played import (
    DETAILS,
    DIGEST,
    QUESTION,
    Stack,
    answering,
    running,
)

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


async def test_thinking_and_calls_are_streamed_and_put_together(stack: Stack) -> None:
    calls = [ToolCall("f", {"a": 1}, "c1"), ToolCall("g", {}, "c2")]
    stack.scheduler.on_generate = lambda header: (
        stack.scheduler.worker(header)
        .started()
        .says_more(thinking="h")
        .says_more(thinking="m", text="So")
        .says(".")
        .says_more(calls=calls[:1])
        .says_more(calls=calls[1:])
        .finished()
    )
    *pieces, last = await stack.lines("/api/chat", QUESTION)
    said = [{k: v for k, v in line["message"].items() if v and k != "role"} for line in pieces]
    first = {"id": "c1", "function": {"index": 0, "name": "f", "arguments": {"a": 1}}}
    second = {"id": "c2", "function": {"index": 1, "name": "g", "arguments": {}}}
    assert said == [
        {"thinking": "h"},
        {"thinking": "m"},
        {"content": "So"},
        {"content": "."},
        {"tool_calls": [first]},
        {"tool_calls": [second]},
    ]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done_reason"], last["eval_count"]) == ("stop", 5)
    whole = (await stack.request("POST", "/api/chat", json={**QUESTION, "stream": False}))[1]
    assert whole["message"] == {
        "role": "assistant",
        "content": "So.",
        "thinking": "hm",
        "tool_calls": [first, second],
    }
    question = {"model": "demo", "prompt": "hello", "stream": False}
    whole = (await stack.request("POST", "/api/generate", json=question))[1]
    assert (whole["response"], whole["thinking"]) == ("So.", "hm")


async def test_what_a_model_can_do_it_is_asked_for(stack: Stack) -> None:
    stack.store.capabilities = ["completion", "tools", "thinking", "vision"]
    answering(stack, "Hi")
    tool = {"type": "function", "function": {"name": "f"}}
    message = {"role": "user", "content": "hi", "images": ["eA=="]}
    extra = {"tools": [tool], "think": "high", "messages": [message], "reasoning_budget": 9}
    await stack.lines("/api/chat", {**QUESTION, **extra})
    ((_, encoded),) = stack.scheduler.bodies.items()
    body: GenerateBody = decode(encoded)
    assert (body.tools, body.think, body.tool_choice) == ([tool], "high", ToolChoice.AUTO)
    assert body.reasoning_budget == 9
    assert body.messages == [ChatMessage("user", "hi", images=[b"x"])]
    (header,) = stack.scheduler.all(Generate)
    assert len(header.prefix) == 4, "the model, its tools, how much it is to think, the message"


async def test_not_to_think_may_be_asked_of_any_model(stack: Stack) -> None:
    answering(stack, "Hi")
    await stack.lines("/api/chat", {**QUESTION, "think": False})
    ((_, encoded),) = stack.scheduler.bodies.items()
    assert decode(encoded).think is False


async def test_more_than_can_be_borne_is_refused(stack: Stack) -> None:
    wide = {"function": {"name": "f", "parameters": {str(n): {} for n in range(40_000)}}}
    stack.store.capabilities = ["completion", "tools"]
    status, error, _ = await stack.request("POST", "/api/chat", json={**QUESTION, "tools": [wide]})
    assert status == 400
    assert "send fewer tools" in error["error"]


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
    assert not body.any_seed


@pytest.mark.parametrize(("options", "any_seed"), [({}, True), ({"seed": -1}, False)])
async def test_a_request_without_a_seed_leaves_it_to_the_model(
    stack: Stack, options: dict[str, int], any_seed: bool
) -> None:
    answering(stack, "x")
    await stack.lines("/api/generate", {"model": "demo", "prompt": "hi", "options": options})
    (header,) = stack.scheduler.all(Generate)
    body = decode(stack.scheduler.bodies[header.request, 1])
    assert body.any_seed is any_seed


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
    assert not {"license", "system", "parameters", "tensors", "messages", "requires"} & set(shown)
    _, verbose, _ = await stack.request("POST", "/api/show", json={"name": "demo", "verbose": True})
    assert verbose["tensors"] == [{"name": "output.weight"}]
    _, ps, _ = await stack.request("GET", "/api/ps")
    assert ps["models"][0]["expires_at"].startswith("2318")
    assert ps["models"][1]["expires_at"] == "2017-07-14T02:40:00.000000Z"


async def test_everything_about_a_model_is_shown_under_ollamas_names(stack: Stack) -> None:
    everything = ModelShown(
        call="",
        modelfile="FROM demo",
        parameters="stop x",
        template="{{ .Prompt }}",
        system="s",
        license="MIT",
        details=DETAILS,
        model_info={"general.architecture": "llama"},
        capabilities=["completion"],
        modified_at=1.5e9,
        tensors=[{"name": "output.weight"}],
        projector_info={"clip.vision": 1},
        messages=[ModelMessage("user", "hi")],
        requires="0.14.0",
        renderer="r",
        parser="p",
    )
    stack.store._answer = lambda message: replace(everything, call=message.call)
    _, shown, _ = await stack.request("POST", "/api/show", json={"model": "demo", "verbose": True})
    expected = asdict(everything)
    del expected["call"]
    assert shown == {**expected, "modified_at": "2017-07-14T02:40:00.000000Z"}


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
        ("PUT", "/api/pull", 405),
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
        (b'{"model": "demo", "options": {"temperature": NaN}}', "not valid JSON"),
        (b'{"model":' + b"[" * 5000, "not valid JSON"),
        (b"{}", "model is required"),
        (b'{"model": "", "messages": []}', "model is required"),
        (b'{"model": 7}', "model: must be a text; got 7"),
        (b'{"model": "demo", "messages": [{"role": "robot"}]}', "messages[0].role: must be"),
        (b'{"model": "demo", "messages": [{}]}', "messages[0].role is required"),
        (b'{"model": "demo", "messages": "hi"}', "messages: must be a list"),
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
        ({"tools": [{"function": {"name": "f"}}]}, 400, '"demo" does not support tools'),
        ({"think": True}, 400, '"demo" does not support thinking'),
        ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
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
