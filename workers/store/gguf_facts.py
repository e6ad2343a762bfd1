"""What a GGUF header means, in the words of Ollama's API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from gguf.constants import LlamaFileType

from ..architectures import ENCODERS
from .gguf_metadata import Header

UNKNOWN = "unknown"

_MAX_WORD = 128
_INFILL_KEYS = (("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle"))
"""What files call them today, and what they called them first."""
_INFILL_TEXTS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<|prefix|>", "<|suffix|>", "<|middle|>"),
)
"""The tokens around a gap, by which llama.cpp knows a model that can fill in."""

INFILL_TOKENS = frozenset(text for texts in _INFILL_TEXTS for text in texts)

_QUANTIZATIONS = {
    int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE")
    for kind in LlamaFileType
    if kind is not LlamaFileType.GUESSED
}


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The few facts of a header that are worth remembering for every model of a library."""

    architecture: str
    quantization: str
    parameter_size: str
    context_length: int
    """Tokens of context that the model was trained for; 0 where the file does not say."""
    embeds: bool
    """Whether the model turns text into vectors, and writes none."""
    infills: bool
    """Whether the model has tokens for a gap that it is to fill in."""
    sees: bool
    """Whether it is a projector that has a part for images."""
    problem: str
    """Why a tensor cannot be where the header says; empty where all can."""


def facts_of(header: Header) -> HeaderFacts:
    """Summarizes a header, for which `INFILL_TOKENS` were looked for."""
    metadata = header.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        architecture = UNKNOWN
    context_length = metadata.get(f"{architecture}.context_length")
    pooling = metadata.get(f"{architecture}.pooling_type")
    file_type = metadata.get("general.file_type")
    return HeaderFacts(
        architecture=architecture[:_MAX_WORD],
        quantization=_QUANTIZATIONS.get(file_type, UNKNOWN) if _is_int(file_type) else UNKNOWN,
        parameter_size=human_number(header.parameter_count),
        context_length=context_length if _is_count(context_length) else 0,
        # A pooling type other than 0 (none) is how converters mark embedding models.
        embeds=architecture in ENCODERS or (_is_count(pooling) and pooling > 0),
        infills=_infills(header),
        sees=metadata.get("clip.has_vision_encoder") is True,
        problem=header.problem,
    )


def _infills(header: Header) -> bool:
    named = any(
        all(_is_count(header.metadata.get(f"tokenizer.ggml.{name}_token_id")) for name in names)
        for names in _INFILL_KEYS
    )
    return named or any(header.noted.issuperset(texts) for texts in _INFILL_TEXTS)


def human_number(count: int) -> str:
    """A number of parameters as Ollama writes it: 8B, 1.2B, 134.52M, 12K, 900."""
    for unit, value, decimals in (("B", 10**9, 1), ("M", 10**6, 2), ("K", 10**3, 0)):
        if count >= value:
            return f"{count / value:.{0 if count % value == 0 else decimals}f}{unit}"
    return str(count)


def _is_int(value: object) -> TypeGuard[int]:
    return type(value) is int


def _is_count(value: object) -> TypeGuard[int]:
    return _is_int(value) and 0 <= value < 2**63
