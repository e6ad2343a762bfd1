"""An answer whose workers die one after the other, from a worker's tokens to a client's text.

Both ends are the real ones: what a worker makes of tokens, and what a frontend makes of that. In
between attempts are lost anywhere, and the client must not be able to tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pronk.frontend.stream import Stream, Verdict
from pronk.protocol.codec import decode, encode
from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    PositionLogprobs,
    SamplingOptions,
    TokenLogprob,
)
from pronk.workers.inference.answer import Answer
from pronk.workers.inference.stop import StopMatcher

END = 256
STOPS = ("END", "ab€")
HEADER = Generate(
    "a" * 32, 1, "demo:latest", "d" * 64, Caller(), "f" * 16, "ipc:///tmp/x", seed=1, cost=1
)


class Bytes:
    """A vocabulary of bytes, and one token that ends an answer."""

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < END else b""

    def ends_generation(self, token: int) -> bool:
        return token == END


@dataclass
class Seen:
    """What a client has of an answer in the end."""

    text: str
    pieces_logprobs: list[tuple[str, bytes]]
    """Each token that was told of, with the text of the piece that it came with."""
    eval_count: int
    reason: FinishReason


def attempt(stream: Stream, script: list[int], limit: int) -> Iterator[Chunk | Finished]:
    """What a worker says that is given the stream's body, and whose model says `script`."""
    body: GenerateBody = decode(stream.body)
    answer = Answer(
        Bytes(),
        limit=limit,
        stops=StopMatcher(STOPS),
        before=body.tokens,
        released=body.released,
    )
    key = stream.key
    if answer.pending:
        yield Chunk(*key, len(body.tokens), [], answer.pending)
    for token in script[len(body.tokens) :]:
        if answer.reason:
            break
        index = len(answer.tokens)
        text = answer.accept(token)
        told = [] if token == END else [PositionLogprobs(TokenLogprob(bytes([token]), -1.0), [])]
        yield Chunk(*key, index, [token], text, told)
    assert answer.reason
    yield Finished(*key, answer.reason, len(answer.tokens), 1, 5, 1)


async def watched(script: list[int], limit: int, deaths: list[int]) -> Seen:
    """An answer whose n-th attempt dies after `deaths[n]` messages, read now and then."""
    body = encode(GenerateBody(Kind.CHAT, SamplingOptions(), logprobs=0))
    stream = Stream(HEADER, body, 1_000_000, lambda: None)
    pieces: list[str] = []
    told: list[tuple[str, bytes]] = []
    while True:
        stream.started("w" * 16)
        alive = deaths.pop(0) if deaths else None
        for count, message in enumerate(attempt(stream, script, limit)):
            if count == alive:
                assert stream.try_again(died=True)
                break
            if isinstance(message, Finished):
                assert stream.finish(message) is Verdict.GOOD
                break
            assert stream.add(message) is Verdict.GOOD
            if len(stream._pieces) > 2:
                await take(stream, pieces, told)
        else:
            raise AssertionError("an attempt has to end")
        if stream.finished_at:
            break
    finished = await take(stream, pieces, told)
    assert finished
    return Seen("".join(pieces), told, finished.eval_count, finished.reason)


async def take(stream: Stream, pieces: list[str], told: list[tuple[str, bytes]]) -> Finished | None:
    delivery = await stream.take()
    pieces += delivery.pieces
    for text, positions in zip(delivery.pieces, delivery.logprobs or [], strict=True):
        told += [(text, position.chosen.piece) for position in positions]
    return delivery.finished


@given(
    st.lists(st.sampled_from(list("ab€END\U0001f98c".encode())), max_size=30),
    st.lists(st.integers(0, 12), max_size=6),
    st.integers(1, 25),
)
def test_nobody_can_tell_that_workers_died(
    script: list[int], deaths: list[int], limit: int
) -> None:
    script = [*script, END]
    undisturbed = asyncio.run(watched(script, limit, []))
    assert asyncio.run(watched(script, limit, deaths)) == undisturbed
