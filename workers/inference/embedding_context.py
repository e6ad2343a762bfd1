"""llama.cpp as it turns texts into vectors: a context beside the one that generates.

How the vectors of a text's tokens become the text's own vector (pooling) stands in the file; where
it does not, an encoder takes their mean and a decoder its last token's, as Ollama does.

A decoder's last vector needs no pooling. llama.cpp computes the output layer, a large part of a
small model, for every token of a batch while embeddings are wanted; so a text's last token is
computed in a batch of its own, and all before it as if for a generation, in chunks where it is
long. Any other pooling happens within llama.cpp, which needs a text whole in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np

from .batch import Batch
from .llama import DecodeFailed, Model, context_params

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

SEQUENCES_OF_ENCODER = 64
SEQUENCES_OF_DECODER = 16
"""Most texts in one step. A decoder keeps a state for each of them."""

_PLAIN_ATTENTION = 2**21
"""Largest attention matrix, in numbers for each head, that is computed as a whole. Flash attention
takes less memory, but rounds by the size of the batch: a vector then depends on what was computed
beside it (measured: a cosine of 0.9996 in a Q8_0 model, where this way leaves 0.9999999)."""


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of one text that a step computes."""

    tokens: Sequence[int]
    position: int = 0
    """Where they stand in the text: more than 0 goes on behind the part of the step before."""
    ends: bool = True
    """Whether they are the text's last."""


@dataclass(frozen=True, slots=True)
class EmbeddingPlan:
    """How a context for vectors is made."""

    pools: bool
    """Whether llama.cpp itself makes one vector of a text's, for which it needs it whole."""
    capacity: int
    """Tokens that a step can compute at most."""
    sequences: int
    """Texts that a step can compute at most."""
    pooling: int
    params: Any
    """`llama_context_params`."""


def plan_embedding(model: Model, length: int, threads: int, batch: int) -> EmbeddingPlan:
    """The plan for texts of at most `length` tokens, about `batch` of them in a step."""
    encodes = not model.generates
    pools = encodes or model.pooling not in (
        None,
        _c.LLAMA_POOLING_TYPE_NONE,
        _c.LLAMA_POOLING_TYPE_LAST,
    )
    capacity = max(batch, length) if pools else batch
    sequences = SEQUENCES_OF_ENCODER if encodes else SEQUENCES_OF_DECODER
    pooling = _c.LLAMA_POOLING_TYPE_NONE
    if pools:
        pooling = model.pooling or _c.LLAMA_POOLING_TYPE_MEAN
    params = context_params(threads, offloaded=model.offloaded)
    params.n_ctx = max(length, capacity)
    params.n_batch = params.n_ubatch = capacity
    params.n_seq_max = sequences
    if not pools:  # else room is kept for the output layer of every token
        params.n_outputs_max = sequences
    params.embeddings = True
    params.pooling_type = pooling
    params.flash_attn_type = _c.LLAMA_FLASH_ATTN_TYPE_AUTO
    if params.n_ctx * params.n_ubatch <= _PLAIN_ATTENTION:
        params.flash_attn_type = _c.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.kv_unified = True
    return EmbeddingPlan(pools, capacity, sequences, pooling, params)


class EmbeddingContext:
    """Vectors of texts. Belongs to one thread."""

    def __init__(self, model: Model, length: int, threads: int, batch: int) -> None:
        """`length` is the longest text in tokens; a step computes about `batch` of them.

        Raises `PronkError` (LOAD_FAILED) when the memory does not suffice.
        """
        plan = plan_embedding(model, length, threads, batch)
        self.pools, self.capacity, self.sequences = plan.pools, plan.capacity, plan.sequences
        ranks = plan.pooling == _c.LLAMA_POOLING_TYPE_RANK
        self.dimension = model.classes if ranks else model.dimension
        """Numbers of a vector."""
        self._handle = model.new_context(plan.params)
        self._memory = _c.llama_get_memory(self._handle)
        self._compute = _c.llama_decode if model.generates else _c.llama_encode
        self._rows = _Rows(self.capacity)

    def compute(self, parts: Sequence[Part]) -> list[np.ndarray[Any, Any] | None]:
        """The vectors of the texts that end in `parts`; None for a text that does not.

        A part that goes on behind an earlier one is the only one of its step. Raises `DecodeFailed`
        and forgets everything.
        """
        if self._memory and not parts[0].position:
            _c.llama_memory_clear(self._memory, False)
        if self.pools:
            rows = [_Run(number, part.tokens, 0) for number, part in enumerate(parts)]
            self._run(self._rows.fill(rows, outputs=True))
            return [self._vector(_c.llama_get_embeddings_seq, row.sequence) for row in rows]
        before: list[_Run] = []
        last: list[_Run] = []
        for number, part in enumerate(parts):
            end = len(part.tokens) - part.ends
            before.append(_Run(number, part.tokens[:end], part.position))
            if part.ends:
                last.append(_Run(number, part.tokens[end:], part.position + end))
        _c.llama_set_embeddings(self._handle, False)
        self._run(self._rows.fill(before, outputs=False))
        _c.llama_set_embeddings(self._handle, True)
        self._run(self._rows.fill(last, outputs=True))
        vectors = iter(range(len(last)))
        return [
            self._vector(_c.llama_get_embeddings_ith, next(vectors)) if part.ends else None
            for part in parts
        ]

    def _run(self, batch: Any) -> None:
        if batch.n_tokens and (status := self._compute(self._handle, batch)) != 0:
            self.forget()
            raise DecodeFailed(f"computing embeddings returned {status}")

    def _vector(self, get: Any, place: int) -> np.ndarray[Any, Any]:
        pointer = get(self._handle, place)
        if not pointer:
            raise DecodeFailed("there is no embedding")
        return np.ctypeslib.as_array(pointer, (self.dimension,)).copy()

    def set_threads(self, threads: int) -> None:
        """Computes with so many threads from the next step on."""
        _c.llama_set_n_threads(self._handle, threads, threads)

    def forget(self) -> None:
        """Empties the KV cache with the numbers in it, because NaN outlives a mask."""
        if self._memory:
            _c.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Gives the memory back."""
        _c.llama_free(self._handle)


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive tokens of one sequence."""

    sequence: int
    tokens: Sequence[int]
    position: int


class _Rows:
    """A batch that is filled with runs of tokens."""

    def __init__(self, capacity: int) -> None:
        self._batch = Batch(capacity)

    def fill(self, runs: Sequence[_Run], *, outputs: bool) -> Any:
        """The batch that holds `runs`, with `outputs` for all of their tokens or for none."""
        row, batch = 0, self._batch
        for run in runs:
            end = row + len(run.tokens)
            batch.tokens[row:end] = run.tokens
            batch.positions[row:end] = np.arange(run.position, run.position + end - row)
            batch.sequences[row:end] = run.sequence
            row = end
        batch.outputs[:row] = outputs
        return batch.end(row)
