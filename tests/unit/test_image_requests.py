"""What a request says of its images, and which of them are refused."""

from __future__ import annotations

import time

import pytest

from pronk.protocol.codec import encode
from pronk.protocol.errors import PronkError
from pronk.protocol.messages.generation import (
    Caller,
    ChatMessage,
    Generate,
    GenerateBody,
    SamplingOptions,
)
from pronk.protocol.messages.generation import Kind as Ask
from pronk.workers.inference.projector import load_sight
from support.images import picture
from support.seeing import Seer
from support.vision_models import Kind, VisionModel, write_vision_model


@pytest.fixture(scope="module", params=list(Kind), ids=lambda kind: kind.value)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return write_vision_model(tmp_path_factory.mktemp("seeing"), request.param)


@pytest.fixture
def seer(model: VisionModel):
    seer = Seer(model)
    yield seer
    seer.bench.close()


def test_an_image_stands_before_the_text_of_its_message_or_where_that_says(seer: Seer):
    def prompt(content: str) -> list[int]:
        messages = [ChatMessage("user", content, images=[picture(1)])]
        return seer.ask("", kind=Ask.CHAT, raw=False, messages=messages).prepared.prompt

    front, placed, inside = prompt("Look"), prompt("[img]Look"), prompt("Lo[img]ok")
    assert front == placed
    assert sorted(front) == sorted(inside)
    assert front != inside


def test_nobody_can_write_an_image(seer: Seer):
    run = seer.ask("[img-0] <__media__> <image>")
    assert all(number >= 0 for number in run.prepared.prompt)


def test_a_context_that_is_returned_has_the_tokens_alone(seer: Seer):
    run = seer.ask("Look: [img] now", picture(1), return_context=True)
    context = run.prepared.context()
    assert context
    assert all(number >= 0 for number in context)
    assert any(number < 0 for number in run.prepared.prompt)


def test_a_conversation_that_is_too_long_loses_images_with_their_messages(seer: Seer):
    messages = [
        ChatMessage("user", "An old question about this. " * 8, images=[picture(1)]),
        ChatMessage("assistant", "An answer. " * 8),
        ChatMessage("user", "A new one", images=[picture(2)]),
    ]
    run = seer.ask("", kind=Ask.CHAT, raw=False, messages=messages, context_length=160)
    new = seer.ask("", kind=Ask.CHAT, raw=False, messages=messages[2:])
    assert run.prepared.prompt == new.prepared.prompt
    with pytest.raises(PronkError, match="but the context holds 16"):
        seer.start("", kind=Ask.CHAT, raw=False, messages=messages, context_length=16)


def test_broken_images_and_blind_models_are_the_requests_fault(model: VisionModel, seer: Seer):
    with pytest.raises(PronkError, match="images: it is none of JPEG"):
        seer.start("[img]", b"no image")
    seer.bench.preparation.sight = None
    with pytest.raises(PronkError, match="does not support images"):
        seer.start("[img]", picture(1))


def test_a_model_without_a_projector_for_images_is_blind(seer: Seer):
    assert load_sight(seer.bench.model, [], 1) is None


def test_no_more_images_are_read_for_a_request_that_nobody_waits_for(seer: Seer):
    with pytest.raises(PronkError, match="took longer than it may"):
        seer.start("[img] ?", picture(1), deadline=time.time() - 1)
    body = GenerateBody(
        Ask.COMPLETION,
        SamplingOptions(),
        prompt="[img][img]",
        raw=True,
        images=[picture(1), picture(2)],
    )
    asked = Generate("0" * 32, 1, "m", "d" * 64, Caller(), "f" * 16, "ipc://x", 7, 1)
    calls = iter([True, True, True, False])
    with pytest.raises(PronkError, match="was cancelled"):
        seer.bench.preparation.prepare(asked, encode(body), lambda: next(calls))
    assert seer.sight.encoded == 1
