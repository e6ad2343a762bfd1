"""Whatever arrives, it is a message or it is `MalformedMessage`, soon and in little memory."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from datetime import UTC
from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pronk.protocol.codec import MAX_HEADER, MalformedMessage, decode, encode, join, split
from pronk.protocol.messages import MESSAGES
from pronk.protocol.messages.generation import (
    ChatMessage,
    Chunk,
    Chunks,
    GenerateBody,
    Kind,
    LogitBias,
    PositionLogprobs,
    SamplingOptions,
    TokenLogprob,
)
from pronk.protocol.messages.library import ModelDetails, ModelList, ModelSummary
from support.wire import messages

TOKEN = TokenLogprob(b"", 0.0)
SUMMARY = ModelSummary("m", "a" * 64, 1, 1.0, ModelDetails("", "", "", [], "", ""))

SECONDS = 20.0
"""Far more than any message may take, on a machine with other things to do, and far less than what
this bounds once took."""

BYTES = 40 * MAX_HEADER
"""What the largest message may take in memory while it is read."""

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8))
    | st.datetimes(timezones=st.just(UTC))
)
VALUES = st.recursive(
    SCALARS,
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(st.text(max_size=8) | st.binary(max_size=8), values, max_size=4)
    ),
    max_leaves=20,
)


@given(messages())
def test_every_valid_message_comes_back_as_it_was_sent(message: Any):
    assert split(join(message, b"body")) == (message, b"body")


@given(st.sampled_from(sorted(MESSAGES)), VALUES)
@example("Cancel", {b"\xff": 1})
@example("Cancel", msgpack.Timestamp(0))
def test_no_fields_at_all_break_the_decoder(name: str, fields: Any):
    with contextlib.suppress(MalformedMessage):
        decode(msgpack.packb([name, fields], datetime=True))


@given(messages(), st.data())
def test_no_value_in_place_of_another_breaks_the_decoder(message: Any, data: st.DataObject):
    name, fields = msgpack.unpackb(encode(message))
    place: Any = fields
    while True:  # down to some value, at any depth
        if not place:
            return
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or data.draw(st.booleans()):
            place[key] = data.draw(VALUES)
            break
        place = place[key]
    with contextlib.suppress(MalformedMessage):
        decode(msgpack.packb([name, fields], datetime=True))


def array(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


ROOM = MAX_HEADER - 100
CHUNKS = b"\x92\xa6Chunks\x81\xa6chunks"
HOSTILE = {
    "a list of empty lists": CHUNKS + array(ROOM) + b"\x90" * ROOM,
    "a list of empty maps": CHUNKS + array(ROOM) + b"\x80" * ROOM,
    "a list of nothings": CHUNKS + array(ROOM) + b"\xc0" * ROOM,
    "a list of numbers": CHUNKS + array(ROOM // 9) + (b"\xcf" + b"\xff" * 8) * (ROOM // 9),
    "deep lists": CHUNKS + b"\x91" * ROOM,
    "deep maps": CHUNKS + b"\x81\xa1a" * (ROOM // 3),
    "a length that lies": CHUNKS + array(2**32 - 1),
    "a text that lies": b"\x92\xdb\xff\xff\xff\xff",
    "an extension that lies": b"\x92\xc9\xff\xff\xff\xff\x01",
    "one key again and again": b"\x92\xa6Chunks\xdf"
    + (ROOM // 3).to_bytes(4, "big")
    + b"\xa1a\xc0" * (ROOM // 3),
    "keys that are no text": b"\x92\xaaModelShown\x81\xaamodel_info\xdf"
    + (ROOM // 4).to_bytes(4, "big")
    + b"".join(b"\xc4\x01%c\xc0" % (128 + n % 128) for n in range(ROOM // 4)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_made_to_be_expensive_is_refused_cheaply(data: bytes):
    assert len(data) <= MAX_HEADER
    began = time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BYTES
    assert time.thread_time() - began < SECONDS


@pytest.mark.parametrize(
    "message",
    [
        GenerateBody(Kind.CHAT, SamplingOptions(), [ChatMessage("user", "")] * 100_000),
        GenerateBody(
            Kind.CHAT, SamplingOptions(logit_bias=[LogitBias(1, -1.0), LogitBias(2, None)] * 50_000)
        ),
        Chunks([Chunk("1" * 32, 1, 0, [], "", [PositionLogprobs(TOKEN, [TOKEN])])] * 20_000),
        ModelList("1" * 32, [SUMMARY] * 20_000),
    ],
    ids=["a chat", "biases", "chunks", "models"],
)
def test_what_is_large_and_means_something_is_read(message: Any):
    data = encode(message)
    assert len(data) > 2**20
    assert decode(data) == message


def test_a_senders_own_text_is_cut_and_shown_in_ascii_in_what_goes_to_the_log():
    key = "\n2026 INFO all is well\x1b[2J" * 10_000
    shown = {"model_info": {key: 1}, "call": 3}
    with pytest.raises(MalformedMessage) as refused:
        decode(msgpack.packb(["Cancel", {"request": key}]))
    assert len(str(refused.value)) < 600
    with pytest.raises(MalformedMessage) as refused:
        decode(msgpack.packb(["ModelShown", shown]))
    assert len(str(refused.value)) < 600
    assert str(refused.value).isprintable()
