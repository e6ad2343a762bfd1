"""Images stand where their message, or nobody, says, and survive any template."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass

import pytest

from pronk.protocol.messages.generation import (
    ChatMessage,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.workers.conversation.fitting import Fitting
from pronk.workers.conversation.infill import Infill
from pronk.workers.conversation.markers import Markers, SeeingTokenizer
from pronk.workers.inference.rows import image_rows

A, B, C = b"first", b"second", b"third"


@dataclass
class Letters:
    """A vocabulary with a token for each character."""

    size: int = 2**21
    bos: int | None = None
    adds_bos: bool = False
    bos_text: str = ""
    eos_text: str = ""
    infill: Infill | None = None
    longest_piece: int = 4

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        return list(map(ord, text))


def asked(prompt: str = "", *images: bytes, **fields: object) -> GenerateBody:
    body = {"kind": Kind.COMPLETION, "options": SamplingOptions(), **fields}
    return GenerateBody(prompt=prompt, images=list(images), **body)  # type: ignore[arg-type]


def shown(markers: Markers, text: str) -> str:
    """The text with the images' names in the place of their markers."""
    parts = markers.split(text)
    return "".join(
        f"<{markers.images[part].decode()}>" if place % 2 else part
        for place, part in enumerate(parts)
    )


@pytest.mark.parametrize(
    ("prompt", "images", "expected"),
    [
        ("What?", [A], "<first>What?"),
        ("What?", [A, B], "<first><second>What?"),
        ("Is [img] like [img]?", [A, B], "Is <first> like <second>?"),
        ("Is [img-1] like [img-0]?", [A, B], "Is <second> like <first>?"),
        ("[img] and more", [A, B, C], "<second><third><first> and more"),
        ("[img][img]", [A], "<first>[img]"),
        ("[img-7] [img-0][img-0]", [A], "[img-7] <first>[img-0]"),
        ("[img] [img-0]", [], "[img] [img-0]"),
        (f"[img-{9 * '9'}9]", [A], f"<first>[img-{9 * '9'}9]"),
        ("", [A], "<first>"),
        ("same", [A, A], "<first><first>same"),
    ],
)
def test_images_stand_before_the_text_or_where_it_says(
    prompt: str, images: list[bytes], expected: str
):
    markers = Markers()
    body = markers.with_markers(asked(prompt, *images))
    assert shown(markers, body.prompt) == expected
    assert body.images == []


def test_every_message_has_its_own():
    markers = Markers()
    messages = [
        ChatMessage("user", "[img] this", images=[A]),
        ChatMessage("assistant", "[img] is nice"),
        ChatMessage("tool", "a plot", images=[B]),
    ]
    body = markers.with_markers(asked(kind=Kind.CHAT, messages=messages))
    texts = [shown(markers, message.content) for message in body.messages]
    assert texts == ["<first> this", "[img] is nice", "<second>a plot"]
    assert [message.role for message in body.messages] == ["user", "assistant", "tool"]


@pytest.mark.parametrize(
    "write", [str.strip, json.dumps, html.escape, repr, lambda text: text + text]
)
def test_they_survive_what_templates_do_to_texts(write):
    markers = Markers()
    body = markers.with_markers(asked(" <é> ", A))
    assert "<first>" in shown(markers, write(body.prompt))


def test_nobody_can_write_the_marker_of_another_request():
    one, other = Markers(), Markers()
    marked = one.with_markers(asked("", A)).prompt
    body = other.with_markers(asked(marked, B))
    assert shown(other, body.prompt) == f"<second>{marked}"


def seeing(markers: Markers, rows: int = 9) -> SeeingTokenizer:
    numbers = {
        marker: [1, *image_rows(place, rows), 2] for place, marker in enumerate(markers.images)
    }
    return SeeingTokenizer(Letters(), markers, numbers)


def test_markers_become_what_stands_for_their_images():
    markers = Markers()
    body = markers.with_markers(asked("a[img]b", A))
    tokenizer = seeing(markers, 2)
    expected = [ord("a"), 1, *image_rows(0, 2), 2, ord("b")]
    for special in (True, False):
        assert tokenizer.tokenize(body.prompt, special=special) == expected
    assert tokenizer.size == Letters().size
    assert tokenizer.longest_piece == len(next(iter(markers.images)))


@pytest.mark.parametrize("num_keep", [0, 1, 4, 8, 14, 20])
@pytest.mark.parametrize("length", [24, 25, 26, 30, 33, 36])
def test_a_prompt_that_is_cut_loses_images_whole(num_keep: int, length: int):
    markers = Markers()
    asking = asked("ab[img]cd[img]ef", A, B, options=SamplingOptions(num_keep=num_keep))
    body = markers.with_markers(asking)
    whole = seeing(markers).tokenize(body.prompt)
    fitting = Fitting(seeing(markers), length, body)  # type: ignore[arg-type]
    cut = fitting.cut(body.prompt)
    assert len(cut) < length
    for key in (0, 1):
        rows = [number for number in cut if number in image_rows(key, 9)]
        assert rows in ([], image_rows(key, 9))
    pairs = enumerate(zip(cut, whole, strict=False))
    kept = next((i for i, (one, other) in pairs if one != other), len(cut))
    assert cut[:kept] + whole[len(whole) - (len(cut) - kept) :] == cut
