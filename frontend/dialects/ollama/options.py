"""The `options` of a request: names and meanings as in Ollama, wrong values refused by name."""

from __future__ import annotations

import logging
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ....protocol.messages.generation import SamplingOptions

_log = logging.getLogger(__name__)

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1

IGNORED = frozenset(
    {
        *("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "use_mmap", "use_mlock"),
        *("numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "embedding_only"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "tfs_z", "penalize_newline"),
    }
)
"""Options that Ollama knows, or knew, and that change nothing here: memory and devices are the
server's affair, and the rest has gone from llama.cpp or cannot be resumed exactly."""

_MAX_NAMES_LOGGED = 256


def _integral(value: object) -> object:
    """JSON has one kind of number: 40.0 is as good an integer as 40."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Integer = Annotated[int, BeforeValidator(_integral)]
_Fraction = Annotated[float, Field(ge=0, le=1)]
_Penalty = Annotated[float, Field(ge=-100, le=100)]


class Options(BaseModel):
    """The options that have a meaning here. Null is the same as absence."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    num_ctx: Annotated[_Integer, Field(ge=1, le=2**24)] | None = None
    seed: Annotated[_Integer, Field(ge=-_INT64, le=_INT64)] | None = None
    num_predict: Annotated[_Integer, Field(ge=-2, le=_INT32)] | None = None
    temperature: Annotated[float, Field(ge=0, le=1000)] | None = None
    top_k: Annotated[_Integer, Field(ge=-1, le=_INT32)] | None = None
    top_p: _Fraction | None = None
    min_p: _Fraction | None = None
    typical_p: _Fraction | None = None
    repeat_last_n: Annotated[_Integer, Field(ge=-1, le=2**24)] | None = None
    repeat_penalty: Annotated[float, Field(ge=0, le=100)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    stop: (
        Annotated[
            list[Annotated[str, Field(max_length=1024)]],
            BeforeValidator(_one_or_many),
            Field(max_length=128),
        ]
        | None
    ) = None

    def sampling(self) -> SamplingOptions:
        """What the worker gets. An empty stop text, which would match at once, is no stop."""
        return SamplingOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repeat_last_n=self.repeat_last_n,
            repeat_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            num_predict=self.num_predict,
            stop=None if self.stop is None else [text for text in self.stop if text],
        )


_logged: set[str] = set()


def log_ignored(names: object) -> None:
    """Writes one line for each option without effect, the first time that it is seen."""
    if not isinstance(names, dict):
        return
    for name in names:
        if len(_logged) >= _MAX_NAMES_LOGGED:
            return
        if name not in Options.model_fields and name not in _logged:
            _logged.add(name)
            level = logging.DEBUG if name in IGNORED else logging.INFO
            _log.log(level, "option %.64r has no effect here", name)
