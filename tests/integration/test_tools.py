"""Tools and thinking, as the official client has them: offered, called, answered, told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from support.library import add_model
from support.models import write_reciting_model
from support.server import PATIENCE, ndjson, servers

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0}

THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}<r>\n{{ m.reasoning_content }}</r>{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<r>\n{% endif %}"
)
"""Of a model whose prompts have it think first."""


@pytest.fixture(scope="module")
def thinker() -> Iterator[ollama.Client]:
    """A client of a server with a model that thinks `OK` and says `YES`, whatever it is asked."""
    with servers() as make:
        server = make(start=False)
        weights = server.root / "thinker.gguf"
        write_reciting_model(weights, ["OK</r>YES"])
        add_model(server.models, "reciting", weights)
        server.start()
        client = ollama.Client(host=server.url, timeout=PATIENCE)
        client.create("thinker", from_="reciting", template=THINKS)
        yield client


def test_a_model_that_can_be_offered_tools_says_so(client: ollama.Client):
    assert "tools" in (client.show("demo").capabilities or [])


def test_a_tool_is_called_and_its_result_is_read(client: ollama.Client):
    called = client.chat("demo", QUESTION, tools=[WEATHER], options=GREEDY).message
    assert not called.content
    (call,) = called.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    result = {
        "role": "tool",
        "tool_name": "get_weather",
        "content": '{"temperature": 21, "condition": "sunny"}',
    }
    answer = client.chat("demo", [*QUESTION, called, result], tools=[WEATHER], options=GREEDY)
    assert "21" in (answer.message.content or "")
    assert "sunny" in (answer.message.content or "")
    assert not answer.message.tool_calls


def test_a_streamed_call_comes_whole_and_shows_none_of_its_markers(http: httpx.Client):
    request = {"model": "demo", "messages": QUESTION, "tools": [WEATHER], "options": GREEDY}
    lines = ndjson(http.post("/api/chat", json=request).text)
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    (call,) = calls
    assert call["id"]
    assert call["function"] == {
        "index": 0,
        "name": "get_weather",
        "arguments": {"city": "Paris"},
    }
    assert not "".join(line["message"]["content"] for line in lines)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["done_reason"] == "stop"
    assert lines[-1]["eval_count"] > 5


def test_without_tools_nothing_is_a_call(client: ollama.Client):
    answer = client.chat("demo", QUESTION, options=GREEDY)
    assert answer.message.content
    assert not answer.message.tool_calls


def test_what_a_model_thinks_is_told_apart_from_what_it_says(thinker: ollama.Client):
    assert "thinking" in (thinker.show("thinker").capabilities or [])
    whole = thinker.chat("thinker", QUESTION, think=True).message
    assert (whole.thinking, whole.content) == ("OK", "YES")
    parts = list(thinker.chat("thinker", QUESTION, think=True, stream=True))
    assert "".join(part.message.thinking or "" for part in parts) == "OK"
    assert "".join(part.message.content or "" for part in parts) == "YES"
    answer = thinker.generate("thinker", "What is the weather in Paris?", think=True)
    assert (answer.thinking, answer.response) == ("OK", "YES")


def test_a_model_that_is_not_to_think_finds_its_thinking_ended(thinker: ollama.Client):
    message = thinker.chat("thinker", QUESTION, think=False, options={"num_predict": 20}).message
    assert not message.thinking


def test_who_cannot_think_says_so(thinker: ollama.Client):
    refusal = '"reciting" does not support thinking'
    with pytest.raises(ollama.ResponseError, match=refusal) as caught:
        thinker.chat("reciting", QUESTION, think=True)
    assert caught.value.status_code == 400


def test_the_built_in_model_thinks_when_it_is_asked_to(client: ollama.Client):
    assert "thinking" in (client.show("demo").capabilities or [])
    sky = [{"role": "user", "content": "Why is the sky blue?"}]
    parts = list(client.chat("demo", sky, think=True, stream=True, options=GREEDY))
    assert not any(part.message.thinking and part.message.content for part in parts)
    thinking = "".join(part.message.thinking or "" for part in parts)
    content = "".join(part.message.content or "" for part in parts)
    whole = client.chat("demo", sky, think=True, options=GREEDY).message
    assert (whole.thinking, whole.content) == (thinking, content)
    assert "sky blue" in thinking
    assert "blue light" in content
    for plain in ({}, {"think": False}):
        message = client.chat("demo", sky, **plain, options=GREEDY).message
        assert not message.thinking
        assert "blue light" in (message.content or "")


def test_the_built_in_model_thinks_before_it_calls_a_tool(client: ollama.Client):
    tools = {"tools": [WEATHER], "think": True, "options": GREEDY}
    called = client.chat("demo", QUESTION, **tools).message
    assert "get_weather" in (called.thinking or "")
    (call,) = called.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_name": "get_weather", "content": "21 degrees, sunny"}
    answer = client.chat("demo", [*QUESTION, called, result], **tools).message
    assert answer.thinking
    assert "21" in (answer.content or "")
    assert "think>" not in f"{called.content}{answer.content}"
