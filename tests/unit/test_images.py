"""What a model is shown reaches it as by llama.cpp's own helper, beside others, and again."""

from __future__ import annotations

import ctypes
import random
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp import mtmd_cpp

from pronk.protocol.codec import encode
from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import (
    Caller,
    ChatMessage,
    Generate,
    GenerateBody,
    SamplingOptions,
)
from pronk.protocol.messages.generation import Kind as Ask
from pronk.workers.inference import sight
from pronk.workers.inference.image_files import decode_image
from pronk.workers.inference.llama import DecodeFailed
from pronk.workers.inference.projector import load_sight
from support.engines import Bench, Run
from support.images import picture
from support.recurrent import HYBRID, RECURRENT, write_recurrent_model
from support.vision_models import Kind, VisionModel, write_vision_model

m: Any = mtmd_cpp
c: Any = llama_cpp

CLOSE = 2e-4
"""By which logits may differ that were computed in other shapes."""

TEXT = "A long enough text before all else, so that it is worth keeping: "


@pytest.fixture(scope="module", params=list(Kind), ids=lambda kind: kind.value)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VisionModel:
    return write_vision_model(tmp_path_factory.mktemp("seeing"), request.param)


class Seer:
    """An engine whose model sees, and every row of logits that it chose a token from."""

    def __init__(self, model: VisionModel, **plan: Any) -> None:
        plan.setdefault("length", 2048)
        self.bench = Bench(model.weights, projectors=[model.projector], **plan)
        self.sight = self.bench.preparation.sight
        self.logits: dict[tuple[str, int], list[np.ndarray]] = {}
        engine = self.bench.engine
        choose = engine._choose

        def watched(sequence: Any, row: int, step: Any) -> None:
            seen = self.logits.setdefault(sequence.key, [])
            seen.append(engine.context.logits(row).copy())
            choose(sequence, row, step)

        engine._choose = watched

    def start(self, prompt: str, *images: bytes, **changes: Any) -> Run:
        options = {"temperature": 0, "num_predict": changes.pop("num_predict", 4)}
        return self.bench.start(prompt, images=list(images), options=options, **changes)

    def finish(self, *runs: Run) -> None:
        while not all(run.left for run in runs):
            self.bench.step()
        assert [run.failure for run in runs] == [None] * len(runs)

    def ask(self, prompt: str, *images: bytes, **changes: Any) -> Run:
        run = self.start(prompt, *images, **changes)
        self.finish(run)
        return run

    def first(self, run: Run) -> np.ndarray:
        """The logits behind the prompt."""
        return self.logits[run.prepared.sequence.key][0]


@pytest.fixture
def seer(model: VisionModel):
    seer = Seer(model)
    yield seer
    seer.bench.close()


def helper(model: VisionModel, prompt: str, *images: bytes) -> np.ndarray:
    """The logits behind a prompt, with an `[img]` for each image, by llama.cpp's helper."""
    files = llama_cpp.llama_model_default_params()
    weights = c.llama_model_load_from_file(str(model.weights).encode(), files)
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads = 1024, 512, 512, 1
    context = c.llama_init_from_model(weights, params)
    eyes_params = m.mtmd_context_params_default()
    eyes_params.use_gpu, eyes_params.n_threads = False, 1
    eyes = m.mtmd_init_from_file(str(model.projector).encode(), weights, eyes_params)
    text = prompt.replace("[img]", m.mtmd_default_marker().decode()).encode()
    bitmaps = []
    for image in images:
        pixels = decode_image(image)
        height, width, _ = pixels.shape
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmaps.append(m.mtmd_bitmap_init(width, height, data))
    chunks = m.mtmd_input_chunks_init()
    given = m.mtmd_input_text(text, len(text), False, True)
    array = (m.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
    assert m.mtmd_tokenize(eyes, chunks, ctypes.byref(given), array, len(bitmaps)) == 0
    end = llama_cpp.llama_pos()
    assert m.mtmd_helper_eval_chunks(eyes, context, chunks, 0, 0, 512, True, ctypes.byref(end)) == 0
    size = c.llama_vocab_n_tokens(c.llama_model_get_vocab(weights))
    logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), (size,)).copy()
    m.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        m.mtmd_bitmap_free(bitmap)
    m.mtmd_free(eyes)
    c.llama_free(context)
    c.llama_model_free(weights)
    return logits


def apart(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(left - right).max())


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


def test_an_answer_goes_on_where_another_worker_left_it(seer: Seer):
    whole = seer.ask("[img] What?", picture(1), num_predict=12)
    rest = seer.ask("[img] What?", picture(1), num_predict=12, tokens=whole.tokens[:5])
    assert rest.tokens == whole.tokens[5:]


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


@pytest.mark.parametrize("size", [(1, 1), (200, 1), (1, 200), (4096, 21), (21, 4096), (3000, 2000)])
def test_a_model_survives_an_image_of_any_size(seer: Seer, size: tuple[int, int]):
    run = seer.ask("[img] ?", picture(1, *size), num_predict=1, context_length=4096)
    assert np.isfinite(seer.first(run)).all()


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
