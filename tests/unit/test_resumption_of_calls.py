"""An answer of thinking, text and calls whose workers die one after the other.

As in `test_resumption`, both ends are the real ones, and what is between them is lost anywhere:
here also between two chunks of one token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pronk.frontend.stream import Delivery, Stream, Thinking, Verdict
from pronk.protocol.codec import decode, encode
from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    Chunks,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    PositionLogprobs,
    SamplingOptions,
    TokenLogprob,
)
from pronk.workers.inference.parsed_answer import ParsedAnswer
from pronk.workers.inference.stop import StopMatcher
from support.parsing import READING, MarkedParser

WORDS = [
    *("<t>", "</t>", "<c>", "</c>", 'f:{"a":"é"}', "a", "🦙", "<", "EN", "D", "</t>b<t>c"),
    *("g:{}</c>h<c>", "\n"),
]
END = len(WORDS)
HEADER = Generate(
    "a" * 32, 1, "demo:latest", "d" * 64, Caller(), "f" * 16, "ipc:///tmp/x", seed=1, cost=1
)


class Vocabulary:
    """Words, of which the first four are control tokens, and one token that ends an answer."""

    def piece(self, token: int) -> bytes:
        return WORDS[token].encode() if 4 <= token < END else b""

    def written(self, token: int) -> bytes:
        return WORDS[token].encode() if token < END else b"<end>"

    def ends_generation(self, token: int) -> bool:
        return token == END


@dataclass
class Seen:
    """What a client has of an answer in the end."""

    units: list[Any] = field(default_factory=list[Any])
    """Characters with their kind, and calls."""
    told: list[bytes] = field(default_factory=list[bytes])
    reason: FinishReason | None = None
    eval_count: int = 0

    def take(self, delivery: Delivery) -> None:
        for piece in delivery.pieces:
            match piece:
                case str():
                    self.units += list(piece)
                case Thinking(text):
                    assert delivery.mixed
                    self.units += [("thinking", letter) for letter in text]
                case _:
                    assert delivery.mixed
                    self.units += [(call.name, call.arguments) for call in piece]
        assert delivery.logprobs is None or len(delivery.logprobs) == len(delivery.pieces)
        for positions in delivery.logprobs or []:
            self.told += [position.chosen.piece for position in positions]
        if delivery.finished:
            self.reason, self.eval_count = delivery.finished.reason, delivery.finished.eval_count


def attempt(stream: Stream, script: list[int], limit: int) -> Iterator[Chunk | Finished]:
    """What a worker says that is given the stream's body, and whose model says `script`."""
    body: GenerateBody = decode(stream.body)
    answer = ParsedAnswer(
        Vocabulary(),
        MarkedParser(),
        READING,
        limit=limit,
        stops=StopMatcher(["END"]),
        before=body.tokens,
        released=body.released,
        logprobs=body.logprobs is not None,
    )
    key = stream.key
    yield from answer.pending_chunks(key)
    for token in script[len(body.tokens) :]:
        if answer.reason:
            break
        told = None
        if body.logprobs is not None:
            piece = Vocabulary().piece(token)
            told = [] if token == END else [PositionLogprobs(TokenLogprob(piece, -1.0), [])]
        yield from answer.chunks(key, token, told)
    assert answer.reason
    yield Finished(*key, answer.reason, len(answer.tokens), 1, 5, 1)


async def watched(script: list[int], limit: int, deaths: list[int], logprobs: int | None) -> Seen:
    """An answer whose n-th attempt dies after `deaths[n]` messages, read now and then."""
    body = encode(GenerateBody(Kind.CHAT, SamplingOptions(), logprobs=logprobs))
    stream = Stream(HEADER, body, 1_000_000, lambda: None)
    seen = Seen()
    while not stream.finished_at:
        stream.started("w" * 16)
        alive = deaths.pop(0) if deaths else None
        for count, message in enumerate(attempt(stream, script, limit)):
            if count == alive:
                assert stream.try_again(died=True)
                break
            if isinstance(message, Finished):
                assert stream.finish(message) is Verdict.GOOD
                break
            (chunk,) = decode(encode(Chunks([message]))).chunks
            assert stream.add(chunk) is Verdict.GOOD
            if len(stream._pieces) > 2:
                seen.take(await stream.take())
    seen.take(await stream.take())
    return seen


@given(
    st.lists(st.integers(0, END - 1), max_size=20),
    st.lists(st.integers(0, 8), max_size=6),
    st.integers(1, 25),
    st.sampled_from([None, 0]),
)
def test_nobody_can_tell_that_workers_died(
    script: list[int], deaths: list[int], limit: int, logprobs: int | None
) -> None:
    script = [*script, END]
    undisturbed = asyncio.run(watched(script, limit, [], logprobs))
    assert asyncio.run(watched(script, limit, deaths, logprobs)) == undisturbed
    if logprobs is not None:
        words = [WORDS[token] for token in script[: undisturbed.eval_count] if token != END]
        text = "".join(words)
        shown = text.find("END") if "END" in text else len(text)
        begins = [0, *accumulate(map(len, words))]
        told = [word.encode() for word, at in zip(words, begins, strict=False) if at < shown]
        assert undisturbed.told == told
