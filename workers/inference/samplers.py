"""Choosing tokens: llama.cpp's samplers in its order, with draws that another process can repeat.

The order is llama.cpp's: logit biases, penalties, DRY, top-n-σ, top-k, typical, top-p, min-p, XTC,
temperature. Its samplers run on candidates that are found here, because at most options only the
likeliest tokens can be chosen, and copying a large vocabulary for every token costs more than all
samplers together. The last draw, that of XTC, and Mirostat are our own: they depend on seed and
position, or would sort the vocabulary.

Importing this module imports llama_cpp: see `llama`. A sampler may be made in another thread than
the one that uses it; it never touches a context beyond reading its logits.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Sequence
from typing import Any, Protocol

import llama_cpp
import numpy as np

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import LogitBias
from .candidates import MAX_CANDIDATES, Array, likeliest
from .llama import DecodeFailed
from .mirostat import Mirostat
from .sampling import SamplingPlan, draw

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part


class _Array(ctypes.Structure):
    """llama.cpp's `llama_token_data_array`; `data` as a number, because samplers may move it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


def _declare(library: Any) -> tuple[Any, Any]:
    """Applying a sampler to an array, and telling it of a token."""
    apply, accept = library.llama_sampler_apply, library.llama_sampler_accept
    apply.argtypes, apply.restype = (_c.llama_sampler_p_ctypes, ctypes.POINTER(_Array)), None
    accept.argtypes, accept.restype = (_c.llama_sampler_p_ctypes, ctypes.c_int32), None
    return apply, accept


_path: str = _c.llama_cpp._lib._name
_apply, _ = _declare(ctypes.CDLL(_path))
# Giving up Python's lock for a call of a microsecond may cost milliseconds to get it back.
_quick_apply, _quick_accept = _declare(ctypes.PyDLL(_path))
_QUICK = 4096
"""Candidates up to which samplers take no longer than that."""

_SPARE = 64
"""Candidates beyond top-k where penalties may push some of them out."""
_PROBABLE = 80.0
"""How far below the largest a logit may be whose probability is more than 0 in 32 bits."""
_XTC = 1
"""The purpose of XTC's own draw."""
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_NEVER = np.float32(-np.inf)


class Outputs(Protocol):
    """A context after a step."""

    def logits(self, row: int) -> Array:
        """The logits of one output row, float32; raises `DecodeFailed` when there are none."""
        ...


class Tokens(Protocol):
    """What samplers need of a vocabulary."""

    @property
    def handle(self) -> Any:
        """llama.cpp's pointer."""
        ...

    @property
    def size(self) -> int:
        """Tokens in the vocabulary."""
        ...

    @property
    def end_tokens(self) -> Sequence[int]:
        """Every token by which the model ends its answer."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ...


class Sampler:
    """Chooses the tokens of one answer."""

    def __init__(self, plan: SamplingPlan, seed: int, vocabulary: Tokens) -> None:
        """Raises `PronkError` when a bias is for a token that the model does not have."""
        self._plan = plan
        self._seed = seed
        self._bias = _bias_of(plan, vocabulary)
        self._mirostat: Mirostat | None = None
        self._penalties: _Chain | None = None
        self._filters: _Chain | None = None
        self._xtc: _Chain | None = None
        self._after_xtc: _Chain | None = None
        self._needed = 1 if plan.greedy else plan.top_k
        """The likeliest tokens among which the choice is; 0 for all."""
        if plan.mirostat and not plan.greedy:
            # As in llama.cpp, it takes the place of everything but biases and temperature.
            self._mirostat = Mirostat(plan.mirostat, plan.mirostat_tau, plan.mirostat_eta)
            self._needed = 0
        else:
            self._make_chains(plan, vocabulary)
        spare = _SPARE if self._penalties or self._bias else 0
        self._reach = self._needed + spare if 0 < self._needed <= MAX_CANDIDATES - spare else 0

    def _make_chains(self, plan: SamplingPlan, vocabulary: Tokens) -> None:
        if plan.penalizes or plan.dries:
            self._penalties = _Chain(_penalties(plan, vocabulary))
        if plan.favours:
            self._needed = 0
        if plan.greedy:
            return
        if plan.top_n_sigma > 0.0:
            self._needed = 0
        if plan.xtc_probability > 0.0:
            self._filters = _Chain(_filters(plan))
            self._xtc = _Chain([_c.llama_sampler_init_xtc(1.0, plan.xtc_threshold, 1, 0)])
            self._after_xtc = _Chain([_temperature(plan)])
        else:
            self._filters = _Chain([*_filters(plan), _temperature(plan)])

    def see(self, tokens: Sequence[int]) -> None:
        """Tells the penalties which tokens stand before the next one, as far as they look back."""
        if self._penalties:
            for token in tokens[-self._plan.looks_back :]:
                self._penalties.accept(token)

    def sample(self, context: Outputs, row: int, position: int) -> int:
        """The token at `position` of the answer, from one row of the context's logits, where −∞
        stands for what is not allowed; biases never overrule that.

        Raises `DecodeFailed` when the logits are no numbers.
        """
        logits = context.logits(row)
        if self._mirostat:
            return self._by_surprise(self._mirostat, logits, position)
        if not (self._filters or self._penalties or self._bias):
            return _likeliest(logits)
        token = self._choose(logits, position)
        if self._penalties:
            self._penalties.accept(token)
        return token

    def _by_surprise(self, mirostat: Mirostat, logits: Array, position: int) -> int:
        best = _likeliest(logits)
        values = self._bias.on_all(logits) if self._bias else logits
        values = values / np.float32(self._plan.temperature or 1.0)
        if not np.isfinite(values.max()):
            return best  # biases forbid all that is allowed
        return mirostat.choose(values, draw(self._seed, position))

    def _choose(self, logits: Array, position: int) -> int:
        """The choice among the likeliest where that suffices, else among all."""
        if self._reach and (found := likeliest(logits, self._reach)):
            if not math.isfinite(found.largest):
                raise _not_finite()
            ids, values, floor, _ = found
            if self._bias:
                ids, values = self._bias.on_some(logits, ids, values)
            table = self._penalized(ids, values)
            if self._suffices(table, floor):
                return self._pick(table, position)
        best = _likeliest(logits)
        values = self._bias.on_all(logits) if self._bias else logits
        ids = np.flatnonzero(values > _NEVER)
        if not len(ids):
            return best  # biases forbid all that is allowed
        return self._pick(self._penalized(ids, values[ids]), position)

    def _penalized(self, ids: Array, values: Array) -> _Table:
        table = _scratch.table
        table.fill(ids, values)
        if self._penalties:
            self._penalties.apply(table)
        return table

    def _suffices(self, table: _Table, floor: float) -> bool:
        """Whether no token that is not in the table could be among those that are needed.

        All of them are below `floor`, and neither penalties nor biases lift one of them.
        """
        if not (self._penalties or self._bias):
            return True
        return bool(np.count_nonzero(table.logits >= floor) >= self._needed)

    def _pick(self, table: _Table, position: int) -> int:
        if not self._filters:
            return table.likeliest()
        self._cut(table)
        self._filters.apply(table)
        if self._xtc and self._after_xtc:
            if draw(self._seed, position, purpose=_XTC) < self._plan.xtc_probability:
                self._xtc.apply(table)
            self._after_xtc.apply(table)
        return table.draw(draw(self._seed, position))

    def _cut(self, table: _Table) -> None:
        """Top-n-σ; and what keeps llama.cpp's typical sampling from a crash: for a probability of
        0, which is that of everything far below, it sorts by what is no number.
        """
        reach = _PROBABLE if self._plan.typical_p < 1.0 else math.inf
        if self._plan.top_n_sigma > 0.0:
            spread = float(table.logits.std(dtype=np.float64))
            reach = min(reach, self._plan.top_n_sigma * spread)
        if reach < math.inf:
            table.keep(table.logits >= table.logits.max() - reach)

    def close(self) -> None:
        """Frees what llama.cpp allocated. May be called twice."""
        for chain in (self._penalties, self._filters, self._xtc, self._after_xtc):
            if chain:
                chain.close()


def _likeliest(logits: Array) -> int:
    # numpy takes NaN for the largest, so this looks at every one of them.
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        raise _not_finite()
    return best


def _not_finite() -> DecodeFailed:
    return DecodeFailed("the logits are not finite")


class _Table:
    """Candidates as llama.cpp's samplers take, reorder and shorten them, at both ends."""

    def __init__(self) -> None:
        self._array = _Array()
        self.reference = ctypes.byref(self._array)
        self._reserve(1024)

    def _reserve(self, room: int) -> None:
        records = np.zeros(room, _CANDIDATE)
        self._room = room
        self._ids, self._logits = records["id"], records["logit"]
        self._start: int = records.ctypes.data
        self._records = records  # which the array points into

    def fill(self, ids: Array, logits: Array) -> None:
        """Replaces the candidates."""
        size = len(ids)
        if size > self._room:
            self._reserve(size)
        self._ids[:size] = ids
        self._logits[:size] = logits
        array = self._array
        array.data = self._start
        array.size = size
        array.selected = -1
        array.sorted = False

    @property
    def size(self) -> int:
        """How many candidates there are now."""
        return self._array.size

    @property
    def ids(self) -> Array:
        """The candidates, in the order in which they stand now."""
        return self._ids[self._place()]

    @property
    def logits(self) -> Array:
        """Their logits."""
        return self._logits[self._place()]

    def _place(self) -> slice:
        first = (self._array.data - self._start) // _CANDIDATE.itemsize
        return slice(first, first + self._array.size)

    def keep(self, kept: Array) -> None:
        """Drops the candidates that `kept` is false for."""
        if not kept.all():
            self.fill(self.ids[kept], self.logits[kept])

    def likeliest(self) -> int:
        """The candidate with the largest logit."""
        return int(self.ids[self.logits.argmax()])

    def draw(self, chance: float) -> int:
        """The candidate at which `chance`, from 0 to 1, ends among their probabilities."""
        logits = self.logits
        size = len(logits)
        if size == 1:
            return int(self.ids[0])
        with np.errstate(invalid="ignore"):
            sums = np.exp(logits - logits.max(), dtype=np.float64).cumsum()
        if not sums[-1] >= 1.0:  # a temperature near 0 made infinities
            return self.likeliest()
        place = int(sums.searchsorted(chance * sums[-1], "right"))
        return int(self.ids[min(place, size - 1)])


class _Scratch(threading.local):
    """One table for each thread that samples: a large vocabulary takes 2 MB."""

    def __init__(self) -> None:
        self.table = _Table()


_scratch = _Scratch()


class _Chain:
    """Samplers of llama.cpp in a row."""

    def __init__(self, samplers: Sequence[Any]) -> None:
        params = _c.llama_sampler_chain_default_params()
        params.no_perf = True
        self._handle: Any = _c.llama_sampler_chain_init(params)
        for sampler in samplers:
            _c.llama_sampler_chain_add(self._handle, sampler)

    def apply(self, table: _Table) -> None:
        """Changes the candidates as the samplers do."""
        apply = _quick_apply if table.size <= _QUICK else _apply
        apply(self._handle, table.reference)

    def accept(self, token: int) -> None:
        """Tells the samplers that this token comes next."""
        _quick_accept(self._handle, token)

    def close(self) -> None:
        """Frees the samplers. May be called twice."""
        if self._handle:
            _c.llama_sampler_free(self._handle)
            self._handle = None


def _penalties(plan: SamplingPlan, vocabulary: Tokens) -> list[Any]:
    samplers: list[Any] = []
    if plan.penalizes:
        samplers.append(
            _c.llama_sampler_init_penalties(
                vocabulary.size,
                plan.repeat_last_n,
                plan.repeat_penalty,
                plan.frequency_penalty,
                plan.presence_penalty,
            )
        )
    if plan.dries:
        texts = [text.encode("utf-8", "replace") for text in plan.dry_sequence_breakers if text]
        samplers.append(
            _c.llama_sampler_init_dry(
                vocabulary.handle,
                plan.dry_multiplier,
                plan.dry_base,
                plan.dry_allowed_length,
                plan.dry_penalty_last_n,
                (ctypes.c_char_p * len(texts))(*texts),
                len(texts),
            )
        )
    return samplers


def _filters(plan: SamplingPlan) -> list[Any]:
    samplers: list[Any] = []
    if plan.top_k > 0:
        samplers.append(_c.llama_sampler_init_top_k(plan.top_k))
    if plan.typical_p < 1.0:
        samplers.append(_c.llama_sampler_init_typical(plan.typical_p, 1))
    if plan.top_p < 1.0:
        samplers.append(_c.llama_sampler_init_top_p(plan.top_p, 1))
    if plan.min_p > 0.0:
        samplers.append(_c.llama_sampler_init_min_p(plan.min_p, 1))
    return samplers


def _temperature(plan: SamplingPlan) -> Any:
    return _c.llama_sampler_init_temp_ext(
        plan.temperature, plan.dynatemp_range, plan.dynatemp_exponent
    )


class _Bias:
    """What is added to some tokens' logits; −∞ for those that may not come."""

    def __init__(self, biases: dict[int, float], size: int) -> None:
        self._ids = np.array(sorted(biases), np.int64)
        self._values = np.array([biases[token] for token in self._ids.tolist()], np.float32)
        self._biased = np.zeros(size, np.bool_)
        self._biased[self._ids] = True

    def on_all(self, logits: Array) -> Array:
        """The biased logits, in place of none."""
        values = logits.copy()
        values[self._ids] += self._values
        return values

    def on_some(self, logits: Array, ids: Array, values: Array) -> tuple[Array, Array]:
        """Candidates and all tokens that have a bias, with their logits; without forbidden ones."""
        others = ~self._biased[ids]
        ids = np.concatenate((ids[others], self._ids))
        values = np.concatenate((values[others], logits[self._ids] + self._values))
        allowed = values > _NEVER
        return ids[allowed], values[allowed]


def _bias_of(plan: SamplingPlan, vocabulary: Tokens) -> _Bias | None:
    biases: dict[int, float] = {}
    for entry in plan.logit_bias:
        for token in _tokens_of(entry, vocabulary):
            added = -math.inf if entry.bias is None else entry.bias
            biases[token] = biases.get(token, 0.0) + added
    if plan.ignore_eos:
        biases |= dict.fromkeys(vocabulary.end_tokens, -math.inf)
    return _Bias(biases, vocabulary.size) if biases else None


def _tokens_of(entry: LogitBias, vocabulary: Tokens) -> Sequence[int]:
    if isinstance(entry.token, str):
        return vocabulary.tokenize(entry.token)
    if entry.token >= vocabulary.size:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"options.logit_bias: the model has no token {entry.token}; its tokens are 0 to "
            f"{vocabulary.size - 1}",
        )
    return (entry.token,)
