"""A worker reads the texts of its model, and refuses what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import ChatMessage
from pronk.protocol.messages.library import ModelPart, PartKind
from pronk.workers.conversation.opening import Opening
from pronk.workers.parts import MAX_TEXT, NO_PARTS, Parts, read_parts


class Shelf:
    """Parts as files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.parts: list[ModelPart] = []

    def add(self, kind: PartKind, content: str | bytes) -> Path:
        path = self.root / str(len(self.parts))
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.parts.append(ModelPart(kind, str(path), "0" * 64, path.stat().st_size))
        return path

    def refusal(self) -> str:
        with pytest.raises(PronkError) as caught:
            read_parts(self.parts)
        assert caught.value.code is Code.LOAD_FAILED
        assert str(self.root) not in caught.value.message
        return caught.value.message


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_texts_are_read_and_adapters_are_named(shelf: Shelf) -> None:
    shelf.add(PartKind.TEMPLATE, "{{ messages }}")
    first = shelf.add(PartKind.ADAPTER, "GGUF")
    shelf.add(PartKind.SYSTEM, "Be kïnd.\n")
    projector = shelf.add(PartKind.PROJECTOR, "GGUF")
    talk = [{"role": "user", "content": "q"}, {"role": "Assistant", "content": "a", "images": []}]
    shelf.add(PartKind.MESSAGES, json.dumps(talk))
    second = shelf.add(PartKind.ADAPTER, "GGUF")
    examples = (ChatMessage("user", "q"), ChatMessage("assistant", "a"))
    assert read_parts(shelf.parts) == Parts(
        Opening("Be kïnd.\n", examples), "{{ messages }}", (first, second), (projector,)
    )


def test_there_may_be_nothing(shelf: Shelf) -> None:
    assert read_parts([]) == NO_PARTS
    for kind in (PartKind.TEMPLATE, PartKind.SYSTEM, PartKind.MESSAGES):
        shelf.add(kind, "")
    assert read_parts(shelf.parts) == NO_PARTS


def test_the_last_text_of_a_kind_counts(shelf: Shelf) -> None:
    shelf.add(PartKind.SYSTEM, "old")
    shelf.add(PartKind.SYSTEM, "new")
    assert read_parts(shelf.parts).opening.system == "new"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "is not valid JSON"),
        ("{}", "is no list"),
        ("7", "is no list"),
        (json.dumps([{"role": "user", "content": ""}] * 16_385), "is no list of at most 16384"),
        ('[{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}]', "MESSAGE 2"),
        ('[{"role": "user"}]', "MESSAGE 1 needs a role (system, user, assistant, tool)"),
        ('[{"role": "user", "content": 7}]', "MESSAGE 1"),
        ('[{"role": ["user"], "content": "x"}]', "MESSAGE 1"),
        ('["user"]', "MESSAGE 1"),
        ("[" * 100_000, "is not valid JSON"),
    ],
)
def test_messages_that_are_none_are_refused(shelf: Shelf, text: str, reason: str) -> None:
    shelf.add(PartKind.MESSAGES, text)
    assert reason in shelf.refusal()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (PartKind.TEMPLATE, "its TEMPLATE"),
        (PartKind.SYSTEM, "its SYSTEM"),
        (PartKind.MESSAGES, "its list of MESSAGEs"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(shelf: Shelf, kind: PartKind, name: str) -> None:
    path = shelf.add(kind, b" " * (MAX_TEXT + 1))
    assert shelf.refusal() == f"{name} is larger than 2048 KiB"
    path.unlink()
    assert shelf.refusal() == f"{name} is missing"
    os.mkfifo(path)
    assert shelf.refusal() == f"{name} is not a regular file"


def test_bytes_that_are_no_text_do_no_harm(shelf: Shelf) -> None:
    shelf.add(PartKind.SYSTEM, b"a\xffb")
    assert read_parts(shelf.parts).opening.system == "a\N{REPLACEMENT CHARACTER}b"
