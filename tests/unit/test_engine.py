"""The engine on a real llama.cpp context, with a model whose text is known beforehand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import (
    Caller,
    Chunk,
    Failed,
    Finished,
    FinishReason,
    Generate,
    GenerateBody,
    Kind,
    SamplingOptions,
)
from pronk.protocol.messages.placement import Outcome, Released
from pronk.workers.inference.engine import BATCH, Engine
from pronk.workers.inference.llama import Context
from pronk.workers.inference.native_log import NativeLog
from support.models import write_reciting_model

CHAIN = "abcdéfghij"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("models") / "reciter.gguf"
    write_reciting_model(path, [CHAIN, "xyx"])
    engine = Engine(path, 1024, 1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def straying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A model so unsure that sampling hardly ever follows the chain."""
    path = tmp_path_factory.mktemp("models") / "straying.gguf"
    write_reciting_model(path, ["xyx"], margin=2.0)
    engine = Engine(path, 1024, 1)
    yield engine
    engine.close()


def start(engine: Engine, prompt: str, **changes: Any) -> None:
    options = SamplingOptions(**changes.pop("options", {"temperature": 0}))
    seed, context_length = changes.pop("seed", 7), changes.pop("context_length", None)
    header = Generate(
        "0" * 32,
        1,
        "m",
        "d" * 64,
        Caller(),
        "f" * 16,
        "ipc://x",
        seed,
        1,
        context_length=context_length,
    )
    body = GenerateBody(Kind.COMPLETION, options, raw=True, **changes)
    engine.start(header, body, engine.vocabulary.tokenize(prompt))


def finish(engine: Engine) -> tuple[list[int], str, Any, Released]:
    """Tokens, text, the last message for the frontend, and the release."""
    messages = [message for _ in range(5000) if engine.busy for message in engine.step()]
    *chunks, end, released = messages
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    tokens = [token for chunk in chunks for token in chunk.tokens]
    return tokens, "".join(chunk.text for chunk in chunks), end, released


def run(engine: Engine, prompt: str, **changes: Any) -> tuple[list[int], str, Any]:
    start(engine, prompt, **changes)
    tokens, text, end, released = finish(engine)
    assert released.outcome is (Outcome.FINISHED if isinstance(end, Finished) else Outcome.FAILED)
    return tokens, text, end


def test_the_model_ends_its_answer(engine: Engine) -> None:
    tokens, text, end = run(engine, "a")
    assert text == CHAIN[1:]
    assert end.reason is FinishReason.STOP
    assert end.eval_count == len(tokens) == len(CHAIN.encode())
    assert engine.vocabulary.ends_generation(tokens[-1])
    assert end.prompt_eval_count == 1


def test_greedy_answers_are_the_same_every_time(engine: Engine) -> None:
    assert len({tuple(run(engine, "a")[0]) for _ in range(3)}) == 1


def test_sampling_follows_a_sure_model(engine: Engine) -> None:
    assert run(engine, "a", options={})[1] == CHAIN[1:]


def test_num_predict_ends_it(engine: Engine) -> None:
    tokens, text, end = run(engine, "a", options={"num_predict": 3})
    assert (text, len(tokens), end.reason) == ("bcd", 3, FinishReason.LENGTH)


@pytest.mark.parametrize("num_predict", [None, 0, -1, -2])
def test_a_full_context_ends_it(engine: Engine, num_predict: int | None) -> None:
    options = {"temperature": 0, "num_predict": num_predict}
    tokens, _, end = run(engine, "x", options=options, context_length=20)
    assert (len(tokens), end.reason) == (19, FinishReason.LENGTH)
    tokens, _, _ = run(engine, "x", options=options)
    assert len(tokens) == 1023


def test_a_long_prompt_is_read_in_steps_and_can_be_cancelled_between(engine: Engine) -> None:
    start(engine, "x" * (BATCH + 10))
    assert engine.step() == []
    (released,) = engine.cancel("0" * 32, 1)
    assert (released.outcome, released.tokens) == (Outcome.CANCELLED, 0)
    assert not engine.busy
    assert engine.cancel("0" * 32, 1) == []

    tokens, _, end = run(engine, "x" * (BATCH + 10), options={"num_predict": 5})
    assert end.prompt_eval_count == BATCH + 10
    assert bytes(tokens) == b"yxyxy"


def test_stop_texts_across_tokens(engine: Engine) -> None:
    tokens, text, end = run(engine, "a", options={"stop": ["éfg", "zz"]})
    assert (text, end.reason) == ("bcd", FinishReason.STOP)
    assert bytes(tokens) == "bcdéfg".encode()


@pytest.mark.parametrize("sent", range(len(CHAIN.encode()) + 1))
def test_any_beginning_can_be_continued(engine: Engine, sent: int) -> None:
    options = {"stop": ["éfgX"]}
    start(engine, "a", options=options)
    chunks: list[Chunk] = []
    while engine.busy:
        chunks += [message for message in engine.step() if isinstance(message, Chunk)]
    sent_tokens = [token for chunk in chunks[:sent] for token in chunk.tokens]
    shown = "".join(chunk.text for chunk in chunks[:sent])

    tokens, text, end = run(engine, "a", options=options, tokens=sent_tokens)
    assert shown + text == CHAIN[1:]
    assert sent_tokens + tokens == [chunk.tokens[0] for chunk in chunks]
    assert (end.reason, end.eval_count) == (FinishReason.STOP, len(chunks))


def test_a_sampled_answer_is_continued_with_the_same_draws(straying: Engine) -> None:
    options = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "num_predict": 40}
    whole = [run(straying, "x", options=options, seed=seed)[0] for seed in range(8)]
    assert len({tuple(tokens) for tokens in whole}) == 8, "seeds matter"
    for seed, tokens in enumerate(whole):
        cut = len(tokens) // 2
        rest, _, _ = run(straying, "x", options=options, seed=seed, tokens=tokens[:cut])
        assert tokens[:cut] + rest == tokens


def test_penalties_see_the_prompt_and_survive_a_continuation(straying: Engine) -> None:
    plain, _, _ = run(straying, "xyxyxyx", options={"temperature": 0, "num_predict": 6})
    options = {"temperature": 0, "num_predict": 6, "presence_penalty": 5.0}
    tokens, _, _ = run(straying, "xyxyxyx", options=options)
    assert tokens[0] != plain[0], "y stood in the prompt"
    rest, _, _ = run(straying, "xyxyxyx", options=options, tokens=tokens[:3])
    assert tokens[:3] + rest == tokens


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e300},
        {"temperature": 1e-300},
        {"top_k": 2**62},
        {"top_k": -5, "top_p": -1.0},
        {"top_p": 0.0},
        {"min_p": 5.0},
        {"typical_p": 0.0, "top_k": 0},
        {"typical_p": 0.5},
        {"repeat_last_n": -1, "repeat_penalty": 1e-300},
        {"repeat_last_n": 2**62, "repeat_penalty": 1e300},
        {"presence_penalty": -1e300, "frequency_penalty": 1e300},
        {"repeat_penalty": -1.0},
    ],
)
def test_no_option_breaks_the_engine(straying: Engine, options: dict[str, Any]) -> None:
    _, _, end = run(straying, "x", options={**options, "num_predict": 8})
    assert isinstance(end, Finished)


def test_return_context_is_prompt_and_answer(engine: Engine) -> None:
    tokens, _, end = run(engine, "ghi", return_context=True)
    assert end.context == [*b"ghi", *tokens]


def test_logits_that_are_no_numbers_end_one_request_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(Context, "logits", lambda self, row: np.array([0.0, np.nan, 1.0], np.float32))
        _, _, end = run(engine, "a")
    assert isinstance(end, Failed)
    assert end.failure.code is Code.INTERNAL
    assert "not finite" in caplog.text
    assert run(engine, "a")[1] == CHAIN[1:]


def test_a_refused_option_leaves_the_engine_free(engine: Engine) -> None:
    with pytest.raises(PronkError):
        start(engine, "a", options={"stop": ["x" * 1_000_000]})
    assert not engine.busy
    assert run(engine, "a")[1] == CHAIN[1:]


def test_it_counts_steps_and_memory(engine: Engine) -> None:
    before = engine.steps
    run(engine, "a")
    assert engine.steps == before + len(CHAIN.encode())
    assert engine.size > 2_000_000
    assert engine.context_length == 1024


def test_the_log_gives_a_reason_without_a_path() -> None:
    log = NativeLog()
    log.write(4, b"gguf_init_from_file: failed to open '/home/me/b.gguf' (No such file)\n")
    log.write(4, b"llama_model_load_from_file_impl: failed to load model\n")
    assert log.reason() == "failed to open 'the file' (No such file)"
    log.forget()
    log.write(4, b"llama_model_load: error loading model: llama_model_loader: failed to load ")
    log.write(5, b"model from x.gguf\n")
    assert log.reason("x.gguf") == "llama.cpp gave no reason"
    log.write(4, b"llama_model_load: error loading model: tensor '\x00\x1b' is bad\n")
    assert log.reason() == "tensor '??' is bad"


def test_the_log_counts_buffers_once() -> None:
    log = NativeLog()
    for line in (
        b"load_tensors:   CPU_Mapped model buffer size =     2.00 MiB\n",
        b"load_tensors:   CPU_REPACK model buffer size =     1.00 MiB\n",
        b"llama_kv_cache:        CPU KV buffer size =     4.00 MiB\n",
        b"sched_reserve:        CPU compute buffer size =     3.00 MiB\n",
        b"sched_reserve:        CPU compute buffer size =     5.00 MiB\n",
        b"llama_kv_cache: size =    4.50 MiB (  4096 cells)\n",
    ):
        log.write(2, line)
    assert log.allocated == 12 * 1024 * 1024
