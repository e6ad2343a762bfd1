"""What was read or encoded of an image is gone on from, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pronk.workers.inference import sight
from pronk.workers.inference.image_files import decode_image
from support.images import picture
from support.recurrent import HYBRID, RECURRENT, write_recurrent_model
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


def test_an_image_of_an_earlier_turn_is_neither_read_nor_encoded_again(seer: Seer):
    first = seer.ask(f"{TEXT}[img] What?", picture(1), num_predict=2)
    encoded = seer.sight.encoded
    length = len(first.prepared.prompt)
    second = seer.ask(f"{TEXT}[img] What? And then?", picture(1))
    assert second.cached == length
    assert seer.sight.encoded == encoded
    fresh = Seer.first(seer, second)
    seer.bench.engine.context.clear()
    for slot in seer.bench.engine._slots:
        slot.tokens = []
    third = seer.ask(f"{TEXT}[img] What? And then?", picture(1))
    assert apart(seer.first(third), fresh) < 10 * CLOSE


def test_another_image_at_the_same_place_ends_what_is_common(seer: Seer):
    seer.ask(f"{TEXT}[img] What?", picture(1))
    run = seer.ask(f"{TEXT}[img] What?", picture(2))
    before = run.prepared.prompt.index(next(n for n in run.prepared.prompt if n < 0))
    assert run.cached == before


def test_requests_that_come_together_compute_their_image_once(seer: Seer):
    runs = [seer.start(f"{TEXT}[img] {i}", picture(1)) for i in range(3)]
    seer.finish(*runs)
    assert seer.sight.encoded == 1
    assert sorted(run.cached > 0 for run in runs) == [False, True, True]
    alone = [seer.first(seer.ask(f"{TEXT}[img] {i}", picture(1))) for i in range(3)]
    for run, logits in zip(runs, alone, strict=True):
        assert apart(seer.first(run), logits) < 10 * CLOSE


def test_what_was_saved_of_a_prompt_with_an_image_is_gone_on_from(model: VisionModel):
    seer = Seer(model, slots=1)
    try:
        first = seer.ask(f"{TEXT}[img] What?", picture(1), num_predict=1)
        seer.ask("Something else altogether, in the only slot there is.")
        again = seer.ask(f"{TEXT}[img] What?", picture(1), num_predict=1)
        assert again.cached >= len(first.prepared.prompt) - 1
        assert apart(seer.first(first), seer.first(again)) < 10 * CLOSE
    finally:
        seer.bench.close()


def test_a_request_cancelled_within_an_image_leaves_a_slot_that_serves(model: VisionModel):
    seer = Seer(model, batch=64, slots=1)
    try:
        expected = seer.first(seer.ask(f"{TEXT} [img][img] ?", picture(1), picture(2)))
        for steps in range(1, 6):
            seer.bench.engine.context.clear()
            for slot in seer.bench.engine._slots:
                slot.tokens = []
            run = seer.start(f"{TEXT} [img][img] ?", picture(1), picture(2))
            for _ in range(steps):
                if not run.left:
                    seer.bench.step()
            if not run.left:
                seer.bench.cancel(run)
            again = seer.ask(f"{TEXT} [img][img] ?", picture(1), picture(2))
            assert apart(seer.first(again), expected) < 10 * CLOSE
    finally:
        seer.bench.close()


@pytest.fixture(params=[RECURRENT, HYBRID], ids=["recurrent", "hybrid"])
def remembering(request: pytest.FixtureRequest, tmp_path: Path):
    """A model whose memory cannot be cut, which reads images in several steps."""
    eyes = write_vision_model(tmp_path).projector
    model = VisionModel(tmp_path / "remembers.gguf", eyes)
    write_recurrent_model(model.weights, request.param)
    seer = Seer(model, batch=48)
    yield seer, model
    seer.bench.close()


def test_a_state_that_cannot_be_cut_has_images_in_it(remembering: tuple[Seer, VisionModel]):
    seer, model = remembering
    prompt = f"{TEXT}[img] What? [img]"
    first = seer.ask(f"{prompt}!", picture(1), picture(2), num_predict=2)
    expected = helper(model, f"{prompt}!", picture(1), picture(2))
    assert apart(seer.first(first), expected) < 100 * CLOSE
    longer = seer.ask(f"{prompt}! And then?", picture(1), picture(2))
    assert longer.cached == len(first.prepared.prompt) - 1
    assert seer.sight.encoded == 2
    expected = helper(model, f"{prompt}! And then?", picture(1), picture(2))
    assert apart(seer.first(longer), expected) < 100 * CLOSE
    other = seer.ask(f"{prompt}!", picture(1), picture(3))
    expected = helper(model, f"{prompt}!", picture(1), picture(3))
    assert apart(seer.first(other), expected) < 100 * CLOSE


def test_such_a_state_is_not_gone_on_from_within_an_image(remembering: tuple[Seer, VisionModel]):
    seer, model = remembering
    expected = helper(model, f"{TEXT}[img][img] ?", picture(1), picture(2))
    for steps in range(1, 8):
        run = seer.start(f"{TEXT}[img][img] ?", picture(1), picture(2))
        for _ in range(steps):
            if not run.left:
                seer.bench.step()
        if not run.left:
            seer.bench.cancel(run)
        again = seer.ask(f"{TEXT}[img][img] ?", picture(1), picture(2))
        assert apart(seer.first(again), expected) < 100 * CLOSE
        for slot in seer.bench.engine._slots:
            slot.tokens = []
            seer.bench.engine.context.cut(slot.number, 0)


def test_an_image_is_decoded_once_where_it_is_the_last_one(
    seer: Seer, monkeypatch: pytest.MonkeyPatch
):
    decoded: list[bytes] = []

    def counting(data: bytes) -> Any:
        decoded.append(data)
        return decode_image(data)

    monkeypatch.setattr(sight, "decode_image", counting)
    seer.ask("[img] ?", picture(1))
    seer.ask("[img] ? And?", picture(1))
    assert len(decoded) == 1
    seer.ask("[img] and [img] ?", picture(2), picture(3))
    assert len(decoded) == 1 + 3  # the last one stays open while the others are looked at
    assert seer.sight.opened == 4  # each is progress, though none is encoded yet


def test_encoded_images_are_forgotten_when_they_are_too_many(
    seer: Seer, monkeypatch: pytest.MonkeyPatch
):
    seer.ask("[img]", picture(1))
    ((key, one),) = seer.sight._encoded.items()
    monkeypatch.setattr(sight, "MOST_KEPT", 2 * one.numbers.nbytes)
    for seed in (2, 3, 4):
        seer.ask("[img]", picture(seed))
        assert len(seer.sight._encoded) <= 2
    assert key not in seer.sight._encoded
    assert seer.sight._kept == sum(p.numbers.nbytes for p in seer.sight._encoded.values())
    seer.ask("Once more: [img]", picture(1))
    assert seer.sight.encoded == 5
