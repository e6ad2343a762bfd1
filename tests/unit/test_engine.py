"""The engine on a real llama.cpp context, with a model whose text is known beforehand."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.generation import Constraint, FinishReason, Grammar
from pronk.workers.inference.llama import native_log
from pronk.workers.inference.native_log import NativeLog
from support.engines import Bench
from support.models import write_reciting_model

CHAIN = "abcdéfghij"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    path = tmp_path_factory.mktemp("models") / "reciter.gguf"
    write_reciting_model(path, [CHAIN, "xyx"])
    bench = Bench(path)
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def straying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A model so unsure that sampling hardly ever follows the chain."""
    path = tmp_path_factory.mktemp("models") / "straying.gguf"
    write_reciting_model(path, ["xyx"], margin=2.0)
    bench = Bench(path)
    yield bench
    bench.close()


# --- one request


def test_the_model_ends_its_answer(bench: Bench) -> None:
    run = bench.run("a")
    assert (run.text, run.reason, run.failure) == (CHAIN[1:], FinishReason.STOP, None)
    assert len(run.tokens) == len(CHAIN.encode())
    assert bench.engine.vocabulary.ends_generation(run.tokens[-1])
    assert len(run.prepared.prompt) == 1


def test_greedy_answers_are_the_same_every_time(bench: Bench) -> None:
    assert len({tuple(bench.run("a").tokens) for _ in range(3)}) == 1


def test_sampling_follows_a_sure_model(bench: Bench) -> None:
    assert bench.run("a", options={}).text == CHAIN[1:]


def test_num_predict_ends_it(bench: Bench) -> None:
    run = bench.run("a", options={"temperature": 0, "num_predict": 3})
    assert (run.text, len(run.tokens), run.reason) == ("bcd", 3, FinishReason.LENGTH)


@pytest.mark.parametrize("num_predict", [None, 0, -1, -2])
def test_a_full_context_ends_it_where_it_may_not_be_shifted(
    bench: Bench, num_predict: int | None
) -> None:
    options = {"temperature": 0, "num_predict": num_predict}
    run = bench.run("x", options=options, context_length=20, shift=False)
    assert (len(run.tokens), run.reason) == (19, FinishReason.LENGTH)
    run = bench.run("x", options=options, shift=False)
    assert len(run.tokens) == 1023


def test_a_shifted_context_goes_on(bench: Bench) -> None:
    options = {"temperature": 0, "num_predict": 100}
    run = bench.run("x", options=options, context_length=20)
    assert (len(run.tokens), run.reason) == (100, FinishReason.LENGTH)
    assert run.text == "yx" * 50
    assert bench.run("a").text == CHAIN[1:], "the slot is clean again"


def test_stop_texts_across_tokens(bench: Bench) -> None:
    run = bench.run("a", options={"temperature": 0, "stop": ["éfg", "zz"]})
    assert (run.text, run.reason) == ("bcd", FinishReason.STOP)
    assert bytes(run.tokens) == "bcdéfg".encode()


@pytest.mark.parametrize("sent", range(1, len(CHAIN.encode())))
def test_any_beginning_can_be_continued(bench: Bench, sent: int) -> None:
    options = {"temperature": 0, "stop": ["éfgX"]}
    whole = bench.run("a", options=options)
    rest = bench.run("a", options=options, tokens=whole.tokens[:sent])
    assert "".join(whole.pieces[:sent]) + rest.text == CHAIN[1:]
    assert whole.tokens[:sent] + rest.tokens == whole.tokens
    assert rest.reason is FinishReason.STOP


def test_a_sampled_answer_is_continued_with_the_same_draws(straying: Bench) -> None:
    options = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "num_predict": 40}
    whole = [straying.run("x", options=options, seed=seed).tokens for seed in range(8)]
    assert len({tuple(tokens) for tokens in whole}) == 8, "seeds matter"
    for seed, tokens in enumerate(whole):
        cut = len(tokens) // 2
        rest = straying.run("x", options=options, seed=seed, tokens=tokens[:cut])
        assert tokens[:cut] + rest.tokens == tokens


def test_penalties_see_the_prompt_and_survive_a_continuation(straying: Bench) -> None:
    plain = straying.run("xyxyxyx", options={"temperature": 0, "num_predict": 6})
    options = {"temperature": 0, "num_predict": 6, "presence_penalty": 5.0}
    run = straying.run("xyxyxyx", options=options)
    assert run.tokens[0] != plain.tokens[0], "y stood in the prompt"
    rest = straying.run("xyxyxyx", options=options, tokens=run.tokens[:3])
    assert run.tokens[:3] + rest.tokens == run.tokens


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
def test_no_option_breaks_the_engine(straying: Bench, options: dict[str, Any]) -> None:
    run = straying.run("x", options={**options, "num_predict": 8})
    assert run.reason is not None
    assert run.failure is None


def test_the_context_that_comes_back_is_prompt_and_answer(bench: Bench) -> None:
    run = bench.run("ghi", return_context=True)
    assert run.prepared.context() == [*b"ghi", *run.tokens]


def test_a_refused_option_leaves_the_engine_free(bench: Bench) -> None:
    with pytest.raises(PronkError):
        bench.start("a", options={"stop": ["x" * 1_000_000]})
    assert not bench.engine.busy
    assert bench.run("a").text == CHAIN[1:]


# --- many requests


@pytest.mark.parametrize("count", [2, 4, 9])
def test_all_answers_come_as_if_each_were_alone(bench: Bench, count: int) -> None:
    prompts = [CHAIN[i % 8] for i in range(count)]
    runs = bench.run_all(prompts)
    for prompt, run in zip(prompts, runs, strict=True):
        assert run.text == CHAIN[CHAIN.index(prompt) + 1 :]


def test_who_comes_later_does_not_wait_for_who_came_first(bench: Bench) -> None:
    endless = bench.start("x", options={"temperature": 0, "num_predict": 500})
    bench.step()
    later = bench.start("a")
    for _ in CHAIN.encode():
        bench.step()
    assert (later.left, later.text) == (True, CHAIN[1:])
    assert not endless.left
    bench.cancel(endless)


def test_a_long_prompt_holds_nobody_up(bench: Bench) -> None:
    writing = bench.start("x", options={"temperature": 0, "num_predict": 500})
    bench.step()
    reading = bench.start("y" + "xy" * 400, options={"temperature": 0, "num_predict": 4})
    bench.step()
    short = bench.start("abc")
    before, began = len(writing.tokens), bench.steps
    while not reading.tokens:
        bench.step()
    assert len(writing.tokens) - before == bench.steps - began, "a token each step"
    assert bench.steps - began > 3, "the prompt took several"
    assert short.first_step is not None
    assert short.first_step - began <= 2
    bench.cancel(writing)
    bench.finish()


def test_a_cancelled_request_leaves_at_once_and_its_slot_is_free(bench: Bench) -> None:
    runs = [bench.start("x", options={"num_predict": 900}) for _ in range(5)]
    bench.step()
    assert not runs[4].tokens, "four slots"
    bench.cancel(runs[0])
    assert runs[0].left
    bench.step()
    assert runs[4].tokens
    for run in runs[1:]:
        bench.cancel(run)
    assert not bench.engine.busy
    bench.cancel(runs[0])


def test_a_deadline_ends_a_request(bench: Bench) -> None:
    run = bench.start("x", options={"num_predict": 900}, deadline=time.time() - 1)
    other = bench.start("a")
    bench.finish()
    assert run.failure is not None
    assert run.failure.code is Code.DEADLINE_EXCEEDED
    assert other.text == CHAIN[1:]


def test_the_first_of_many_waits_a_moment_for_the_others(bench: Bench) -> None:
    engine = bench.engine
    assert engine.patience == 0, "nobody knows yet what a step takes"
    bench.run("a prompt that takes a moment to read")
    assert engine.patience == 0, "nobody waits"
    bench.start("who comes first")
    assert 0 < engine.patience <= 0.01
    for number in range(3):
        bench.start(f"and then {number}")
    assert engine.patience == 0, "there is no slot for another one"
    bench.step()
    assert engine.patience == 0, "a step has begun"
    bench.finish()


def test_it_counts_steps_and_memory(bench: Bench) -> None:
    before = bench.engine.steps
    bench.run("a")
    assert bench.engine.steps == before + len(CHAIN.encode())
    assert native_log.allocated > 2_000_000


# --- what is computed once


def test_a_prompt_that_was_read_is_not_read_again(bench: Bench) -> None:
    prompt = "once upon a time " * 20
    bench.run(prompt)
    before = bench.engine.computed
    again = bench.run(prompt + "a")
    assert again.cached == len(prompt)
    assert bench.engine.computed - before == len(CHAIN.encode())
    assert again.text == CHAIN[1:]


def test_the_next_turn_computes_only_what_is_new(bench: Bench) -> None:
    first = bench.run("tell me: " * 50 + "c")
    history = "tell me: " * 50 + CHAIN[2:]
    before = bench.engine.computed
    second = bench.run(history + "c")
    assert second.cached >= len(history.encode()) - 1
    assert bench.engine.computed - before <= len(first.tokens) + 2


def test_a_shared_beginning_is_computed_once_by_those_who_come_together(bench: Bench) -> None:
    system = "you are a reciting model. " * 20
    before = bench.engine.computed
    runs = bench.run_all([system + letter for letter in "abcd"])
    assert bench.engine.computed - before < len(system) + 100
    assert [run.text for run in runs] == [CHAIN[i:] for i in range(1, 5)]


def test_a_shared_beginning_survives_a_leader_who_leaves(bench: Bench) -> None:
    system = "a leader may leave at any time " * 30
    leader = bench.start(system + "a")
    bench.step()
    follower = bench.start(system + "b")
    bench.step()
    bench.cancel(leader)
    bench.finish()
    assert follower.text == CHAIN[2:]


def test_many_conversations_are_kept_beyond_the_slots(bench: Bench) -> None:
    prompts = [f"{number} of ten conversations " * 10 for number in range(10)]
    bench.run_all(prompts, options={"temperature": 0, "num_predict": 1})
    for prompt in prompts:
        run = bench.run(prompt + "a")
        assert run.cached >= len(prompt) - 1
        assert run.text == CHAIN[1:]


def test_nothing_is_kept_beyond_the_slots_without_memory_for_it(
    tmp_path: Any,
) -> None:
    path = tmp_path / "reciter.gguf"
    write_reciting_model(path, [CHAIN])
    bench = Bench(path, slots=1, cache_memory=0)
    bench.run("first " * 20)
    bench.run("second " * 20)
    assert bench.run("first " * 20 + "a").cached == 0
    bench.close()


def test_gaps_between_slots_are_closed_and_nobody_notices(bench: Bench) -> None:
    options = {"temperature": 0, "num_predict": 60}
    runs = [bench.start("x", options=options) for _ in range(4)]
    for _ in range(5):
        bench.step()
    bench.cancel(runs[1])
    bench.finish()
    for run in (runs[0], runs[2], runs[3]):
        assert run.text == "yx" * 30


# --- what else may be asked


def test_an_answer_has_the_form_that_was_asked_for(bench: Bench) -> None:
    form = Constraint(Grammar.REGEX, "[abx]{5}")
    shaped, free = bench.start("a", constraint=form), bench.start("a")
    bench.finish()
    assert re.fullmatch("[abx]{5}", shaped.text)
    assert shaped.reason is FinishReason.STOP
    assert free.text == CHAIN[1:], "the one beside it is not touched"


def test_a_form_goes_on_where_an_earlier_attempt_stood(bench: Bench) -> None:
    form = Constraint(Grammar.REGEX, "[abx]{5}")
    whole = bench.run("a", constraint=form)
    rest = bench.run("a", constraint=form, tokens=whole.tokens[:3])
    assert whole.tokens[:3] + rest.tokens == whole.tokens


def test_log_probabilities_come_with_every_token_but_the_last(bench: Bench) -> None:
    run = bench.run("a", logprobs=2)
    *told, end = run.logprobs
    assert end is None
    assert b"".join(each.chosen.piece for each in told if each) == CHAIN[1:].encode()
    assert all(each and each.chosen.logprob > -0.1 and len(each.top) == 2 for each in told)
    assert bench.run("a").logprobs[0] is None


# --- errors


def test_a_batch_that_fails_costs_only_the_request_at_fault(bench: Bench) -> None:
    good = bench.start("a")
    bad = bench.start("b")
    bad.prepared.sequence.tokens[0] = 10**6  # no such token: llama.cpp refuses the batch
    bench.finish()
    assert bad.failure is not None
    assert bad.failure.code is Code.INTERNAL
    assert good.text == CHAIN[1:]
    assert bench.run("a").text == CHAIN[1:]


# --- llama.cpp's log


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
