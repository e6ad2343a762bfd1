"""What a model is shown reaches it as by llama.cpp's own helper, beside others, and again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.inference.llama import DecodeFailed
from support.engines import Run
from support.images import picture
from support.seeing import CLOSE, TEXT, Seer, apart, helper
from support.vision_models import Kind, VisionModel, write_vision_model


@pytest.fixture(scope="module", params=list(Kind), ids=lambda kind: kind.value)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return write_vision_model(tmp_path_factory.mktemp("seeing"), request.param)


@pytest.fixture
def seer(model: VisionModel):
    seer = Seer(model)
    yield seer
    seer.bench.close()


@pytest.mark.parametrize(
    ("prompt", "images"),
    [
        ("What is on [img]? Say it.", [picture(1)]),
        ("[img] and [img]!", [picture(1), picture(2, 200, 40)]),
        ("[img][img] twice", [picture(3), picture(3)]),
    ],
)
def test_a_prompt_with_images_is_computed_as_by_llama_cpps_own_helper(
    model: VisionModel, seer: Seer, prompt: str, images: list[bytes]
):
    run = seer.ask(prompt, *images)
    assert apart(seer.first(run), helper(model, prompt, *images)) < CLOSE


def test_an_image_larger_than_a_step_is_read_in_several(model: VisionModel):
    seer = Seer(model, batch=20, slots=2)
    try:
        run = seer.ask("Look: [img] again [img]!", picture(1), picture(2))
        expected = helper(model, "Look: [img] again [img]!", picture(1), picture(2))
        assert apart(seer.first(run), expected) < 10 * CLOSE
    finally:
        seer.bench.close()


def test_an_image_that_has_to_be_read_at_once_and_is_too_large_for_that_is_refused(tmp_path: Path):
    seer = Seer(write_vision_model(tmp_path, Kind.WHOLE), batch=3, slots=2)
    try:
        with pytest.raises(PronkError, match="one takes 4 tokens, which have to be computed"):
            seer.start("[img]", picture(1))
    finally:
        seer.bench.close()


@pytest.mark.parametrize("kind", [Kind.PLAIN, Kind.WHOLE])
def test_a_full_context_loses_images_whole(tmp_path: Path, kind: Kind):
    model = write_vision_model(tmp_path, kind)
    seer = Seer(model)
    try:
        asked = ("abc [img] d", picture(1)), {"context_length": 100, "num_predict": 150}
        run = seer.start(*asked[0], **asked[1])
        sequence = run.prepared.sequence
        rows = [number for number in sequence.tokens if number < 0]
        midway: list[int] = []
        while not run.left:
            seer.bench.step()
            assert [number for number in sequence.tokens if number < 0] in ([], rows)
            if len(run.tokens) == 120:
                midway = list(sequence.tokens)
        assert sequence.shifted
        assert not [number for number in sequence.tokens if number < 0]
        resumed = seer.start(*asked[0], **asked[1], tokens=run.tokens[:120])
        assert resumed.prepared.sequence.tokens == midway
        seer.finish(resumed)
        assert len(resumed.tokens) == 30
    finally:
        seer.bench.close()


def test_positions_in_two_dimensions_are_not_shifted_and_an_answer_ends(tmp_path: Path):
    seer = Seer(write_vision_model(tmp_path, Kind.GRID))
    try:
        assert not seer.bench.engine.context.can_shift
        run = seer.ask("abc [img] d", picture(1), context_length=60, num_predict=100)
        assert len(run.prepared.sequence.tokens) == 60
    finally:
        seer.bench.close()


def test_a_prompt_may_end_with_an_image(model: VisionModel, seer: Seer):
    last = seer.first(seer.ask("It ends with [img]", picture(1)))
    other = seer.first(seer.ask("It ends with [img]", picture(2)))
    seer.ask("It ends with [img]!", picture(1))
    again = seer.first(seer.ask("It ends with [img]", picture(1)))
    assert apart(last, again) < 10 * CLOSE
    assert apart(last, other) > 100 * CLOSE


def test_another_image_gives_another_answer_and_the_same_one_the_same(seer: Seer):
    one, other, again = (seer.first(seer.ask("[img] ?", picture(s))) for s in (1, 2, 1))
    assert apart(one, again) < CLOSE
    assert apart(one, other) > 100 * CLOSE


def test_requests_with_and_without_images_are_computed_side_by_side(seer: Seer):
    prompts = [("On [img]?", [picture(1)]), ("Nothing.", []), ("And [img]?", [picture(2)])]
    alone = [seer.first(seer.ask(prompt, *images)) for prompt, images in prompts]
    writing = seer.start("A text that is being written", num_predict=40)
    while writing.first_step is None:
        seer.bench.step()
    together = [seer.start(prompt, *images) for prompt, images in prompts]
    begun = len(writing.pieces)
    while not all(run.left for run in together):
        seer.bench.step()
    assert not writing.left
    assert len(writing.pieces) - begun >= 4  # it went on meanwhile, with every step
    for run, logits in zip(together, alone, strict=True):
        assert apart(seer.first(run), logits) < 10 * CLOSE
    seer.finish(writing)


def test_an_answer_goes_on_where_another_worker_left_it(seer: Seer):
    whole = seer.ask("[img] What?", picture(1), num_predict=12)
    rest = seer.ask("[img] What?", picture(1), num_predict=12, tokens=whole.tokens[:5])
    assert rest.tokens == whole.tokens[5:]


@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 200), (4096, 21), (21, 4096), (3000, 2000)])
def test_a_model_survives_an_image_of_any_size(seer: Seer, size: tuple[int, int]):
    run = seer.ask("[img] ?", picture(1, *size), num_predict=1, context_length=4096)
    assert np.isfinite(seer.first(run)).all()


@pytest.mark.parametrize("failing", [{1}, {2}, {1, 2}, {2, 3}])
def test_an_image_that_cannot_be_computed_is_tried_again(model: VisionModel, failing: set[int]):
    seer = Seer(model, batch=20, slots=2)
    try:
        fail_at(seer, failing)
        other = seer.start("Beside it", num_predict=30)
        run = seer.start(f"{TEXT}[img][img] ?", picture(1), picture(2))
        seer.finish(run, other)
        expected = helper(model, f"{TEXT}[img][img] ?", picture(1), picture(2))
        assert apart(seer.first(run), expected) < 10 * CLOSE
        assert len(other.tokens) == 30
    finally:
        seer.bench.close()


def test_an_image_that_can_never_be_computed_fails_its_request_alone(seer: Seer):
    fail_at(seer, set(range(100)))
    other = seer.start("Beside it", num_predict=30)
    run = seer.start("[img] ?", picture(1))
    while not (run.left and other.left):
        seer.bench.step()
    assert run.failure
    assert run.failure.code is Code.INTERNAL
    assert other.failure is None
    assert len(other.tokens) == 30


def fail_at(seer: Seer, calls: set[int]) -> None:
    """Has llama.cpp fail when it is to compute an image these times, the first one being 1."""
    context = seer.bench.engine.context
    look, count = context.look, 0

    def looking(*arguments: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count in calls:
            raise DecodeFailed("as the test wants it")
        look(*arguments, **options)

    context.look = looking


HEADS = [
    "",
    TEXT,
    f"{TEXT}[img] and more text, until that is worth keeping too: ",
    f"{TEXT}[img][img]",
]


ENDS = ["[img] a", "b [img] c [img]", "d", "[img]", "a longer question about nothing at all"]


def test_whoever_comes_and_goes_every_answer_begins_as_if_it_were_alone(model: VisionModel):
    rng = random.Random(5)
    images = [picture(seed, rng.choice([64, 96, 130]), rng.choice([40, 64])) for seed in range(3)]
    busy = Seer(model, slots=3, batch=48, cache_memory=1 << 20)
    alone = Seer(model, slots=1, cache_memory=0)
    runs: list[tuple[Run, str, tuple[bytes, ...]]] = []
    try:
        for _ in range(50):
            prompt = rng.choice(HEADS) + rng.choice(ENDS)
            shown = tuple(rng.choice(images) for _ in range(prompt.count("[img]")))
            run = busy.start(prompt, *shown, num_predict=rng.choice([1, 3, 30]))
            runs.append((run, prompt, shown))
            for _ in range(rng.randrange(6)):
                busy.bench.step()
            if rng.random() < 0.3 and not (victim := rng.choice(runs)[0]).left:
                busy.bench.cancel(victim)
        while not all(run.left for run, _, _ in runs):
            busy.bench.step()
        begun = [each for each in runs if each[0].prepared.sequence.key in busy.logits]
        assert len(begun) > 30
        assert sum(run.cached for run, _, _ in runs) > 1000
        for run, prompt, shown in begun:
            for slot in alone.bench.engine._slots:
                slot.tokens = []
            alone.bench.engine.context.clear()
            expected = alone.first(alone.ask(prompt, *shown, num_predict=1))
            assert apart(busy.first(run), expected) < 50 * CLOSE
    finally:
        busy.bench.close()
        alone.bench.close()
