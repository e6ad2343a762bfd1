"""Texts to vectors in the engine: real llama.cpp, small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import gguf
import numpy as np
import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.messages.embedding import Embed, EmbedBody, Embedded
from pronk.protocol.messages.generation import Caller, Failed
from pronk.protocol.messages.placement import Outcome, Released
from pronk.workers.inference.embedder import Embedder
from pronk.workers.inference.embedding_inputs import InputPreparer
from pronk.workers.inference.llama import Model
from pronk.workers.inference.messages import WithNumbers
from support.encoder_models import CONTEXT, DIMENSION, WORDS, write_encoder
from support.models import write_reciting_model

CLS, SEP = 2, 3
MANY = [" ".join(WORDS[i % 12] for i in range(start, start + 1 + start % 9)) for start in range(70)]


class Bench:
    """One model with all that turns texts into vectors."""

    def __init__(self, path: Path, context: int = 1024) -> None:
        self.model = Model(path)
        self.embedder = Embedder(self.model, context, 1)
        self.preparer = InputPreparer(
            self.model.vocabulary,
            ranks=self.model.ranks,
            context_length=self.embedder.context_length,
            pair_template=self.model.pair_template,
        )

    def submit(self, *texts: str, **fields: Any) -> str:
        header = Embed(
            request=uuid4().hex,
            attempt=1,
            model="m",
            digest="d" * 64,
            caller=Caller(),
            frontend="f" * 16,
            reply_to="ipc://nowhere",
            cost=0,
            context_length=fields.pop("context_length", None),
            deadline=fields.pop("deadline", None),
        )
        inputs = self.preparer.prepare(EmbedBody(list(texts), **fields), header.context_length)
        self.embedder.submit(header, inputs)
        return header.request

    def run(self) -> dict[str, list[Any]]:
        """All that is said until nothing is left to do, by request."""
        said: dict[str, list[Any]] = {}
        for _ in range(1000):
            if not self.embedder.busy:
                return said
            for message in self.embedder.step():
                key = message.message if isinstance(message, WithNumbers) else message
                said.setdefault(key.request, []).append(message)
        raise AssertionError("it does not end")

    def embed(self, *texts: str, **fields: Any) -> np.ndarray:
        request = self.submit(*texts, **fields)
        answer, released = self.run()[request]
        assert released.outcome is Outcome.FINISHED
        return vectors(answer)

    def close(self) -> None:
        self.embedder.close()
        self.model.close()


def vectors(answer: WithNumbers) -> np.ndarray:
    assert isinstance(answer.message, Embedded)
    shape = (answer.message.count, answer.message.dimension)
    return np.frombuffer(answer.numbers, "<f4").reshape(shape)


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return (left * right).sum(axis=1) / norms


BenchMaker = Callable[..., Bench]


@pytest.fixture
def encoder(tmp_path: Path) -> Iterator[BenchMaker]:
    made: list[Bench] = []

    def make(context: int = 1024, **model: Any) -> Bench:
        path = tmp_path / f"{len(made)}.gguf"
        write_encoder(path, **model)
        made.append(Bench(path, context))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def decoder(tmp_path: Path) -> Iterator[BenchMaker]:
    made: list[Bench] = []

    def make(context: int = 1024) -> Bench:
        path = tmp_path / "decoder.gguf"
        write_reciting_model(path, ["why is the sky", "blue"])
        made.append(Bench(path, context))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_many_at_once_are_what_each_is_alone_and_in_order(
    kind: str, request: pytest.FixtureRequest
) -> None:
    bench: Bench = request.getfixturevalue(kind)()
    together = bench.embed(*MANY)
    steps = bench.embedder.steps
    alone = np.concatenate([bench.embed(text) for text in MANY])
    assert steps < len(MANY) / 3
    assert together.shape == alone.shape == (70, bench.model.dimension)
    assert cosines(together, alone).min() > 0.9999


def test_vectors_have_length_1_also_after_the_cut_and_only_where_it_is_wanted(
    encoder: BenchMaker,
) -> None:
    bench = encoder()
    raw = bench.embed("the sky", normalize=False)
    assert abs(np.linalg.norm(raw) - 1) > 0.01
    whole = bench.embed("the sky")
    cut = bench.embed("the sky", dimensions=5)
    assert (whole.shape, cut.shape) == ((1, DIMENSION), (1, 5))
    assert np.allclose([np.linalg.norm(whole), np.linalg.norm(cut)], 1, atol=1e-6)
    assert np.allclose(raw / np.linalg.norm(raw), whole, atol=1e-6)
    assert np.allclose(raw[:, :5] / np.linalg.norm(raw[:, :5]), cut, atol=1e-6)
    assert bench.embed("the sky", dimensions=10_000).shape == (1, DIMENSION)


def test_pooling_is_what_the_file_says_and_the_mean_where_it_says_nothing(
    encoder: BenchMaker,
) -> None:
    mean, cls, silent = (
        encoder(pooling=pooling).embed("the sky is blue")
        for pooling in (gguf.PoolingType.MEAN, gguf.PoolingType.CLS, None)
    )
    assert np.allclose(mean, silent, atol=1e-6)
    assert not np.allclose(mean, cls, atol=0.01)


def test_a_text_that_is_too_long_keeps_its_ends_tokens_or_is_refused(encoder: BenchMaker) -> None:
    bench = encoder()
    body = EmbedBody(["sky " * 100, "sea"])
    long, short = bench.preparer.prepare(body, None).tokens
    assert len(long) == CONTEXT == bench.embedder.context_length
    assert (long[0], long[-1], len(short)) == (CLS, SEP, 3)
    assert len(bench.preparer.prepare(body, 10).tokens[0]) == 10
    assert bench.embed("sky " * 100).shape == (1, DIMENSION)
    with pytest.raises(PronkError, match=r"input\[7\] has .* holds 64") as caught:
        bench.preparer.prepare(EmbedBody(["sea", "sky " * 100], first=6, truncate=False), None)
    assert caught.value.code is Code.INVALID_REQUEST


def test_a_huge_text_is_not_read_to_its_end(encoder: BenchMaker) -> None:
    bench = encoder()
    seen: list[int] = []
    tokenize = bench.model.vocabulary.tokenize

    def counting(text: str, *, framed: bool = False) -> list[int]:
        seen.append(len(text))
        return tokenize(text, framed=framed)

    bench.model.vocabulary.tokenize = counting
    (tokens,) = bench.preparer.prepare(EmbedBody(["sky " * 1_000_000]), None).tokens
    assert len(tokens) == CONTEXT
    assert sum(seen) < 10_000


@pytest.mark.parametrize("text", ["", " ", "\0", "\0sky\0", "�" * 10, "x" * 500, "[CLS]"])
def test_every_text_has_a_vector_in_an_encoder(encoder: BenchMaker, text: str) -> None:
    assert np.isfinite(encoder().embed(text)).all()


def test_a_decoder_refuses_a_text_without_tokens(decoder: BenchMaker) -> None:
    bench = decoder()
    with pytest.raises(PronkError, match=r"input\[1\] is empty"):
        bench.preparer.prepare(EmbedBody(["a", ""]), None)


def test_a_decoder_takes_no_memory_for_vectors_before_one_is_asked_for(decoder: BenchMaker) -> None:
    bench = decoder()
    assert bench.embedder._context is None
    bench.embed("why")
    assert bench.embedder._context


def test_a_text_of_several_steps_has_the_vector_of_its_last_token(decoder: BenchMaker) -> None:
    bench = decoder(2048)
    text = "why is the sky " * 80
    request = bench.submit(text)
    other = bench.submit("blue")
    said = bench.run()
    assert bench.embedder.steps >= 4
    last = bench.embed("y ")
    # In this model the last token alone decides.
    assert cosines(vectors(said[request][0]), last).min() > 0.999
    assert cosines(vectors(said[other][0]), bench.embed("blue")).min() > 0.9999


def test_a_single_text_does_not_wait_for_a_long_list(encoder: BenchMaker) -> None:
    bench = encoder()
    long = bench.submit(*["sky " * 60] * 40)
    single = bench.submit("sea")
    ended: list[str] = []
    while bench.embedder.busy:
        ended += [m.request for m in bench.embedder.step() if isinstance(m, Released)]
        if not ended:
            assert bench.embedder.steps < 2
    assert ended == [single, long]


def test_no_numbers_fail_their_request_and_no_other(encoder: BenchMaker) -> None:
    bench = encoder(poisoned_word="mat")
    good, bad, fine = bench.submit("the sky"), bench.submit("a cat", "the mat"), bench.submit("sea")
    said = bench.run()
    failed, released = said[bad]
    assert isinstance(failed, Failed)
    assert failed.failure.code is Code.INTERNAL
    assert released.outcome is Outcome.FAILED
    clean = encoder()
    for request, text in ((good, "the sky"), (fine, "sea")):
        answer, released = said[request]
        assert released.outcome is Outcome.FINISHED
        assert cosines(vectors(answer), clean.embed(text)).min() > 0.9999
    assert cosines(bench.embed("sea"), clean.embed("sea")).min() > 0.9999


def test_a_cancelled_request_leaves_at_once_and_says_nothing_else(encoder: BenchMaker) -> None:
    bench = encoder()
    long = bench.submit(*["sky " * 60] * 40)
    other = bench.submit(*["sea " * 60] * 20)
    bench.embedder.step()
    (released,) = bench.embedder.cancel(long, 1)
    assert (released.request, released.outcome) == (long, Outcome.CANCELLED)
    assert bench.embedder.cancel(long, 1) == []
    said = bench.run()
    assert list(said) == [other]
    assert vectors(said[other][0]).shape == (20, DIMENSION)


def test_a_request_whose_time_is_over_ends_before_the_next_step(encoder: BenchMaker) -> None:
    bench = encoder()
    late = bench.submit("sky", deadline=1.0)
    bench.submit("sea", deadline=4e9)
    failed, released = bench.run()[late]
    assert failed.failure.code is Code.DEADLINE_EXCEEDED
    assert released.outcome is Outcome.FAILED


def test_a_model_that_ranks_scores_each_document(encoder: BenchMaker) -> None:
    bench = encoder(pooling=gguf.PoolingType.RANK)
    documents = ["the sea is deep", "the sky is blue", "a cat sat on the mat", ""]
    scores = bench.embed(*documents, query="why is the sky blue", normalize=False)
    assert scores.shape == (4, 1)
    assert ((scores > 0) & (scores < 1)).all()
    assert len(set(scores.ravel().tolist())) == 4
    alone = [bench.embed(d, query="why is the sky blue", normalize=False) for d in documents]
    assert np.allclose(scores, np.concatenate(alone), atol=1e-5)
    other = bench.embed(*documents, query="the cat", normalize=False)
    assert not np.allclose(scores, other, atol=1e-3)


def test_a_request_without_any_text_is_refused(encoder: BenchMaker) -> None:
    with pytest.raises(PronkError, match="no input"):
        encoder().preparer.prepare(EmbedBody([]), None)


def test_a_document_that_is_too_long_is_cut_and_the_query_is_not(encoder: BenchMaker) -> None:
    bench = encoder(pooling=gguf.PoolingType.RANK)
    body = EmbedBody(["sky " * 100], query="sea sea sea")
    (tokens,) = bench.preparer.prepare(body, None).tokens
    assert len(tokens) == CONTEXT
    sea = bench.model.vocabulary.tokenize("sea")
    assert tokens[:5] == [CLS, *sea * 3, SEP]
    assert tokens[-1] == SEP
    with pytest.raises(PronkError, match=r"query has .* raise num_ctx"):
        bench.preparer.prepare(EmbedBody(["sky"], query="sea " * 100), None)
    with pytest.raises(PronkError, match=r"documents\[0\] has"):
        bench.preparer.prepare(EmbedBody(["sky " * 100], query="sea", truncate=False), None)


def test_ranking_and_embedding_each_need_their_kind_of_model(encoder: BenchMaker) -> None:
    with pytest.raises(PronkError, match="cannot rank") as caught:
        encoder().preparer.prepare(EmbedBody(["sky"], query="sea"), None)
    assert caught.value.code is Code.INVALID_REQUEST
    ranker = encoder(pooling=gguf.PoolingType.RANK)
    with pytest.raises(PronkError, match="/api/rerank"):
        ranker.preparer.prepare(EmbedBody(["sky"]), None)
