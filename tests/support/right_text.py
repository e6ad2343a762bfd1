"""The criterion of a right text.

What a model answers greedily depends on how its work was cut into batches: numbers are rounded in
another order, and where two tokens are almost equally likely the other one wins. So a text is not
compared with another one. It is *right* when each of its tokens was, as far as rounding goes, the
likeliest after all that stood before it: the whole text is computed at once, in a context that has
nothing else in it, and every chosen token's logit must reach the maximum but for a small rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from pronk.workers.inference import llama

_c: Any = llama_cpp
assert llama.native_log, "the import initializes llama.cpp and takes its log"

EPSILON = 0.1
"""How far below the maximum a token's logit may lie, in standard deviations of all logits there.

Rounding moved them by 0.006 in the worst of 2,000 tokens that several models chose in batches. A
token chosen after another text lies whole deviations below the maximum, nine times out of ten.
"""

_BATCH = 512


@dataclass(frozen=True)
class Score:
    """What the model makes of each token of an answer, in standard deviations of the logits."""

    below: np.ndarray
    """How far the token's logit lies below the maximum: 0 for the likeliest one."""
    margins: np.ndarray
    """How far the second likeliest token lies below the likeliest."""


def score(
    path: Path, prompt: Sequence[int], answer: Sequence[int], adapters: tuple[Path, ...] = ()
) -> Score:
    """Computes prompt and answer at once.

    The answer must be greedy: nothing but the model may have had a say in it, no penalty either.
    """
    assert prompt, "a text begins with at least one token"
    tokens = [*prompt, *answer][:-1]
    below: list[float] = []
    margins: list[float] = []
    with _bare(path, len(tokens), adapters) as bare:
        for start in range(0, len(tokens), _BATCH):
            part = tokens[start : start + _BATCH]
            first = max(len(prompt) - 1 - start, 0)
            for row, logits in enumerate(bare.decode(part, start, first), start + first):
                second, highest = np.partition(logits, -2)[-2:]
                chosen = logits[answer[row + 1 - len(prompt)]]
                below.append((highest - chosen) / logits.std())
                margins.append((highest - second) / logits.std())
    return Score(np.array(below), np.array(margins))


def assert_right(
    path: Path,
    prompt: Sequence[int],
    answer: Sequence[int],
    *,
    adapters: tuple[Path, ...] = (),
    epsilon: float = EPSILON,
) -> None:
    """Fails when `answer` is not what the model at `path` says to `prompt`, and says where."""
    assert answer, "an empty answer is neither right nor wrong"
    below = score(path, prompt, answer, adapters).below
    wrong = np.flatnonzero(~(below <= epsilon))  # so that NaN is wrong too
    assert not len(wrong), (
        f"token {wrong[0]} of {len(answer)} ({answer[wrong[0]]}) lies {below[wrong[0]]:.2f} "
        f"deviations below the maximum; {len(wrong)} lie more than {epsilon:g} below it"
    )


def sure_length(
    path: Path, prompt: Sequence[int], answer: Sequence[int], *, epsilon: float = EPSILON
) -> int:
    """How many first tokens of a right `answer` every other right answer has too.

    Up to there no second token comes so near to the likeliest that rounding could prefer it.
    """
    near = np.flatnonzero(~(score(path, prompt, answer).margins > epsilon))
    return int(near[0]) if len(near) else len(answer)


def greedy_answer(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that the model says when it is asked alone, one after the other."""
    answer: list[int] = []
    with _bare(path, len(prompt) + count) as bare:
        for start in range(0, len(prompt) - _BATCH, _BATCH):
            bare.decode(prompt[start : start + _BATCH], start, _BATCH)
        position = (len(prompt) - 1) // _BATCH * _BATCH
        part = list(prompt[position:])
        while len(answer) < count:
            logits = bare.decode(part, position, len(part) - 1)
            answer.append(int(logits[0].argmax()))
            part, position = answer[-1:], len(prompt) + len(answer) - 1
    return answer


class _Bare:
    """The shortest way to llama.cpp: one context, one sequence, one thread."""

    def __init__(self, model: Any, adapters: Sequence[Any], length: int) -> None:
        params = _c.llama_context_default_params()
        params.n_ctx = length
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = 1
        params.offload_kqv = params.op_offload = False
        self._size = _c.llama_vocab_n_tokens(_c.llama_model_get_vocab(model))
        self._context = _c.llama_init_from_model(model, params)
        assert self._context, "there is no memory for a context"
        if adapters:
            handles = (_c.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
            scales = (ctypes.c_float * len(adapters))(*[1.0] * len(adapters))
            assert _c.llama_set_adapters_lora(self._context, handles, len(adapters), scales) == 0
        self._batch = _c.llama_batch_init(_BATCH, 0, 1)

    def decode(self, tokens: Sequence[int], position: int, first: int) -> np.ndarray:
        """A row of logits for each token from the one numbered `first`: a view until next time."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row], batch.pos[row] = token, position + row
            batch.n_seq_id[row], batch.seq_id[row][0] = 1, 0
            batch.logits[row] = row >= first
        assert _c.llama_decode(self._context, batch) == 0, "the text could not be computed"
        rows = max(len(tokens) - first, 0)
        if not rows:
            return np.empty((0, self._size), np.float32)
        return np.ctypeslib.as_array(_c.llama_get_logits(self._context), (rows, self._size))

    def close(self) -> None:
        _c.llama_batch_free(self._batch)
        _c.llama_free(self._context)


@contextmanager
def _bare(path: Path, length: int, adapters: tuple[Path, ...] = ()) -> Iterator[_Bare]:
    bare = _Bare(*_model(path, adapters), length)
    try:
        yield bare
    finally:
        bare.close()


@cache
def _model(path: Path, adapters: tuple[Path, ...] = ()) -> tuple[Any, list[Any]]:
    params = _c.llama_model_default_params()
    params.n_gpu_layers = 0
    model = _c.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"{path.name} could not be loaded"
    loaded = [_c.llama_adapter_lora_init(model, str(adapter).encode()) for adapter in adapters]
    assert all(loaded), "an adapter could not be loaded"
    return model, loaded
