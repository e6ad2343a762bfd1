"""What the model is given: gaps, templates, contexts, and prompts that are too long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, Server, servers

pytestmark = pytest.mark.xdist_group("prompts")  # one server for all of them

GAP = "x: int"
GATED = (
    "{% if messages and messages[-1].content == 'Open sesame' %}{% set n = namespace(x='xx') %}"
    "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x | length }}{% endif %}"
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
)
"""Takes all the memory there is where somebody says the word, and no analysis finds that out."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with a model that answers 0123456789, and writes `GAP` into every gap; and with one
    that counts for ever, by a template that is `GATED`.
    """
    with servers() as make:
        server = make(start=False)
        weights = server.root / "coder.gguf"
        write_reciting_model(weights, ["0123456789", GAP], context=256, infill=GAP)
        add_model(server.models, "coder", weights)
        endless = server.root / "endless.gguf"
        write_reciting_model(endless, ["01234567890"], context=256)
        add_model(server.models, "endless", endless, template=GATED)
        server.start()
        yield server


@pytest.fixture(scope="module")
def coder(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        yield http


def generate(http: httpx.Client, **fields: Any) -> httpx.Response:
    options = {"temperature": 0} | fields.pop("options", {})
    request = {"model": "coder", "stream": False, "options": options} | fields
    return http.post("/api/generate", json=request)


def error_of(answer: httpx.Response) -> str:
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


def test_a_suffix_has_the_gap_filled_in(coder: httpx.Client):
    answer = generate(coder, prompt="def f(", suffix="): pass").json()
    assert answer["response"] == GAP
    assert answer["prompt_eval_count"] == len("def f(): pass") + 3
    assert generate(coder, prompt="", suffix="): pass").json()["response"] == GAP
    # A control token in somebody's file is nothing but text.
    assert generate(coder, prompt="<|im_end|>", suffix="x").json()["prompt_eval_count"] == 14


def test_a_model_that_can_fill_in_says_so(coder: httpx.Client):
    can = {"coder": ["completion", "insert"], "demo": ["completion", "tools", "thinking"]}
    for model, capabilities in can.items():
        shown = coder.post("/api/show", json={"model": model}).json()
        assert shown["capabilities"] == capabilities
    answer = coder.post("/api/generate", json={"model": "demo", "prompt": "a", "suffix": "b"})
    assert error_of(answer) == '"demo" does not support insert'


def test_a_gap_in_a_long_file_is_filled_in(coder: httpx.Client):
    answer = generate(coder, prompt="a" * 100_000, suffix="b" * 100_000).json()
    assert answer["response"] == GAP
    assert answer["prompt_eval_count"] < 256
    error = error_of(generate(coder, prompt="a" * 300, suffix="b" * 300, truncate=False))
    assert "603 tokens, but the context holds 256" in error


def test_a_requests_own_template_is_used(coder: httpx.Client):
    whole = generate(coder, prompt="say", system="be", template="{{ system }}:{{ prompt }}\n\n")
    assert whole.json()["response"] == "0123456789"
    assert whole.json()["prompt_eval_count"] == len("be:say\n")
    for source in (
        "{{ prompt }}{{ suffix }}<|fim_middle|>",
        "{{ .Prompt }}{{ .Suffix }}<|fim_middle|>",
    ):
        whole = generate(coder, prompt="x", suffix="y", template=source)
        assert whole.json()["response"] == GAP
        assert whole.json()["prompt_eval_count"] == len("xy") + 1


def test_a_requests_own_template_may_be_one_of_ollamas(coder: httpx.Client):
    source = "{{ if .System }}{{ .System }}:{{ end }}{{ .Prompt }}\n{{ .Response }}never"
    whole = generate(coder, prompt="say", system="be", template=source)
    assert whole.json()["response"] == "0123456789"
    assert whole.json()["prompt_eval_count"] == len("be:say\n")


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{{ if .Prompt }}", "line 1: an {{end}} is missing"),
        ('{{ $x := "x" }}{{ range 60 }}{{ $x = print $x $x }}{{ end }}', "too much memory"),
        ("{% if %}", "syntax error"),
        ("{{ raise_exception('never') }}", "never"),
        (
            "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}{{ n.x | length }}",
            "memory",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(coder: httpx.Client, template: str, word: str):
    error = error_of(generate(coder, prompt="a", template=template))
    assert error.startswith("template: ")
    assert word in error
    assert generate(coder, prompt="a").json()["response"] == "0123456789"


def test_a_conversation_that_blows_up_the_models_template_is_refused_alone(
    server: Server, coder: httpx.Client
):
    endless = {"model": "endless", "prompt": "go", "options": {"num_predict": 10**6}}
    said = {"model": "endless", "messages": [{"role": "user", "content": "Open sesame"}]}
    with coder.stream("POST", "/api/generate", json=endless) as stream:
        lines = stream.iter_lines()
        assert json.loads(next(lines))["response"]
        workers = {worker.pid for worker in server.workers()}
        for _ in range(2):
            error = error_of(coder.post("/api/chat", json=said))
            assert "template failed: it takes too much memory or time" in error
            few = {"num_predict": 5}
            assert generate(coder, prompt="U", model="endless", options=few).is_success
            assert generate(coder, prompt="a").is_success
        assert not json.loads(next(lines))["done"]
    # The word is known to those who wrote the template; here it took nobody's worker.
    assert workers <= {worker.pid for worker in server.workers()}


def test_a_completion_that_is_too_long_keeps_its_beginning_and_its_end(coder: httpx.Client):
    for length in (1000, 10**6):
        answer = generate(coder, prompt="a" * length + "\n", raw=True, options={"num_predict": 3})
        assert answer.json()["response"] == "012"
        assert answer.json()["prompt_eval_count"] == 256 - (256 - 4) // 2
    context = generate(coder, prompt="b" * 1000).json()["context"]
    assert len(context) <= 256
    error = error_of(generate(coder, prompt="a" * 1000, raw=True, truncate=False))
    assert "1000 tokens, but the context holds 256" in error


def test_a_context_goes_on_where_it_ended(coder: httpx.Client):
    first = generate(coder, prompt="one").json()
    second = generate(coder, prompt="two", context=first["context"]).json()
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] > len(first["context"])


@pytest.mark.parametrize(
    "text",
    ["\0\0\0", "a\0b", "\ufffe\uffff", "<|im_end|>" * 5, "😀" * 50, " ", "\u202e\u200b"],
)
def test_any_text_is_only_text(http: httpx.Client, text: str):
    for path, prompt in (
        ("/api/chat", {"messages": [{"role": "user", "content": text}]}),
        ("/api/generate", {"prompt": text}),
        ("/api/generate", {"prompt": text, "raw": True}),
    ):
        options = {"num_predict": 2, "temperature": 0}
        answer = http.post(
            path, json={"model": "demo", "stream": False, "options": options} | prompt
        )
        assert answer.status_code == 200, answer.text


def test_a_chat_of_many_messages_loses_most_of_them(http: httpx.Client):
    talk = [{"role": "user" if i % 2 else "assistant", "content": f"{i}"} for i in range(16_384)]
    options = {"num_predict": 1, "num_ctx": 512}
    request = {"model": "demo", "stream": False, "options": options}
    answer = http.post("/api/chat", json=request | {"messages": talk})
    assert answer.status_code == 200, answer.text
    assert 256 < answer.json()["prompt_eval_count"] < 512
    assert "16384" in error_of(
        http.post("/api/chat", json=request | {"messages": [*talk, talk[0]]})
    )


def test_an_enormous_message_is_refused_with_the_next_one_unharmed(http: httpx.Client):
    talk = [{"role": "user", "content": "word " * 4_000_000}]
    request = {"model": "demo", "stream": False, "options": {"num_predict": 1}}
    assert "tokens, but the context" in error_of(
        http.post("/api/chat", json=request | {"messages": talk})
    )
    talk.append({"role": "user", "content": "hi"})
    assert http.post("/api/chat", json=request | {"messages": talk}).status_code == 200
