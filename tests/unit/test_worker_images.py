"""A real worker process is shown images."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pronk.protocol.errors import Code
from pronk.protocol.messages.generation import (
    ChatMessage,
    Failed,
    Finished,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.protocol.messages.library import ModelPart, PartKind
from pronk.protocol.messages.placement import Loaded, LoadFailed, Outcome, Released
from support.images import picture
from support.vision_models import VisionModel, write_vision_model
from support.worker_stage import Stage, staged


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged() as stage:
        yield stage


def part(path: Path) -> ModelPart:
    return ModelPart(PartKind.PROJECTOR, str(path), "0" * 64, path.stat().st_size)


def shown(*images: bytes, **changes: object) -> GenerateBody:
    message = ChatMessage("user", "What is this?", images=list(images))
    options = SamplingOptions(temperature=0.0, num_predict=12)
    return GenerateBody(Kind.CHAT, options, messages=[message], **changes)  # type: ignore[arg-type]


async def answered(stage: Stage, body: GenerateBody) -> tuple[list[int], Finished]:
    stage.ask(body)
    tokens, _, finished = await stage.answer(len(body.tokens))
    assert isinstance(finished, Finished)
    await stage.inbox.wait(Released)
    return tokens, finished


@pytest.fixture
def model(tmp_path: Path) -> VisionModel:
    return write_vision_model(tmp_path)


async def test_images_reach_a_model_with_a_projector(stage: Stage, model: VisionModel) -> None:
    await stage.start_worker()
    loaded = await stage.load(model.weights, parts=[part(model.projector)])
    assert isinstance(loaded, Loaded)
    tokens, first = await answered(stage, shown(picture(1)))
    again, second = await answered(stage, shown(picture(1)))
    other, third = await answered(stage, shown(picture(2), picture(3)))
    assert tokens == again != other
    assert first.prompt_eval_count == second.prompt_eval_count == third.prompt_eval_count - 64
    assert second.cached == second.prompt_eval_count - 1
    # Another worker goes on behind what this one has sent.
    rest, _ = await answered(stage, shown(picture(1), tokens=tokens[:5]))
    assert rest == tokens[5:]


@pytest.mark.parametrize(
    ("image", "reason"),
    [(b"no image", "images: it is none of"), (picture(1)[:2000], "images: it is damaged")],
)
async def test_a_broken_image_is_the_requests_fault(
    stage: Stage, model: VisionModel, image: bytes, reason: str
) -> None:
    await stage.start_worker()
    await stage.load(model.weights, parts=[part(model.projector)])
    stage.ask(shown(image))
    _, _, failed = await stage.answer()
    assert isinstance(failed, Failed)
    assert failed.failure.code is Code.INVALID_REQUEST
    assert failed.failure.message.startswith(reason)
    assert (await stage.inbox.wait(Released)).outcome is Outcome.FAILED
    await answered(stage, shown(picture(1)))


async def test_a_projector_of_another_model_fails_the_load(
    stage: Stage, model: VisionModel, tmp_path: Path
) -> None:
    await stage.start_worker()
    (tmp_path / "wide").mkdir()
    wide = write_vision_model(tmp_path / "wide", embedding=128)
    failed = await stage.load(model.weights, parts=[part(wide.projector)])
    assert isinstance(failed, LoadFailed)
    assert "its projector: mismatch between text model (n_embd = 64)" in failed.failure.message
    assert str(tmp_path) not in failed.failure.message
