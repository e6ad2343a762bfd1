"""llama.cpp: the few calls that the engine needs, with an owner for everything that C allocates.

Importing this module imports llama_cpp and initializes its devices: only a worker that was told
what to load does that. Nothing here is safe for use from two threads at a time.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from ...protocol.errors import Code, PronkError
from ..architectures import ENCODERS
from .native_log import NativeLog
from .sampling import SamplingPlan, draw_seed

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

native_log = NativeLog()

# llama.cpp calls it at any later time: it must never be collected.
_log_callback = _c.llama_log_callback(lambda level, text, _: native_log.write(level, text))
_c.llama_log_set(_log_callback, None)
_c.llama_backend_init()

_SEQUENCE = 0
"""The one sequence of a context with one slot."""


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
        architecture = self._metadata("general.architecture")
        self.generates = architecture not in ENCODERS
        """Whether the model writes text; one that does not turns it into vectors."""
        if self.generates and _c.llama_model_has_encoder(self.handle):
            reason = "it is neither a model that generates text nor one that embeds it"
            raise PronkError(Code.LOAD_FAILED, reason)
        pooling = self._metadata(f"{architecture}.pooling_type")
        self.pooling = int(pooling) if pooling.isdecimal() else None
        """llama.cpp's number for how tokens' vectors become a text's; None where it is not said."""
        self.vocabulary = Vocabulary(_c.llama_model_get_vocab(self.handle))
        self.trained_context = int(_c.llama_model_n_ctx_train(self.handle))
        """Tokens of context that the model was trained for; 0 where it does not say."""

    @property
    def ranks(self) -> bool:
        """Whether the model scores pairs of texts, and gives no vectors."""
        return self.pooling == _c.LLAMA_POOLING_TYPE_RANK

    @property
    def classes(self) -> int:
        """Numbers that a model which ranks gives a pair."""
        return int(_c.llama_model_n_cls_out(self.handle))

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        return int(_c.llama_model_n_embd_out(self.handle))

    @property
    def pair_template(self) -> str | None:
        """The text in which a model that ranks wants query and document, if it has one."""
        source = _c.llama_model_chat_template(self.handle, b"rerank")
        return source.decode("utf-8", "replace") if source else None

    def _metadata(self, key: str) -> str:
        """A short value of the file's metadata as text; empty where it has none."""
        buffer = ctypes.create_string_buffer(128)
        _c.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

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


class Vocabulary:
    """Between text and token ids."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.size = int(_c.llama_vocab_n_tokens(handle))
        bos = int(_c.llama_vocab_bos(handle))
        self.bos = bos if 0 <= bos < self.size else None
        """The token that begins a text, if the model has one."""
        self.adds_bos = self.bos is not None and bool(_c.llama_vocab_get_add_bos(handle))
        """Whether the model expects `bos` at the beginning of every prompt."""
        self._eos = int(_c.llama_vocab_eos(handle))
        separator = int(_c.llama_vocab_sep(handle))
        end = self._eos if 0 <= self._eos < self.size else separator
        self.separators = [
            token
            for token, adds in (
                (end, _c.llama_vocab_get_add_eos),
                (separator, _c.llama_vocab_get_add_sep),
            )
            if 0 <= token < self.size and adds(handle)
        ]
        """What stands between the texts of a pair, as llama.cpp puts them together."""
        self._pieces: dict[int, bytes] = {}
        self._longest_piece = 0
        self._buffer = ctypes.create_string_buffer(256)

    def tokenize(self, text: str, *, framed: bool = False) -> list[int]:
        """Token ids of `text`. Control tokens in it count as such.

        `framed` with the beginning and end tokens that the vocabulary adds to a text.
        """
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        while True:
            tokens = (ctypes.c_int32 * room)()
            count = _c.llama_tokenize(
                self._handle, data, len(data), tokens, room, framed, True
            )  # add_special, parse_special
            if count >= 0:
                return tokens[:count]
            if count == -(2**31):
                raise PronkError(Code.TOO_LARGE, "the prompt is too long; shorten it")
            room = -count

    def piece(self, token: int) -> bytes:
        """The bytes that `token` adds to a text; none for control tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._render(token, special=False)
        return piece

    def ends_generation(self, token: int) -> bool:
        """Whether the model ends its answer by this token."""
        return _c.llama_vocab_is_eog(self._handle, token)

    @property
    def bos_text(self) -> str:
        """How templates write the beginning token; empty where there is none."""
        return self._control_text(self.bos if self.bos is not None else -1)

    @property
    def eos_text(self) -> str:
        """How templates write the end token; empty where there is none."""
        return self._control_text(self._eos)

    @property
    def longest_piece(self) -> int:
        """Bytes of the longest token: how much text a context can hold at the very most."""
        if not self._longest_piece:
            tokens = range(self.size)
            self._longest_piece = max(len(self._render(t, special=True)) for t in tokens)
        return self._longest_piece

    def _control_text(self, token: int) -> str:
        if not 0 <= token < self.size:
            return ""
        return self._render(token, special=True).decode("utf-8", "replace")

    def _render(self, token: int, *, special: bool) -> bytes:
        while True:
            room = len(self._buffer)
            count = _c.llama_token_to_piece(self._handle, token, self._buffer, room, 0, special)
            if count >= 0:
                return self._buffer.raw[:count]
            self._buffer = ctypes.create_string_buffer(-count)


class Context:
    """One sequence's KV cache and the computation on it."""

    def __init__(self, model: Model, length: int, threads: int, batch: int) -> None:
        """`length` in tokens; a decode takes at most `batch` of them.

        Raises `PronkError` (LOAD_FAILED) when the memory does not suffice.
        """
        params = _c.llama_context_default_params()
        params.n_ctx = length
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = _c.LLAMA_FLASH_ATTN_TYPE_AUTO
        params.offload_kqv = params.op_offload = False
        params.no_perf = True
        self.handle = _c.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise model.load_error()
        self._memory = _c.llama_get_memory(self.handle)
        self._vocabulary_size = model.vocabulary.size
        self._logits_address = 0
        self._logits: np.ndarray[Any, Any] = np.empty(0, np.float32)
        self.batch_size = batch
        self._batch = _c.llama_batch_init(batch, 0, 1)
        for row in range(batch):
            self._batch.n_seq_id[row] = 1
            self._batch.seq_id[row][0] = _SEQUENCE
            self._batch.logits[row] = 0
        self._tokens = np.ctypeslib.as_array(self._batch.token, (batch,))
        self._positions = np.ctypeslib.as_array(self._batch.pos, (batch,))

    def decode(self, tokens: list[int], position: int, *, logits: bool) -> None:
        """Computes `tokens`, at most `batch_size`, which stand at `position` and after it.

        With `logits`, those of the last one are there afterwards. Raises `DecodeFailed`.
        """
        count = len(tokens)
        batch = self._batch
        batch.n_tokens = count
        if count == 1:
            batch.token[0] = tokens[0]
            batch.pos[0] = position
        else:
            self._tokens[:count] = tokens
            self._positions[:count] = np.arange(position, position + count)
        batch.logits[count - 1] = logits
        status = _c.llama_decode(self.handle, batch)
        batch.logits[count - 1] = False
        if status != 0:
            raise DecodeFailed(f"llama_decode returned {status}")

    def logits(self) -> np.ndarray[Any, Any]:
        """The last token's logits, one per token of the vocabulary: a view until the next decode.

        Raises `DecodeFailed` when there are none.
        """
        pointer = _c.llama_get_logits_ith(self.handle, -1)
        if not pointer:
            raise DecodeFailed("there are no logits")
        address = ctypes.addressof(pointer.contents)
        if address != self._logits_address:  # making a view takes longer than reading it
            self._logits = np.ctypeslib.as_array(pointer, (self._vocabulary_size,))
            self._logits_address = address
        return self._logits

    def clear(self, *, wipe: bool = False) -> None:
        """Empties the KV cache; with `wipe` also the numbers in it, because NaN outlives a mask."""
        _c.llama_memory_clear(self._memory, wipe)

    def close(self) -> None:
        """Gives the memory back."""
        _c.llama_batch_free(self._batch)
        _c.llama_free(self.handle)


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

    def sample(self, context: Context, position: int) -> int:
        """The token at `position` of the answer, from the context's logits.

        Raises `DecodeFailed` when these are no numbers.
        """
        logits = context.logits()
        # numpy takes NaN for the largest, so this looks at every one of them.
        likeliest = int(logits.argmax())
        if not np.isfinite(logits[likeliest]):
            raise DecodeFailed("the logits are not finite")
        if self._plan.greedy and not self._plan.penalizes:
            return likeliest
        if not self._plan.greedy:
            _c.llama_sampler_free(_c.llama_sampler_chain_remove(self._chain, self._draw))
            self._add(_c.llama_sampler_init_dist(draw_seed(self._seed, position)))
        token = int(_c.llama_sampler_sample(self._chain, context.handle, -1))
        if not 0 <= token < len(logits):
            raise DecodeFailed(f"the sampler chose {token}")
        return token

    def close(self) -> None:
        """Frees the chain."""
        _c.llama_sampler_free(self._chain)
