"""LoRA adapters in the engine: the demo model with random ones, in real llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Kind
from pronk.workers.inference.embedding_context import EmbeddingContext, Part
from pronk.workers.inference.llama import Model, native_log
from pronk.workers.store.demo import WEIGHTS
from support.adapters import write_adapter
from support.encoder_models import write_encoder
from support.engines import Bench
from support.models import write_reciting_model
from support.right_text import assert_right, score

QUESTION = "Why is the sky blue?"
LENGTH = {"temperature": 0, "num_predict": 24}


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("adapters")
    return {
        "one": write_adapter(place / "one.gguf", WEIGHTS, seed=1, strength=0.7),
        "same": write_adapter(place / "same.gguf", WEIGHTS, seed=1, strength=0.7),
        "two": write_adapter(place / "two.gguf", WEIGHTS, seed=2, strength=0.7),
        "none": write_adapter(place / "none.gguf", WEIGHTS, strength=0),
    }


def answer(*paths: Path, **changes: Any) -> list[int]:
    bench = Bench(WEIGHTS, adapters=paths)
    try:
        options = {**LENGTH, **changes}
        return bench.run(QUESTION, kind=Kind.COMPLETION, raw=False, options=options).tokens
    finally:
        bench.close()


def test_a_model_answers_otherwise_with_an_adapter_and_always_the_same(
    adapters: dict[str, Path],
) -> None:
    plain = answer()
    assert answer(adapters["one"]) != plain
    assert answer(adapters["one"]) == answer(adapters["same"])
    assert answer(adapters["two"]) not in (plain, answer(adapters["one"]))


def test_an_adapter_that_adds_nothing_changes_nothing(adapters: dict[str, Path]) -> None:
    assert answer(adapters["none"]) == answer()


def test_several_adapters_add_up(adapters: dict[str, Path]) -> None:
    one, two = adapters["one"], adapters["two"]
    both = answer(one, two)
    assert both not in (answer(one), answer(two), answer())
    assert answer(one, adapters["none"]) == answer(one)


def test_texts_are_right_whoever_computes_beside_them_and_whatever_was_cached(
    adapters: dict[str, Path],
) -> None:
    one = adapters["one"]
    bench = Bench(WEIGHTS, adapters=[one])
    questions = [f"{QUESTION} {word}" for word in ("Tell me.", "Do you know?", "Why?", "Why not?")]
    options = {**LENGTH, "repeat_penalty": 1}
    runs = bench.run_all(questions, raw=False, options=options)
    runs += bench.run_all(questions, raw=False, options=options)
    bench.close()
    assert any(run.cached for run in runs)
    for run in runs:
        assert_right(WEIGHTS, run.prepared.prompt, run.tokens, adapters=(one,))
    of_plain = [score(WEIGHTS, run.prepared.prompt, run.tokens).below.max() for run in runs]
    assert max(of_plain) > 0.5, "the plain model would have said the same"


def test_a_stream_goes_on_in_another_worker(adapters: dict[str, Path]) -> None:
    one, options = adapters["one"], {**LENGTH, "repeat_penalty": 1}
    whole = answer(one, repeat_penalty=1)
    bench = Bench(WEIGHTS, adapters=[one])
    for sent in (1, 7, len(whole) - 1):
        run = bench.run(QUESTION, raw=False, options=options, tokens=whole[:sent])
        assert len(run.tokens) == len(whole) - sent
        assert_right(WEIGHTS, [*run.prepared.prompt, *whole[:sent]], run.tokens, adapters=(one,))
    bench.close()


# --- vectors


def vector(path: Path, *paths: Path) -> np.ndarray[Any, Any]:
    model = Model(path, adapters=paths)
    context = EmbeddingContext(model, 64, 1, 64)
    (found,) = context.compute([Part([3, 5, 7, 9])])
    context.close()
    model.close()
    assert found is not None
    return found


def test_vectors_of_a_decoder_follow_the_adapter(adapters: dict[str, Path]) -> None:
    plain, adapted = vector(WEIGHTS), vector(WEIGHTS, adapters["one"])
    assert np.allclose(plain, vector(WEIGHTS, adapters["none"]), atol=1e-5)
    assert not np.allclose(plain, adapted, atol=0.01)
    assert np.array_equal(adapted, vector(WEIGHTS, adapters["same"]))


def test_vectors_of_an_encoder_follow_the_adapter(tmp_path: Path) -> None:
    weights = tmp_path / "encoder.gguf"
    write_encoder(weights)
    adapter = write_adapter(tmp_path / "a.gguf", weights, names=("attn_", "ffn_"))
    assert not np.allclose(vector(weights), vector(weights, adapter), atol=0.01)


# --- what cannot be applied


def refusal(*paths: Path) -> str:
    with pytest.raises(PronkError) as caught:
        Model(Path(WEIGHTS), adapters=paths)
    assert caught.value.code is Code.LOAD_FAILED
    for path in paths:
        assert str(path.parent) not in caught.value.message
        assert path.name not in caught.value.message
    return caught.value.message


def test_an_adapter_of_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", WEIGHTS, architecture="bert")
    assert refusal(path) == "its adapter: model arch and LoRA arch mismatch"


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.type": "model"}, "expect general.type to be 'adapter'"),
        ({"adapter.type": "ia3"}, "expect adapter.type to be 'lora'"),
        ({"adapter.type": None}, "adapter.type"),
        ({"adapter.alora.invocation_tokens": [5, 6]}, "aLoRA"),
    ],
)
def test_what_is_no_lora_is_refused(tmp_path: Path, metadata: dict[str, Any], reason: str) -> None:
    assert reason in refusal(write_adapter(tmp_path / "a.gguf", WEIGHTS, metadata=metadata))


def test_an_adapter_of_another_models_size_is_refused(
    tmp_path: Path, adapters: dict[str, Path]
) -> None:
    other = tmp_path / "other.gguf"
    write_reciting_model(other, ["ab"])
    path = write_adapter(tmp_path / "a.gguf", other)
    assert "its adapter 2: " in (reason := refusal(adapters["one"], path))
    assert "wrong base model" in reason


def test_a_broken_file_is_refused(tmp_path: Path, adapters: dict[str, Path]) -> None:
    whole = adapters["one"].read_bytes()
    broken = tmp_path / "a.gguf"
    for content, reason in (
        (b"", "not a valid GGUF"),
        (b"ggla" + whole[4:], "not a valid GGUF"),
        (whole[:200], "not a valid GGUF"),
        (whole[:-100], "lacks the last"),
    ):
        broken.write_bytes(content)
        assert reason in refusal(broken)
    broken.unlink()
    assert "not a valid GGUF" in refusal(broken)


def test_what_llama_cpp_would_die_of_is_refused(tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "a.gguf", WEIGHTS, number=np.int32)
    assert "whole or of 64-bit numbers" in refusal(path)
    path = write_adapter(tmp_path / "b.gguf", WEIGHTS, matrices=3)
    assert "of another shape than the model's" in refusal(path)


def test_the_next_model_loads_after_one_was_refused(
    tmp_path: Path, adapters: dict[str, Path]
) -> None:
    refusal(adapters["one"], write_adapter(tmp_path / "a.gguf", WEIGHTS, architecture="bert"))
    assert answer(adapters["one"]) == answer(adapters["same"])


# --- memory


def test_what_adapters_take_is_counted(adapters: dict[str, Path]) -> None:
    plain = Model(Path(WEIGHTS))
    before = native_log.allocated
    adapted = Model(Path(WEIGHTS), adapters=[adapters["one"], adapters["two"]])
    size = sum(adapters[name].stat().st_size for name in ("one", "two"))
    assert adapted.weights - plain.weights == size
    assert native_log.allocated - before == pytest.approx(size, abs=16 << 10)
    adapted.close()
    plain.close()


def test_memory_comes_back_with_the_model(adapters: dict[str, Path]) -> None:
    """Loaded and closed again and again: a second free of an adapter would end the process."""
    for _ in range(20):
        bench = Bench(WEIGHTS, slots=1, length=64, adapters=[adapters["one"], adapters["two"]])
        bench.close()
