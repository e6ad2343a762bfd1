"""What a Modelfile sets, in the engine: prompts that are shared, streams that go on, seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pronk.protocol.messages.generation import ChatMessage, FinishReason, Kind
from pronk.workers.conversation.opening import Opening
from pronk.workers.store.demo import WEIGHTS
from support.engines import Bench, Run
from support.models import write_reciting_model

CHAIN = "abcdéfghij"
OPENING = Opening(
    "You are a careful assistant who answers in one short sentence, and never in two of them.",
    (ChatMessage("user", "Hello?"), ChatMessage("assistant", "Hello!")),
)
ANYTHING = {"temperature": 2.5, "top_k": 0, "top_p": 1.0, "num_predict": 30}

BenchMaker = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[BenchMaker]:
    made: list[Bench] = []

    def make(path: Path = WEIGHTS, **what: Any) -> Bench:
        made.append(Bench(path, **what))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


def ask(bench: Bench, text: str, *before: ChatMessage, **changes: Any) -> Run:
    messages = [*before, ChatMessage("user", text)]
    return bench.run("", kind=Kind.CHAT, raw=False, messages=messages, **changes)


def test_a_conversation_reads_as_if_its_opening_had_been_sent(make: BenchMaker) -> None:
    plain, opened = make(), make(opening=OPENING)
    sent = [ChatMessage("system", OPENING.system), *OPENING.messages]
    said, meant = ask(opened, "Why?"), ask(plain, "Why?", *sent)
    assert said.prepared.prompt == meant.prepared.prompt
    assert said.tokens == meant.tokens
    assert said.prepared.prompt != ask(plain, "Why?").prepared.prompt


def test_an_opening_is_computed_once_for_all(make: BenchMaker) -> None:
    bench = make(opening=OPENING)
    options = {"temperature": 0, "num_predict": 4}
    assert ask(bench, "Why is the sky blue?", options=options).cached == 0
    second = ask(bench, "How deep is the sea?", options=options)
    opening = len(bench.model.vocabulary.tokenize(OPENING.system))
    assert second.cached > opening
    assert second.cached < len(second.prepared.prompt)


def test_a_stream_goes_on_where_it_was(make: BenchMaker, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_reciting_model(path, [CHAIN])
    first, second = make(path, opening=OPENING), make(path, opening=OPENING)
    whole = ask(first, "hello")
    assert (whole.text, whole.reason) == (CHAIN, FinishReason.STOP)
    for sent in (1, 5, len(whole.tokens)):  # the second one ends inside of é
        released = len("".join(whole.pieces[:sent]))
        rest = ask(second, "hello", tokens=whole.tokens[:sent], released=released)
        assert rest.prepared.prompt == whole.prepared.prompt
        assert whole.tokens[:sent] + rest.tokens == whole.tokens
        assert rest.prepared.answer.pending + rest.text == CHAIN[released:]


# --- seeds


def sampled(bench: Bench, seed: int, *, any_seed: bool, tokens: list[int] | None = None) -> Run:
    return bench.run("a", options=ANYTHING, seed=seed, any_seed=any_seed, tokens=tokens or [])


@pytest.fixture
def straying(make: BenchMaker, tmp_path: Path) -> Callable[..., Bench]:
    """Models that go round in the chain, and stray from it now and then."""
    path = tmp_path / "straying.gguf"
    write_reciting_model(path, [CHAIN + CHAIN[0]], margin=12.0)
    return lambda **parameters: make(path, parameters=parameters)


def test_a_modelfiles_seed_counts_where_a_request_has_none(
    straying: Callable[..., Bench],
) -> None:
    bench = straying(seed=2**32 + 42)
    own = sampled(bench, 42, any_seed=False).tokens
    assert [sampled(bench, seed, any_seed=True).tokens for seed in (1, 2)] == [own, own]
    assert sampled(bench, 1, any_seed=False).tokens != own


def test_without_one_the_seed_that_was_drawn_counts(straying: Callable[..., Bench]) -> None:
    for bench in (straying(), straying(seed=-1), straying(seed="many")):
        drawn = [sampled(bench, seed, any_seed=True).tokens for seed in (1, 2)]
        assert drawn == [sampled(bench, seed, any_seed=False).tokens for seed in (1, 2)]
        assert drawn[0] != drawn[1]


def test_a_stream_goes_on_with_the_models_seed(straying: Callable[..., Bench]) -> None:
    first, second = straying(seed=5), straying(seed=5)
    whole = sampled(first, 1, any_seed=True).tokens
    cut = len(whole) // 2
    # Whatever seed the next attempt's header has: it is not asked.
    rest = sampled(second, 1, any_seed=True, tokens=whole[:cut])
    assert whole[:cut] + rest.tokens == whole


# --- the parameters that Ollama documents for a Modelfile


@pytest.mark.parametrize(
    ("parameters", "request_options"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_k": 1}, {"top_k": 1}),
        ({"top_p": 0.0}, {"top_p": 0.0}),
        ({"min_p": 1.0}, {"min_p": 1.0}),
        ({"typical_p": 0.01}, {"typical_p": 0.01}),
        ({"num_predict": 3}, {"num_predict": 3}),
        ({"stop": ["d", "q"]}, {"stop": ["d", "q"]}),
        ({"repeat_penalty": 9.0, "repeat_last_n": 32}, {"repeat_penalty": 9.0}),
        ({"repeat_last_n": 0, "repeat_penalty": 9.0}, {"repeat_last_n": 0}),
        ({"presence_penalty": 9.0}, {"presence_penalty": 9.0}),
        ({"frequency_penalty": 9.0}, {"frequency_penalty": 9.0}),
        ({"mirostat": 2, "mirostat_tau": 0.01}, {"mirostat": 2, "mirostat_tau": 0.01}),
    ],
    ids=lambda value: next(iter(value)),
)
def test_a_parameter_does_what_the_option_does(
    straying: Callable[..., Bench],
    parameters: dict[str, Any],
    request_options: dict[str, Any],
) -> None:
    wide = {"temperature": 1.5, "num_predict": 40, "top_k": 0, "top_p": 1.0}
    of_request = {name: value for name, value in wide.items() if name not in parameters}
    by_model = straying(**parameters)
    by_request = straying()
    text = [by_model.run("a", options=of_request, seed=seed).tokens for seed in range(4)]
    wanted = {**wide, **parameters, **request_options}
    assert text == [by_request.run("a", options=wanted, seed=seed).tokens for seed in range(4)]
    if "repeat_last_n" not in request_options:
        plain = [by_request.run("a", options=wide, seed=seed).tokens for seed in range(4)]
        assert text != plain
