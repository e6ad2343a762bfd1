"""The official Python client does everything that it can ask of this version."""

from __future__ import annotations

import asyncio

import ollama
import pytest

from support.server import PATIENCE, Server

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY = {"temperature": 0}


def test_chat(client: ollama.Client):
    answer = client.chat("demo", QUESTION, options=GREEDY)
    assert answer.message.role == "assistant"
    assert "blue" in (answer.message.content or "").lower()
    assert (answer.done, answer.done_reason, answer.model) == (True, "stop", "demo")
    assert (answer.eval_count or 0) > 5
    assert (answer.prompt_eval_count or 0) > 5


def test_chat_streamed_says_the_same_as_in_one_piece(client: ollama.Client):
    whole = client.chat("demo", QUESTION, options=GREEDY)
    parts = list(client.chat("demo", QUESTION, stream=True, options=GREEDY))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert len(parts) > 5
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count


def test_a_conversation_is_what_the_messages_say(client: ollama.Client):
    history = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Nice to meet you, Ada!"},
        {"role": "user", "content": "What is my name?"},
    ]
    answer = client.chat("demo", history, options=GREEDY)
    assert "Ada" in (answer.message.content or "")
    forgetful = client.chat("demo", history[2:], options=GREEDY)
    assert "Ada" not in (forgetful.message.content or "")


def test_generate(client: ollama.Client):
    answer = client.generate("demo", "Why is the sky blue?", options=GREEDY)
    assert "blue" in (answer.response or "").lower()
    assert answer.done_reason == "stop"
    assert answer.context
    parts = list(client.generate("demo", "Why is the sky blue?", stream=True, options=GREEDY))
    assert "".join(part.response or "" for part in parts) == answer.response


def test_generate_goes_on_behind_the_context_of_an_earlier_answer(client: ollama.Client):
    first = client.generate("demo", "My name is Ada.", options=GREEDY)
    second = client.generate("demo", "What is my name?", context=first.context, options=GREEDY)
    assert "Ada" in (second.response or "")


def test_list_and_show(client: ollama.Client):
    (demo,) = [model for model in client.list().models if model.model == "demo:latest"]
    assert demo.details
    assert demo.details.family == "llama"
    assert demo.size
    assert demo.modified_at
    shown = client.show("demo")
    assert shown.details
    assert shown.details.quantization_level == "Q8_0"
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.template


def test_ps_lists_what_is_loaded(client: ollama.Client):
    client.generate("demo", keep_alive="10m")
    (running,) = client.ps().models
    assert running.model == "demo:latest"
    assert running.expires_at
    assert running.size
    assert running.digest == next(
        m.digest for m in client.list().models if m.model == "demo:latest"
    )


def test_an_unknown_model_is_not_found(client: ollama.Client):
    with pytest.raises(ollama.ResponseError, match="nobody") as caught:
        client.chat("nobody", QUESTION)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as caught:
        list(client.chat("nobody", QUESTION, stream=True))
    assert caught.value.status_code == 404


async def test_the_asynchronous_client(server: Server):
    client = ollama.AsyncClient(host=server.url, timeout=PATIENCE)

    async def ask() -> str:
        parts = [
            part.message.content or ""
            async for part in await client.chat("demo", QUESTION, stream=True, options=GREEDY)
        ]
        return "".join(parts)

    answers = await asyncio.gather(*(ask() for _ in range(5)))
    assert len(set(answers)) == 1
    generated = await client.generate("demo", "Why is the sky blue?", options=GREEDY)
    assert generated.done
    assert [model.model for model in (await client.list()).models] == ["demo:latest"]
    assert (await client.show("demo")).details
    assert (await client.ps()).models
