"""The exact form of answers, byte by byte where clients depend on it."""

from __future__ import annotations

import re
import socket

import httpx
import pytest

from support.server import Server, ndjson

CHAT = {
    "model": "demo",
    "messages": [{"role": "user", "content": "hi"}],
    "options": {"temperature": 0},
}
GENERATE = {"model": "demo", "prompt": "hi", "options": {"temperature": 0}}
COUNTS = ["total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"]
COUNTS += ["eval_count", "eval_duration"]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def streamed(http: httpx.Client, path: str, request: dict) -> list[dict]:
    answer = http.post(path, json=request)
    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] == "application/x-ndjson"
    return ndjson(answer.text)


def check_final(last: dict) -> None:
    assert last["done"] is True
    assert last["done_reason"] in ("stop", "length")
    for name in COUNTS:
        assert type(last[name]) is int
        assert last[name] >= 0
    parts = last["load_duration"] + last["prompt_eval_duration"] + last["eval_duration"]
    assert last["total_duration"] >= parts > 0
    assert last["eval_count"] > 0
    assert last["prompt_eval_count"] > 0


def test_chat_streams_by_default(http: httpx.Client):
    lines = streamed(http, "/api/chat", CHAT)
    for line in lines[:-1]:
        assert list(line) == ["model", "created_at", "message", "done"]
        assert line["done"] is False
        assert line["message"]["role"] == "assistant"
        assert line["message"]["content"]
    last = lines[-1]
    assert last["message"] == {"role": "assistant", "content": ""}
    check_final(last)
    for line in lines:
        assert line["model"] == "demo"
        assert TIME.fullmatch(line["created_at"])


def test_generate_streams_by_default(http: httpx.Client):
    lines = streamed(http, "/api/generate", GENERATE)
    for line in lines[:-1]:
        assert list(line) == ["model", "created_at", "response", "done"]
        assert line["done"] is False
        assert line["response"]
    last = lines[-1]
    assert last["response"] == ""
    check_final(last)
    assert last["context"]
    assert all(type(token) is int for token in last["context"])
    assert len(last["context"]) >= last["prompt_eval_count"] + last["eval_count"] - 1


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_without_streaming_there_is_one_object(http: httpx.Client, path: str):
    request = CHAT if path == "/api/chat" else GENERATE
    answer = http.post(path, json=request | {"stream": False})
    assert answer.headers["content-type"].split(";")[0] == "application/json"
    whole = answer.json()
    check_final(whole)
    lines = streamed(http, path, request)
    if path == "/api/chat":
        text = "".join(line["message"]["content"] for line in lines)
        assert whole["message"] == {"role": "assistant", "content": text}
    else:
        assert whole["response"] == "".join(line["response"] for line in lines)
        assert whole["context"] == lines[-1]["context"]
    assert whole["eval_count"] == lines[-1]["eval_count"]


def test_the_model_is_called_what_the_client_called_it(http: httpx.Client):
    for name in ("demo", "demo:latest"):
        for line in streamed(http, "/api/chat", CHAT | {"model": name}):
            assert line["model"] == name


def test_num_predict_bounds_the_answer_and_counts_exactly(http: httpx.Client):
    for limit in (1, 3):
        request = GENERATE | {"options": {"temperature": 0, "num_predict": limit}}
        last = streamed(http, "/api/generate", request)[-1]
        assert (last["eval_count"], last["done_reason"]) == (limit, "length")


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(http: httpx.Client):
    whole = http.post("/api/generate", json=GENERATE | {"stream": False}).json()["response"]
    stop = whole[len(whole) // 2 :][:4]
    request = GENERATE | {"options": {"temperature": 0, "stop": stop}}
    lines = streamed(http, "/api/generate", request)
    assert "".join(line["response"] for line in lines) == whole[: whole.index(stop)]
    assert lines[-1]["done_reason"] == "stop"


def test_the_same_seed_says_the_same(http: httpx.Client):
    request = GENERATE | {"stream": False, "prompt": "Tell me a joke."}
    hot = {"temperature": 20, "top_p": 1.0, "top_k": 0, "num_predict": 16}

    def answer(seed: int) -> str:
        return http.post("/api/generate", json=request | {"options": hot | {"seed": seed}}).json()[
            "response"
        ]

    assert answer(7) == answer(7)
    assert len({answer(seed) for seed in range(5)}) > 1


def test_raw_prompts_go_to_the_model_as_they_are(http: httpx.Client):
    plain = http.post("/api/generate", json=GENERATE | {"stream": False}).json()
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    raw = GENERATE | {"stream": False, "raw": True, "prompt": prompt}
    answer = http.post("/api/generate", json=raw).json()
    assert answer["response"] == plain["response"]
    assert answer["prompt_eval_count"] == plain["prompt_eval_count"]


def test_each_line_is_sent_when_it_is_there(server: Server):
    """The first line can be read before the last one exists."""
    endless = b'{"ignore_eos":true,"num_predict":30000}'
    body = b'{"model":"demo","prompt":"Count to 100.","options":%s}' % endless
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(
            b"POST /api/generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        received = b""
        while b'"done":false' not in received:
            data = connection.recv(65536)
            assert data
            received += data
        assert b'"done":true' not in received
    assert b"Transfer-Encoding: chunked" in received


@pytest.mark.parametrize("stream", [True, False])
def test_an_empty_request_loads_the_model_and_keep_alive_0_unloads_it(
    http: httpx.Client, server: Server, stream: bool
):
    base = {"model": "demo", "stream": stream}
    loads = [("/api/chat", {"messages": []}), ("/api/generate", {"prompt": ""}), ("/api/chat", {})]
    for path, extra in loads:
        answer = http.post(path, json=base | extra)
        assert answer.status_code == 200
        (loaded,) = ndjson(answer.text if answer.text.endswith("\n") else answer.text + "\n")
        assert (loaded["done"], loaded["done_reason"]) == (True, "load")
        text = loaded["response"] if "generate" in path else loaded["message"]["content"]
        assert text == ""
        assert [model["name"] for model in server.loaded()] == ["demo:latest"]
        answer = http.post(path, json=base | extra | {"keep_alive": 0})
        (unloaded,) = ndjson(answer.text if answer.text.endswith("\n") else answer.text + "\n")
        assert (unloaded["done"], unloaded["done_reason"]) == (True, "unload")
        assert server.loaded() == []


def test_root_and_version_answer_get_and_head(http: httpx.Client):
    assert http.get("/").text == "Ollama is running"
    version = http.get("/api/version").json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 12, 0)
    for path in ("/", "/api/version", "/api/tags", "/api/ps"):
        get, head = http.get(path), http.head(path)
        assert get.status_code == head.status_code == 200
        assert head.content == b""
        assert head.headers["content-type"] == get.headers["content-type"]
        assert head.headers["server"].startswith("Pronk/")


def test_tags_and_ps_have_all_fields(http: httpx.Client):
    http.post("/api/generate", json={"model": "demo"})
    details = ["parent_model", "format", "family", "families", "parameter_size"]
    details += ["quantization_level"]
    (listed,) = http.get("/api/tags").json()["models"]
    assert set(listed) == {"name", "model", "modified_at", "size", "digest", "details"}
    (running,) = http.get("/api/ps").json()["models"]
    fields = {"name", "model", "size", "digest", "details", "expires_at", "size_vram"}
    assert set(running) == fields | {"context_length"}
    for model in (listed, running):
        assert set(model["details"]) == set(details)
        assert model["name"] == model["model"] == "demo:latest"
        assert re.fullmatch(r"[0-9a-f]{64}", model["digest"])


def test_show_takes_model_or_name(http: httpx.Client):
    by_model = http.post("/api/show", json={"model": "demo"}).json()
    assert by_model == http.post("/api/show", json={"name": "demo"}).json()
    wanted = {"details", "model_info", "capabilities", "template", "modelfile", "modified_at"}
    assert wanted <= set(by_model)
    assert by_model["model_info"]["tokenizer.ggml.tokens"] is None
    verbose = http.post("/api/show", json={"model": "demo", "verbose": True}).json()
    assert len(verbose["model_info"]["tokenizer.ggml.tokens"]) > 256
    assert verbose["tensors"]


def test_any_content_type_will_do(http: httpx.Client):
    body = b'{"model":"demo","prompt":"hi","stream":false}'
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json", None):
        headers = {"content-type": kind} if kind else {}
        answer = http.post("/api/generate", content=body, headers=headers)
        assert answer.status_code == 200, kind


def test_the_legacy_name_is_accepted_for_model(http: httpx.Client):
    answer = http.post("/api/generate", json={"name": "demo", "prompt": "hi", "stream": False})
    assert answer.json()["done"]


def test_each_request_is_independent(http: httpx.Client):
    def ask(*messages: dict) -> str:
        request = CHAT | {"messages": list(messages), "stream": False}
        return http.post("/api/chat", json=request).json()["message"]["content"]

    question = {"role": "user", "content": "What is my name?"}
    before = ask(question)
    ask({"role": "user", "content": "My name is Zebedee."})
    assert ask(question) == before


def test_a_system_prompt_is_a_system_message(http: httpx.Client):
    system = "You are a helpful assistant."
    generated = http.post("/api/generate", json=GENERATE | {"system": system, "stream": False})
    messages = [{"role": "system", "content": system}, *CHAT["messages"]]
    chatted = http.post("/api/chat", json=CHAT | {"messages": messages, "stream": False})
    assert generated.json()["response"] == chatted.json()["message"]["content"]
    assert generated.json()["prompt_eval_count"] == chatted.json()["prompt_eval_count"]


def test_unknown_fields_and_options_are_ignored(http: httpx.Client):
    plain = http.post("/api/chat", json=CHAT | {"stream": False}).json()["message"]
    options = {"temperature": 0, "num_gpu": 999, "mirostat": 0, "flux_capacitance": 1.21}
    request = CHAT | {"stream": False, "options": options, "shoe_size": 42}
    assert http.post("/api/chat", json=request).json()["message"] == plain
