"""llama.cpp: the few calls that the engine needs, with an owner for everything that C allocates.

Importing this module imports llama_cpp and initializes its devices: only a worker that was told
what to load does that. Nothing here is safe for use from two threads at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from ...protocol.errors import Code, PronkError
from ..architectures import ENCODERS
from .adapters import Adapters
from .native_log import NativeLog
from .offload import NOTHING, Offload
from .vocabulary import Vocabulary

_c: Any = llama_cpp  # its stubs describe what ctypes takes only in part

native_log = NativeLog()

# llama.cpp calls it at any later time: it must never be collected.
take_log = _c.llama_log_callback(lambda level, text, _: native_log.write(level, text))
_c.llama_log_set(take_log, None)
_c.llama_backend_init()


class DecodeFailed(Exception):
    """llama.cpp could not compute a batch, or computed no numbers. For the log, not for clients."""


def context_params(threads: int, *, offloaded: bool = False) -> Any:
    """What every context is made with, whatever it is for: so many threads, and what belongs to
    layers that are `offloaded` beside them.
    """
    params = _c.llama_context_default_params()
    params.n_threads = params.n_threads_batch = threads
    params.offload_kqv = params.op_offload = offloaded
    params.no_perf = True
    return params


class Model:
    """The weights and the vocabulary of one GGUF file, memory-mapped, on the CPU or offloaded, and
    the adapters to them.
    """

    def __init__(
        self,
        path: Path,
        offload: Offload = NOTHING,
        *,
        adapters: Sequence[Path] = (),
        dry: bool = False,
    ) -> None:
        """Reads the files. A `dry` model has no weights: its contexts only tell what they would
        take, and must compute nothing.

        Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason, without the path.
        """
        params = _c.llama_model_default_params()
        params.load_mode = _c.LLAMA_LOAD_MODE_MMAP
        if dry:
            params.no_alloc, params.use_extra_bufts = True, False
            params.load_mode = _c.LLAMA_LOAD_MODE_NONE  # a mapped file is no use without a buffer
        self.offload = offload
        kept = offload.set_params(params)
        native_log.forget()
        self._files = [path]
        self.handle = _c.llama_model_load_from_file(str(path).encode(), params)
        del kept
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
        self._files += adapters
        native_log.forget_errors()
        try:
            self._adapters = Adapters(self.handle, path, adapters, self.load_error)
        except PronkError:
            self.close()
            raise

    def new_context(self, params: Any) -> Any:
        """A `llama_context` made with `llama_context_params`, which its taker frees.

        Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason.
        """
        context = _c.llama_init_from_model(self.handle, params)
        if not context:
            raise self.load_error()
        self._adapters.apply(context)
        return context

    @property
    def offloaded(self) -> bool:
        """Whether anything of it lies on a device of its own memory."""
        return self.offload.real

    @property
    def layers(self) -> int:
        """Layers that can be spread over devices, the output layer included."""
        return int(_c.llama_model_n_layer(self.handle)) + 1

    @property
    def weights(self) -> int:
        """Bytes of all tensors in the file, and in those of the adapters."""
        return int(_c.llama_model_size(self.handle)) + self._adapters.size

    @property
    def row_width(self) -> int:
        """Numbers of a row that stands in a token's place."""
        return int(_c.llama_model_n_embd_inp(self.handle))

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

    def load_error(self) -> PronkError:
        """What llama.cpp's log says about the call that just failed."""
        secrets = [text for path in self._files for text in (str(path), path.name)]
        reason = native_log.reason(*secrets)
        return PronkError(Code.LOAD_FAILED, reason)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source in the file's metadata."""
        source = _c.llama_model_chat_template(self.handle, None)
        return source.decode("utf-8", "replace") if source else None

    def metadata(self, keys: Iterable[str]) -> dict[str, str]:
        """Short values of the file's metadata, as texts, of those keys that it has."""
        return {key: value for key in keys if (value := self._metadata(key))}

    def _metadata(self, key: str) -> str:
        """Empty where the file has none."""
        buffer = ctypes.create_string_buffer(256)
        _c.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Gives the memory back, that of the adapters too. Contexts must be closed before."""
        _c.llama_model_free(self.handle)
