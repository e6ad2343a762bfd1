"""llama.cpp: the few calls that the engine needs, with an owner for everything that C allocates.

Importing this module imports llama_cpp and initializes its devices: only a worker that was told
what to load does that. Nothing here is safe for use from two threads at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from ...protocol.errors import Code, PronkError
from .native_log import NativeLog
from .sampling import SamplingPlan, draw_seed
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from .context import Context

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

native_log = NativeLog()

# llama.cpp calls it at any later time: it must never be collected.
_log_callback = _c.llama_log_callback(lambda level, text, _: native_log.write(level, text))
_c.llama_log_set(_log_callback, None)
_c.llama_backend_init()


class DecodeFailed(Exception):
    """llama.cpp could not compute a batch, or computed no numbers. For the log, not for clients."""


class Model:
    """The weights and the vocabulary of one GGUF file, memory-mapped, on the CPU."""

    def __init__(self, path: Path) -> None:
        """Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason, without the path."""
        params = _c.llama_model_default_params()
        params.load_mode = _c.LLAMA_LOAD_MODE_MMAP
        params.n_gpu_layers = 0
        native_log.forget()
        self._path = path
        self.handle = _c.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise self.load_error()
        if not _c.llama_model_has_decoder(self.handle) or _c.llama_model_has_encoder(self.handle):
            raise PronkError(Code.LOAD_FAILED, "it is not a model that generates text")
        self.vocabulary = Vocabulary(_c.llama_model_get_vocab(self.handle))
        self.trained_context = int(_c.llama_model_n_ctx_train(self.handle))
        """Tokens of context that the model was trained for; 0 where it does not say."""

    def load_error(self) -> PronkError:
        """What llama.cpp's log says about the call that just failed."""
        reason = native_log.reason(str(self._path), self._path.name)
        return PronkError(Code.LOAD_FAILED, reason)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source in the file's metadata."""
        source = _c.llama_model_chat_template(self.handle, None)
        return source.decode("utf-8", "replace") if source else None

    def close(self) -> None:
        """Gives the memory back. Contexts of this model must be closed before."""
        _c.llama_model_free(self.handle)


class Sampler:
    """Chooses the tokens of one answer.

    The chain is llama.cpp's, in its order: penalties, top-k, typical, top-p, min-p, temperature,
    and a draw that is seeded anew for every position.
    """

    def __init__(self, plan: SamplingPlan, seed: int, vocabulary_size: int) -> None:
        self._seed = seed
        self._plan = plan
        self._chain: Any = _c.llama_sampler_chain_init(_c.llama_sampler_chain_default_params())
        if plan.penalizes:
            self._add(
                _c.llama_sampler_init_penalties(
                    vocabulary_size,
                    plan.repeat_last_n,
                    plan.repeat_penalty,
                    plan.frequency_penalty,
                    plan.presence_penalty,
                )
            )
        if plan.greedy:
            self._add(_c.llama_sampler_init_greedy())
            return
        if plan.top_k > 0:
            self._add(_c.llama_sampler_init_top_k(plan.top_k))
        if plan.typical_p < 1.0:
            self._add(_c.llama_sampler_init_typical(plan.typical_p, 1))
        if plan.top_p < 1.0:
            self._add(_c.llama_sampler_init_top_p(plan.top_p, 1))
        if plan.min_p > 0.0:
            self._add(_c.llama_sampler_init_min_p(plan.min_p, 1))
        self._add(_c.llama_sampler_init_temp(plan.temperature))
        self._draw = _c.llama_sampler_chain_n(self._chain)
        self._add(_c.llama_sampler_init_dist(0))

    def _add(self, sampler: Any) -> None:
        _c.llama_sampler_chain_add(self._chain, sampler)

    def see(self, tokens: list[int]) -> None:
        """Tells the penalties which tokens stand before the answer, as far as they look back."""
        if self._plan.penalizes:
            for token in tokens[-self._plan.repeat_last_n :]:
                _c.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context, row: int, index: int) -> int:
        """The token at `index` of the answer, from the logits of a row of the last decode.

        Raises `DecodeFailed` when these are no numbers.
        """
        logits = context.logits(row)
        # numpy takes NaN for the largest, so this looks at every one of them.
        likeliest = int(logits.argmax())
        if not np.isfinite(logits[likeliest]):
            raise DecodeFailed("the logits are not finite")
        if self._plan.greedy and not self._plan.penalizes:
            return likeliest
        if not self._plan.greedy:
            _c.llama_sampler_free(_c.llama_sampler_chain_remove(self._chain, self._draw))
            self._add(_c.llama_sampler_init_dist(draw_seed(self._seed, index)))
        token = int(_c.llama_sampler_sample(self._chain, context.handle, row))
        if not 0 <= token < len(logits):
            raise DecodeFailed(f"the sampler chose {token}")
        return token

    def close(self) -> None:
        """Frees the chain."""
        _c.llama_sampler_free(self._chain)
