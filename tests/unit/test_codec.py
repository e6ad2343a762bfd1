"""What arrives is one of our messages, checked field by field, or it is refused."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pronk.protocol.chunks import named_chunks, read_chunks
from pronk.protocol.codec import MAX_HEADER, MalformedMessage, decode, encode, join, split
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages import MESSAGES
from pronk.protocol.messages.failure import Failure
from pronk.protocol.messages.fields import MAX_DEPTH
from pronk.protocol.messages.fleet import Hello, ProcessIdentity, RequestReport, Role
from pronk.protocol.messages.generation import (
    Caller,
    ChatMessage,
    Chunk,
    Chunks,
    Failed,
    Generate,
    GenerateBody,
    Kind,
    PositionLogprobs,
    SamplingOptions,
    TokenLogprob,
    ToolCall,
    ToolChoice,
)

REQUEST = "0123456789abcdef" * 2
INCARNATION = "0123456789abcdef"
EXAMPLES = [
    Hello(
        1,
        Role.FRONTEND,
        INCARNATION,
        ProcessIdentity(1, 2, "pid:[3]", "boot"),
        "ipc:///tmp/x.sock",
        requests=[RequestReport(REQUEST, 1, INCARNATION)],
    ),
    Generate(
        REQUEST,
        1,
        "demo:latest",
        "ab" * 32,
        Caller("somebody"),
        INCARNATION,
        "ipc:///tmp/x.sock",
        seed=2**32 - 1,
        cost=10,
        keep_alive=-1,
        prefix=[b"\x00\xff"],
    ),
    GenerateBody(
        Kind.CHAT,
        SamplingOptions(temperature=0, stop=["\n"]),
        [
            ChatMessage("user", "Grüße, 🦙", images=[b"\x89PNG"]),
            ChatMessage("assistant", "", "hm", [ToolCall("clock", {"zone": None}, "c1")]),
            ChatMessage("tool", "noon", tool_name="clock", tool_call_id="c1"),
        ],
        tools=[{"type": "function", "function": {"name": "clock"}}],
        tool_choice=ToolChoice.NAMED,
        tool="clock",
        think="high",
        reasoning_budget=100,
        images=[b""],
    ),
    Chunks([Chunk(REQUEST, 2, 7, [1, 2, 3], "text"), Chunk(REQUEST, 1, 0, [], "")]),
    Failed(REQUEST, 1, Failure(Code.QUEUE_FULL, "full", 1.5)),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_sent(message: object):
    assert decode(encode(message)) == message


def test_every_message_has_a_name_of_its_own():
    assert len({id(message) for message in MESSAGES.values()}) == len(MESSAGES)
    assert all(name == message.__name__ for name, message in MESSAGES.items())


def envelope(name: str, **fields: object) -> bytes:
    return msgpack.packb([name, fields])


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        b"\x92",
        msgpack.packb({"type": "Cancel"}),
        msgpack.packb(["Cancel"]),
        msgpack.packb(["Cancel", []]),
        msgpack.packb(["os.system", {"command": "true"}]),
        envelope("Cancel", request=REQUEST),
        envelope("Cancel", request=REQUEST, attempt="1"),
        envelope("Cancel", request=REQUEST, attempt=True),
        envelope("Cancel", request=REQUEST, attempt=0),
        envelope("Cancel", request="../../etc", attempt=1),
        envelope("Chunks", chunks=[{"request": REQUEST}]),
        envelope("Chunks", chunks=[[REQUEST]]),
        envelope("Chunks", chunks=[["../../etc", 1, 0, [], "", None]]),
        envelope("Chunks", chunks=None),
        envelope("Chunks", wrong=[]),
        envelope("PeerHeartbeat", steps=2**64 - 1),
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_what_is_no_message_is_refused(frame: bytes):
    with pytest.raises(MalformedMessage):
        decode(frame)


def test_a_frame_over_its_limit_is_refused_before_it_is_parsed():
    with pytest.raises(MalformedMessage, match="over the limit"):
        decode(bytes(MAX_HEADER + 1))
    with pytest.raises(MalformedMessage, match="over the limit of 3"):
        decode(encode(EXAMPLES[0]), limit=3)


@given(st.sampled_from(EXAMPLES), st.binary(max_size=50))
def test_a_body_travels_behind_its_message_in_one_frame(message: object, body: bytes):
    assert split(join(message, body)) == (message, body)
    assert split(join(message)) == (message, b"")


@given(st.binary(max_size=400))
def test_no_bytes_at_all_break_the_splitter(frame: bytes):
    with contextlib.suppress(MalformedMessage):
        split(frame)


@pytest.mark.parametrize(
    "frame", [b"", b"\0\0", bytes(4), join(EXAMPLES[0])[:-1], b"\xff\xff\xff\xff" + bytes(100)]
)
def test_a_frame_that_does_not_hold_what_it_says_is_refused(frame: bytes):
    with pytest.raises(MalformedMessage, match="do not hold"):
        split(frame)


def test_unknown_fields_are_ignored_so_that_newer_peers_may_add_some():
    frame = envelope("Cancel", request=REQUEST, attempt=1, reason="new in version 9")
    assert decode(frame).attempt == 1


def test_only_messages_are_encoded():
    with pytest.raises(TypeError):
        encode(object())


@given(st.binary(max_size=400))
def test_no_bytes_at_all_break_the_decoder(frame: bytes):
    with contextlib.suppress(MalformedMessage):
        decode(frame)


@given(st.sampled_from(EXAMPLES), st.data())
def test_no_mutation_of_a_message_breaks_the_decoder(message: object, data: st.DataObject):
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedMessage):
        decode(bytes(frame))


def test_an_error_survives_the_wire():
    error = PronkError(Code.NOT_FOUND, "no such model", retry_after=2)
    copy = decode(encode(Failed(REQUEST, 1, Failure.of(error)))).failure.error()
    assert (copy.code, copy.message, copy.retry_after) == (error.code, error.message, 2)


loose_chunks = st.tuples(
    st.just(REQUEST) | st.text(max_size=33),
    st.integers(0, 1001) | st.booleans() | st.none(),
    st.integers(-1, 3) | st.just(2**63) | st.just(1.0),
    st.lists(st.integers(-1, 3) | st.just(2**31) | st.booleans(), max_size=3) | st.none(),
    st.text(max_size=3) | st.binary(max_size=3),
    st.none()
    | st.lists(
        st.just({"chosen": {"piece": b"x", "logprob": -0.5}, "top": []}) | st.just({}), max_size=2
    ),
    st.text(max_size=3) | st.just(b"x") | st.none(),
    st.none() | st.lists(st.just({"name": "n", "arguments": {}}) | st.just({}), max_size=2),
    st.none() | st.integers(-1, 3),
    st.just("new in version 9"),
)
loose_lists = st.lists(
    st.builds(lambda chunk, end: list(chunk[:end]), loose_chunks, st.integers(4, 10))
    | st.dictionaries(st.sampled_from(["request", "text"]), st.text(max_size=2))
    | st.none(),
    max_size=3,
)
text_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
sound_chunks = st.builds(
    Chunk,
    st.just(REQUEST),
    st.integers(1, 1000),
    st.integers(0, 2**63 - 1),
    st.lists(st.integers(0, 2**31 - 1), max_size=3),
    text_values,
    st.none(),
    st.just("") | text_values,
)


@given(st.lists(sound_chunks, max_size=4))
def test_chunks_are_read_by_hand_as_they_were_written(chunks: list[Chunk]):
    fields = msgpack.unpackb(encode(Chunks(chunks)))[1]
    assert read_chunks(fields) == Chunks(chunks) == decode(encode(Chunks(chunks)))


@given(
    loose_lists.map(lambda chunks: {"chunks": chunks})
    | st.dictionaries(st.just("chunks") | st.text(max_size=2), loose_lists)
    | st.recursive(st.none() | st.integers() | st.text(), lambda one: st.lists(one, max_size=2))
)
def test_what_is_read_by_hand_is_what_the_checked_way_reads(fields: object):
    by_hand = read_chunks(fields)
    try:
        checked = TypeAdapter(Chunks).validate_python(named_chunks(fields))
    except ValidationError:
        checked = None
    assert by_hand is None or by_hand == checked
    plain = checked and all(chunk.logprobs is None for chunk in checked.chunks)
    exact = plain and all(len(chunk) in (6, 7) for chunk in fields["chunks"])  # type: ignore[index]
    assert by_hand is not None or not exact or len(fields) > 1  # type: ignore[arg-type]


def test_what_newer_peers_add_to_a_chunk_is_ignored():
    chunk = [REQUEST, 1, 0, [1], "x", None, "", None, None, "new in version 9"]
    assert decode(envelope("Chunks", chunks=[chunk])) == Chunks([Chunk(REQUEST, 1, 0, [1], "x")])


def test_chunks_with_log_probabilities_come_back_as_they_were_sent():
    told = [PositionLogprobs(TokenLogprob(b"x", -0.5), [TokenLogprob(b"y", -1.5)])]
    message = Chunks([Chunk(REQUEST, 1, 0, [1], "x", told), Chunk(REQUEST, 1, 1, [2], "y")])
    assert decode(encode(message)) == message


CALL = ToolCall("get weather", {"städte": ["Köln", None], "days": 2, "deep": {"a": [1.5]}}, "c1")


def test_what_a_chunk_does_not_say_takes_no_room():
    plain = Chunk(REQUEST, 1, 0, [1], "x")
    lengths = {
        6: plain,
        7: replace(plain, text="", thinking="hm"),
        9: replace(plain, calls=[CALL]),
    }
    for length, chunk in lengths.items():
        fields = msgpack.unpackb(encode(Chunks([chunk])))[1]
        assert [len(each) for each in fields["chunks"]] == [length]
        assert decode(encode(Chunks([plain, chunk, plain]))) == Chunks([plain, chunk, plain])


def test_calls_and_what_is_told_of_come_back_as_they_were_sent():
    told = [PositionLogprobs(TokenLogprob(b"x", -0.5), [])]
    message = Chunks(
        [
            Chunk(REQUEST, 1, 0, [1, 2], "", told, "hm", [CALL, ToolCall("f", {})], 2),
            Chunk(REQUEST, 1, 2, [3], "x", [], "", None, 0),
        ]
    )
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "arguments",
    [
        None,
        [],
        {"a": b"bytes"},
        {"a": [float("nan")]},
        {"a": msgpack.ExtType(1, b"")},
        {1: "a number's name"},
    ],
)
def test_arguments_are_what_json_can_say(arguments: object):
    call = {"name": "f", "arguments": arguments}
    with pytest.raises(MalformedMessage):
        decode(envelope("Chunks", chunks=[[REQUEST, 1, 0, [1], "", None, "", [call]]]))


def test_json_has_a_depth():
    def nested(depth: int) -> GenerateBody:
        tool: dict[str, object] = {}
        for _ in range(depth - 1):
            tool = {"a": tool}
        return GenerateBody(Kind.CHAT, SamplingOptions(), tools=[tool])

    assert decode(encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(MalformedMessage, match="nested deeper"):
        decode(encode(nested(MAX_DEPTH + 2)))


def test_schemas_of_next_to_nothing_are_read():
    tools = [{"p": {f"{n:x}": {} for n in range(20_000)}, "d": "x" * 2**16}]
    body = GenerateBody(Kind.CHAT, SamplingOptions(), tools=tools)
    assert decode(encode(body)) == body
