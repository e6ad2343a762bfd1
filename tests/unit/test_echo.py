"""A replica without a model: what it says is known beforehand, wherever it has to go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.codec import encode
from pronk.protocol.errors import Code
from pronk.protocol.messages.embedding import Embed, EmbedBody
from pronk.protocol.messages.generation import (
    Caller,
    Cancel,
    ChatMessage,
    Chunk,
    Constraint,
    Failed,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Grammar,
    Kind,
    SamplingOptions,
)
from pronk.protocol.messages.library import ModelDetails, ModelFacts
from pronk.protocol.messages.placement import Load, Loaded, Outcome, Released
from pronk.workers import echo
from pronk.workers.echo import LETTERS, PACE, SLOTS, EchoReplica, Recital
from pronk.workers.inference.stop import StopMatcher

DIGEST = "d" * 64
PATIENCE = 60.0


def recital(text: str, limit: int | None = None, stops: tuple[str, ...] = (), before: int = 0):
    return Recital(text, limit=limit, stops=StopMatcher(stops), before=before)


def said(recital: Recital) -> tuple[list[int], str]:
    tokens, text = list[int](), ""
    while recital.reason is None:
        token, _, shown = recital.advance()
        tokens.append(token)
        text += shown
    return tokens, text


def test_a_text_is_said_once_and_ended_by_a_token_of_its_own():
    once = recital("abcdefghij")
    assert said(once) == ([0, 1, 2, 3], "abcdefghij")
    assert once.reason is FinishReason.STOP


def test_a_text_is_repeated_up_to_exactly_so_many_tokens():
    repeated = recital("abcdef", limit=5)
    assert said(repeated) == ([0, 1, 0, 1, 0], "abcdefabcdefabcd")
    assert repeated.reason is FinishReason.LENGTH


@pytest.mark.parametrize("limit", [None, 7])
def test_where_there_is_nothing_to_say_only_the_end_comes(limit: int | None):
    assert said(recital("", limit)) == ([0], "")


def test_a_stop_text_ends_it_across_tokens_and_repetitions():
    stopped = recital("abcd", limit=100, stops=("dab",))
    assert said(stopped) == ([0, 0], "abc")
    assert stopped.reason is FinishReason.STOP


@given(
    st.text(max_size=30),
    st.none() | st.integers(1, 40),
    st.lists(st.text(min_size=1, max_size=6), max_size=3),
    st.data(),
)
def test_it_goes_on_where_an_earlier_attempt_stood(
    text: str, limit: int | None, stops: list[str], data: st.DataObject
):
    whole = recital(text, limit, tuple(stops))
    tokens, shown = said(whole)
    earlier = recital(text, limit, tuple(stops))
    before = data.draw(st.integers(0, len(tokens)))
    begun = [earlier.advance() for _ in range(before)]
    later = recital(text, limit, tuple(stops), before)
    rest, ending = said(later)
    assert [token for token, _, _ in begun] + rest == tokens == later.tokens()
    assert "".join(part for _, _, part in begun) + ending == shown
    assert (later.reason, later.count) == (whole.reason, whole.count)


class Bench:
    """A replica on this test's own event loop, and all that it posts."""

    def __init__(self, *, pace: int = 0, parallel: int = 0, context: int = 4096) -> None:
        self.posted: list[Any] = []
        self.keeps_up = True
        self._news = asyncio.Event()
        details = ModelDetails("", "echo", "echo", ["echo"], "0", "none")
        facts = ModelFacts("echo:latest", DIGEST, "", 0, 131072, details, {PACE: pace})
        load = Load(facts, context, threads=1, parallel=parallel)
        self.replica = EchoReplica(load, 1 << 20, self._post)

    def _post(self, messages: list[Any]) -> bool:
        self.posted += messages
        self._news.set()
        return self.keeps_up

    def ask(self, body: GenerateBody | EmbedBody | bytes, **changes: Any) -> str:
        fields: dict[str, Any] = {
            "request": uuid4().hex,
            "attempt": 1,
            "model": "echo:latest",
            "digest": DIGEST,
            "caller": Caller(),
            "frontend": "f" * 16,
            "reply_to": "ipc://x",
            "cost": 1,
            **changes,
        }
        kind = Embed if isinstance(body, EmbedBody) else Generate
        header = Embed(**fields) if kind is Embed else Generate(seed=1, **fields)
        self.replica.submit(header, body if isinstance(body, bytes) else encode(body))
        return header.request

    async def wait(self, kind: type[Any], where: Callable[[Any], bool] = lambda _: True) -> Any:
        async with asyncio.timeout(PATIENCE):
            while True:
                for message in self.posted:
                    if isinstance(message, kind) and where(message):
                        return message
                self._news.clear()
                await self._news.wait()

    async def answer(self, request: str) -> tuple[str, Any, Released]:
        """Text, ending and release of a request, once it has them all."""
        released = await self.wait(Released, lambda m: m.request == request)
        chunks = [m for m in self.posted if isinstance(m, Chunk) and m.request == request]
        indexes = [index for chunk in chunks for index in [chunk.index] * len(chunk.tokens)]
        assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if indexes else True
        ends = [m for m in self.posted if isinstance(m, (Finished, Failed)) if m.request == request]
        return "".join(chunk.text for chunk in chunks), ends[0] if ends else None, released


def completion(prompt: str, **changes: Any) -> GenerateBody:
    options = SamplingOptions(**changes.pop("options", {}))
    return GenerateBody(Kind.COMPLETION, options, prompt=prompt, **changes)


async def test_it_is_loaded_at_once_and_takes_many_requests():
    loaded = await Bench(context=1000).wait(Loaded)
    assert (loaded.model.name, loaded.model.digest) == ("echo:latest", DIGEST)
    assert (loaded.model.slots, loaded.model.context_length, loaded.model.size) == (SLOTS, 1000, 0)
    assert (await Bench(parallel=3).wait(Loaded)).model.slots == 3


async def test_it_says_the_prompt_and_accounts_for_it():
    bench = Bench()
    text, end, released = await bench.answer(bench.ask(completion("Hello, llama!")))
    assert text == "Hello, llama!"
    assert (end.reason, end.prompt_eval_count, end.eval_count) == (FinishReason.STOP, 4, 5)
    assert end.context is None
    assert (released.outcome, released.tokens) == (Outcome.FINISHED, 5)
    assert bench.replica.alive
    assert bench.replica.steps > 0


async def test_of_a_chat_it_says_the_last_message():
    bench = Bench()
    messages = [ChatMessage("system", "Be brief."), ChatMessage("user", "Grüße, 🦙!")]
    body = GenerateBody(Kind.CHAT, SamplingOptions(), messages=messages)
    assert (await bench.answer(bench.ask(body)))[0] == "Grüße, 🦙!"


async def test_every_step_brings_every_request_one_token():
    bench = Bench()
    await bench.wait(Loaded)
    requests = [bench.ask(completion("a" * 40, options={"num_predict": 20})) for _ in range(3)]
    for request in requests:
        await bench.answer(request)
    order = [m.request for m in bench.posted if isinstance(m, Chunk)]
    assert order == requests * 20


async def test_a_resumed_answer_equals_an_undisturbed_one():
    bench = Bench()
    body = {"options": {"num_predict": 9, "stop": ["lazy"]}, "return_context": True, "logprobs": 0}
    text, end, _ = await bench.answer(bench.ask(completion("over the lazy dog", **body)))
    assert text == "over the "
    chunks = [m for m in bench.posted if isinstance(m, Chunk)]
    for sent in range(len(chunks) + 1):
        tokens = [token for chunk in chunks[:sent] for token in chunk.tokens]
        shown = "".join(chunk.text for chunk in chunks[:sent])
        again = bench.ask(completion("over the lazy dog", tokens=tokens, **body), attempt=2)
        rest, ending, released = await bench.answer(again)
        assert shown + rest == text
        assert (ending.eval_count, ending.context) == (end.eval_count, end.context)
        assert released.tokens == end.eval_count - sent


async def test_log_probabilities_say_that_it_was_certain():
    bench = Bench()
    request = bench.ask(completion("Grüße", logprobs=2))
    await bench.answer(request)
    told = [m.logprobs for m in bench.posted if isinstance(m, Chunk)]
    assert [one.chosen.piece for positions in told for one in positions] == [
        "Grüß".encode(),
        b"e",
    ]
    assert told[-1] == [], "the ending token has none"


async def test_a_cancelled_request_is_released_and_says_no_more():
    bench = Bench()
    request = bench.ask(completion("x", options={"num_predict": 10**9}))
    await bench.wait(Chunk)
    bench.replica.cancel(Cancel(request, 1))
    released = await bench.wait(Released)
    assert (released.request, released.outcome) == (request, Outcome.CANCELLED)
    assert released.tokens == sum(isinstance(m, Chunk) for m in bench.posted)
    await bench.answer(bench.ask(completion("next")))
    assert not [m for m in bench.posted if isinstance(m, Finished) and m.request == request]


async def test_a_request_may_be_cancelled_before_its_first_step():
    bench = Bench()
    request = bench.ask(completion("x"))
    bench.replica.cancel(Cancel(request, 1))
    bench.replica.cancel(Cancel(request, 1))
    await bench.answer(bench.ask(completion("next")))
    about = [m for m in bench.posted if getattr(m, "request", "") == request]
    assert about == [Released(request, 1, Outcome.CANCELLED, 0)]


async def test_steps_become_rare_while_frontends_do_not_keep_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(echo, "_PAUSE", 3600.0)
    bench = Bench()
    await bench.wait(Loaded)
    bench.keeps_up = False
    request = bench.ask(completion("x", options={"num_predict": 10**9}))
    await bench.wait(Chunk)
    bench.replica.cancel(Cancel(request, 1))
    await bench.wait(Released)
    assert sum(isinstance(m, Chunk) for m in bench.posted) == 1


async def test_it_keeps_its_pace():
    bench = Bench(pace=20)
    await bench.wait(Loaded)
    began = time.monotonic()
    await bench.answer(bench.ask(completion("x", options={"num_predict": 6})))
    assert time.monotonic() - began >= 6 / 20 - 0.06


async def test_a_prompt_over_the_context_is_cut_or_refused():
    bench = Bench(context=10)
    long = "0123456789" * 10
    assert (await bench.answer(bench.ask(completion(long))))[0] == long[: 9 * LETTERS]
    asked = bench.ask(completion(long), context_length=5)
    assert (await bench.answer(asked))[0] == long[: 4 * LETTERS]
    _, end, _ = await bench.answer(bench.ask(completion(long, truncate=False)))
    assert end.failure.code is Code.INVALID_REQUEST
    assert "25 tokens, but the context holds 10" in end.failure.message


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        (completion("x", constraint=Constraint(Grammar.JSON)), Code.INVALID_REQUEST, "format"),
        (EmbedBody(["x"]), Code.INVALID_REQUEST, "no vectors"),
        (b"\xc1", Code.INTERNAL, "damaged"),
        (encode(EmbedBody(["x"])), Code.INTERNAL, "damaged"),
    ],
)
async def test_what_it_cannot_do_ends_with_one_clear_error(body: Any, code: Code, word: str):
    bench = Bench()
    text, end, released = await bench.answer(bench.ask(body))
    assert text == ""
    assert isinstance(end, Failed)
    assert end.failure.code is code
    assert word in end.failure.message
    assert (released.outcome, released.tokens) == (Outcome.FAILED, 0)


async def test_a_request_ends_at_its_deadline():
    bench = Bench()
    body = completion("x", options={"num_predict": 10**9})
    _, end, released = await bench.answer(bench.ask(body, deadline=time.time() + 0.05))
    assert end.failure.code is Code.DEADLINE_EXCEEDED
    assert released.outcome is Outcome.FAILED
