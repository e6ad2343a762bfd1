"""What is wrong is answered with its status and a sentence, and harms nobody else."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, ndjson, servers

USER = [{"role": "user", "content": "hi"}]


def error_of(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].split(";")[0] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    assert body["error"]
    for leak in ("/tmp/", "/root", "Traceback", "site-packages", ".py"):
        assert leak not in body["error"]
    return body["error"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "body"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"\xff\xfe", "JSON"),
        (b'{"model":"demo","options":{"temperature":NaN}}', "JSON"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "JSON"),
    ],
)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show"])
def test_a_body_that_is_no_json_object(http: httpx.Client, path: str, body: bytes, word: str):
    assert word.lower() in error_of(http.post(path, content=body), 400).lower()


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"messages": USER}, "model"),
        ({"model": "", "messages": USER}, "model"),
        ({"model": 5, "messages": USER}, "model"),
        ({"model": "demo", "messages": "hi"}, "messages"),
        ({"model": "demo", "messages": [5]}, "messages[0]"),
        ({"model": "demo", "messages": [*USER, {"content": "hi"}]}, "messages[1].role"),
        ({"model": "demo", "messages": [{"role": "wizard", "content": "hi"}]}, "wizard"),
        ({"model": "demo", "messages": [{"role": "user", "content": 5}]}, "content"),
        ({"model": "demo", "messages": USER, "stream": "perhaps"}, "stream"),
        ({"model": "demo", "messages": USER, "options": []}, "options"),
        ({"model": "demo", "messages": USER, "options": {"temperature": "hot"}}, "temperature"),
        ({"model": "demo", "messages": USER, "options": {"num_predict": 1.5}}, "num_predict"),
        ({"model": "demo", "messages": USER, "options": {"stop": 5}}, "stop"),
        ({"model": "demo", "messages": USER, "options": {"seed": 2**80}}, "seed"),
        ({"model": "demo", "messages": USER, "keep_alive": "soon"}, "keep_alive"),
        ({"model": "demo", "messages": USER, "keep_alive": [5]}, "keep_alive"),
        ({"model": "demo", "messages": USER, "tools": [{"type": "function"}]}, "tools"),
        ({"model": "demo", "messages": USER, "think": "extreme"}, "think"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_mistake_in_a_chat_request_is_named(
    http: httpx.Client, request_: dict[str, Any], word: str, stream: bool
):
    assert word in error_of(http.post("/api/chat", json={"stream": stream} | request_), 400)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"prompt": "hi"}, "model"),
        ({"model": "demo", "prompt": ["hi"]}, "prompt"),
        ({"model": "demo", "prompt": "hi", "context": "abc"}, "context"),
        ({"model": "demo", "prompt": "hi", "context": [-1]}, "context"),
        ({"model": "demo", "prompt": "hi", "raw": "yes"}, "raw"),
        ({"model": "demo", "prompt": "hi", "suffix": "ho"}, "insert"),
    ],
)
def test_a_mistake_in_a_generate_request_is_named(
    http: httpx.Client, request_: dict[str, Any], word: str
):
    assert word in error_of(http.post("/api/generate", json=request_), 400)


def test_tokens_of_another_vocabulary_are_refused(http: httpx.Client):
    request = {"model": "demo", "prompt": "hi", "context": [2**30]}
    assert "context" in error_of(http.post("/api/generate", json=request), 400)


@pytest.mark.parametrize("name", ["nobody", "nobody:7b", "hf.co/some/body:Q4_0", "a/b/c"])
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show"])
def test_an_unknown_model_is_404_and_the_message_names_it(http: httpx.Client, path: str, name: str):
    answer = http.post(path, json={"model": name, "messages": USER, "prompt": "hi"})
    assert name in error_of(answer, 404)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b", "x" * 10_000, "a b"])
def test_a_name_that_is_no_name_is_refused(http: httpx.Client, name: str):
    answer = http.post("/api/chat", json={"model": name, "messages": USER})
    assert answer.status_code in (400, 404)
    error_of(answer, answer.status_code)


def test_unknown_paths_and_wrong_methods(http: httpx.Client):
    error_of(http.get("/api/nothing"), 404)
    error_of(http.post("/v9/chat"), 404)
    for method, path in (("GET", "/api/chat"), ("PUT", "/api/generate"), ("POST", "/api/tags")):
        answer = http.request(method, path)
        error_of(answer, 405)
        assert answer.headers["allow"]


BROKEN = ("truncated", "header-only", "random", "empty", "magic", "outside")


@pytest.fixture(scope="module")
def narrow() -> Iterator[httpx.Client]:
    """A server that takes small bodies only, and has broken models and a whole one."""
    with servers() as make:
        server = make(
            start=False, PRONK_MAX_GENERATION_BODY="100KiB", PRONK_MAX_CONTROL_BODY="10KiB"
        )
        whole = server.root / "whole.gguf"
        write_reciting_model(whole, ["ab"])
        add_model(server.models, "whole", whole)
        broken = (
            whole.read_bytes()[:-100_000],
            whole.read_bytes()[:5000],
            bytes((7 * i * i + i // 3) % 256 for i in range(100_000)),
            b"",
            b"GGUF\x03\0\0\0" + b"\xff" * 64,
            _with_offset(whole.read_bytes(), b"token_embd.weight", 2**40),
        )
        for name, data in zip(BROKEN, broken, strict=True):
            path = server.root / f"{name}.gguf"
            path.write_bytes(data)
            add_model(server.models, name, path)
        server.start()
        with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
            yield http


def _with_offset(model: bytes, name: bytes, offset: int) -> bytes:
    """A model that is whole but for where one of its tensors is said to lie."""
    at = model.index(name) + len(name)
    (dimensions,) = struct.unpack_from("<I", model, at)
    at += 4 + 8 * dimensions + 4
    return model[:at] + struct.pack("<Q", offset) + model[at + 8 :]


@pytest.mark.xdist_group("narrow")
def test_an_oversized_body_is_413_by_route_class(narrow: httpx.Client):
    for path, size in (("/api/chat", 200_000), ("/api/generate", 200_000), ("/api/show", 20_000)):
        error_of(narrow.post(path, content=b" " * size), 413)

        def endless(size: int = size):
            for _ in range(size // 1000):
                yield b" " * 1000

        error_of(narrow.post(path, content=endless()), 413)
    body = json.dumps({"model": "whole", "prompt": "hi", "stream": False, "x": "y" * 50_000})
    assert narrow.post("/api/generate", content=body).status_code == 200


def test_the_default_bound_admits_a_long_history_and_images(http: httpx.Client):
    history = [{"role": "user", "content": "word " * 130_000, "images": []}]
    answer = http.post("/api/chat", json={"model": "nobody", "messages": history * 10})
    error_of(answer, 404)


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_is_too_long_is_400_in_streaming_mode_too(http: httpx.Client, stream: bool):
    request = {"model": "demo", "prompt": "word " * 50_000, "stream": stream, "truncate": False}
    assert "context" in error_of(http.post("/api/generate", json=request), 400)
    message = [{"role": "user", "content": "word " * 50_000}]
    request = {"model": "demo", "messages": message, "stream": stream}
    assert "context" in error_of(http.post("/api/chat", json=request), 400)


def test_a_history_that_is_too_long_loses_its_oldest_messages(http: httpx.Client):
    old = [{"role": "user", "content": "word " * 500}, {"role": "assistant", "content": "yes"}]
    request = {"model": "demo", "messages": old * 20 + USER, "stream": False}
    options = {"temperature": 0, "num_ctx": 1024, "num_predict": 5}
    answer = http.post("/api/chat", json=request | {"options": options})
    assert answer.status_code == 200
    assert answer.json()["prompt_eval_count"] < 1024
    error_of(http.post("/api/chat", json=request | {"truncate": False, "options": options}), 400)


@pytest.mark.parametrize("text", [rb"\ud83d", rb"a\udc00b", b"\xff\xfe", b"\xed\xa0\x80"])
def test_text_that_is_not_quite_unicode_is_answered(http: httpx.Client, text: bytes):
    options = b'"stream":false,"options":{"num_predict":1}'
    for path, prompt in (
        ("/api/generate", b'"prompt":"%s"' % text),
        ("/api/chat", b'"messages":[{"role":"user","content":"%s"}]' % text),
    ):
        answer = http.post(path, content=b'{"model":"demo",%s,%s}' % (prompt, options))
        assert answer.status_code == 200, answer.text


def test_a_broken_connection_in_the_middle_of_a_body_harms_nobody(server: Server):
    for head in (
        b"POST /api/chat HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{",
        b"\0" * 99,
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
            connection.sendall(head)
    assert httpx.get(f"{server.url}/api/version", timeout=PATIENCE).status_code == 200


@pytest.mark.xdist_group("narrow")
@pytest.mark.parametrize("stream", [True, False])
def test_broken_model_files_fail_with_a_reason_and_nothing_else_does(
    narrow: httpx.Client, stream: bool
):
    names = {model["name"] for model in narrow.get("/api/tags").json()["models"]}
    assert {"whole:latest", "demo:latest", "outside:latest"} <= names
    for name in BROKEN:
        request = {"model": name, "messages": USER, "stream": stream}
        said = error_of(narrow.post("/api/chat", json=request), 500)
        assert name in said
        assert name != "outside" or "behind the end of the file" in said
        shown = narrow.post("/api/show", json={"model": name})
        assert shown.json()["details"]["format"] == "gguf"
        good = narrow.post("/api/chat", json={"model": "whole", "messages": USER})
        assert ndjson(good.text)[-1]["done"]
