"""What a model can be quantized to, by the names that Ollama and llama.cpp have for it."""

from __future__ import annotations

from gguf.constants import LlamaFileType

from ....protocol.errors import Code, PronkError

_NAMES = (
    *("F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0"),
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS"),
    *("Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
)
"""Those that need nothing but the model: smaller ones want to know which weights matter."""

_ALSO = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "FP16": "F16", "FP32": "F32"}


def parse_level(text: str) -> str:
    """The level that a request names, in whatever case. Raises `PronkError` (invalid_request)."""
    name = text.upper()
    name = _ALSO.get(name, name)
    if name not in _NAMES:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"quantize: {text[:32]!a} is no level that models can be quantized to; there are "
            + ", ".join(_NAMES),
        )
    return name


def file_type(level: str) -> int:
    """llama.cpp's number for a level."""
    prefix = "ALL_" if level == "F32" else "MOSTLY_"
    return int(LlamaFileType[prefix + level])
