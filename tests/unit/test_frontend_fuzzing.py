"""Valid messages in an order that makes no sense, from workers and scheduler: the relay goes on."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pronk.frontend.exchange import Phase
from pronk.frontend.relay import Relay
from pronk.frontend.stream import Stream
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages import MESSAGES
from pronk.protocol.messages.embedding import Embed
from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    Chunks,
    Finished,
    FinishReason,
    Generate,
    Started,
)
from pronk.protocol.settings import Settings
from pronk.protocol.state import StateDirectory
from support.stage import PATIENCE
from support.wire import DIGESTS, PEERS, REQUESTS, message

ANSWERS = ("Started", "Chunks", "Chunks", "Finished", "Embedded", "Failed", "Lost")
FROM_WORKER = st.tuples(
    st.just("worker"),
    st.sampled_from(PEERS[:3]),
    st.one_of([message(name) for name in ANSWERS]) | st.one_of(list(map(message, MESSAGES))),
    st.binary(max_size=16),
)
FROM_SCHEDULER = st.tuples(
    st.just("scheduler"),
    st.just(""),
    st.one_of([message(name) for name in ("Failed", "Lost", "SchedulerHeartbeat", "WhoAreYou")])
    | st.one_of([message(name) for name in MESSAGES if name != "Refused"]),
    st.binary(max_size=4),
)
OWN = st.tuples(st.sampled_from(["submit", "submit", "embed", "abandon", "beat"]))
STEPS = st.lists(st.one_of(FROM_WORKER, FROM_WORKER, FROM_SCHEDULER, OWN), max_size=40)


def generate(relay: Relay, request: str) -> Generate:
    return Generate(
        request, 1, "a", DIGESTS[0], Caller(), relay.incarnation, relay.endpoint, seed=1, cost=1
    )


async def play(steps: list[Any], directory: Path) -> None:
    relay = Relay(Settings(state=directory, max_stream_buffer=300))
    begun: list[Any] = []
    free = list(REQUESTS)
    try:
        for kind, *details in steps:
            match kind:
                case "submit" if free:
                    begun.append(relay.submit(generate(relay, free.pop()), b"body"))
                case "embed" if free:
                    common = (free.pop(), 1, "a", DIGESTS[0], Caller(), relay.incarnation)
                    header = Embed(*common, relay.endpoint, cost=1)
                    begun.append(relay.submit_embed(header, b"body"))
                case "abandon" if begun:
                    relay.abandon(begun[0])
                case "beat":
                    relay._beat()
                case "worker":
                    relay._from_worker(*details)
                case "scheduler":
                    relay._link._received(*details[1:])
                case _:
                    pass
            for exchange in begun:
                ended = exchange.phase is Phase.ENDED
                assert ended is (relay._exchanges.get(exchange.header.request) is not exchange)
        await undisturbed(relay)
        relay.end_all(PronkError(Code.UNAVAILABLE, "the end"))
        assert all(exchange.phase is Phase.ENDED for exchange in begun)
        for exchange in begun:
            await to_the_end(exchange)
    finally:
        relay.close()


async def undisturbed(relay: Relay) -> None:
    """A request of which nobody has said anything is answered as ever."""
    request, worker = "f" * 32, PEERS[0]
    stream = relay.submit(generate(relay, request), b"body")
    relay._from_worker(worker, Started(request, 1, worker), b"")
    relay._from_worker(worker, Chunks([Chunk(request, 1, 0, [7], "text")]), b"")
    relay._from_worker(worker, Finished(request, 1, FinishReason.STOP, 1, 1, 1, 1), b"")
    async with asyncio.timeout(PATIENCE):
        delivery = await stream.take()
    assert (delivery.pieces, delivery.finished is not None) == (["text"], True)


async def to_the_end(exchange: Any) -> None:
    """Nobody waits for ever: there is an end, or an error."""
    async with asyncio.timeout(PATIENCE):
        try:
            while isinstance(exchange, Stream):
                if (await exchange.take()).finished:
                    return
            await exchange.take()
        except PronkError:
            pass


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(STEPS)
def test_no_order_of_messages_stops_the_relay(caplog: pytest.LogCaptureFixture, steps: list[Any]):
    caplog.clear()
    directory = Path(tempfile.mkdtemp(prefix="pronk-", dir="/tmp"))
    try:
        StateDirectory(directory).prepare()
        asyncio.run(play(steps, directory))
    finally:
        shutil.rmtree(directory)
    faults = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert not faults, faults[0].getMessage()
