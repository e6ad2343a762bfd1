"""Models, loaded and on disk, as Ollama writes them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ....protocol.messages.library import ModelShown, ModelSummary
from ....protocol.messages.status import RunningModel

NEVER = "2318-01-01T00:00:00Z"
"""When a model expires that never does: Ollama's clients write "Forever" from a century on, and
some overflow near the year 10000."""

_ALWAYS_SHOWN = ("details", "model_info", "capabilities", "modified_at")


def tags(models: list[ModelSummary]) -> dict[str, Any]:
    """`GET /api/tags`."""
    return {
        "models": [
            {
                "name": model.name,
                "model": model.name,
                "modified_at": timestamp(model.modified_at),
                "size": model.size,
                "digest": model.digest,
                "details": asdict(model.details),
            }
            for model in models
        ]
    }


def ps(models: list[RunningModel]) -> dict[str, Any]:
    """`GET /api/ps`."""
    return {
        "models": [
            {
                "name": model.name,
                "model": model.name,
                "size": model.size,
                "digest": model.digest,
                "details": asdict(model.details),
                "expires_at": NEVER if model.expires_at is None else timestamp(model.expires_at),
                "size_vram": model.size_vram,
                "context_length": model.context_length,
            }
            for model in models
        ]
    }


def show(model: ModelShown) -> dict[str, Any]:
    """`POST /api/show`. What a model does not have is left out, as in Ollama."""
    fields = {
        "license": model.license,
        "modelfile": model.modelfile,
        "parameters": model.parameters,
        "template": model.template,
        "system": model.system,
        "renderer": model.renderer,
        "parser": model.parser,
        "details": asdict(model.details),
        "messages": [asdict(message) for message in model.messages],
        "model_info": model.model_info,
        "projector_info": model.projector_info,
        "tensors": model.tensors,
        "capabilities": model.capabilities,
        "modified_at": timestamp(model.modified_at),
        "requires": model.requires,
    }
    return {name: value for name, value in fields.items() if value or name in _ALWAYS_SHOWN}


def timestamp(unix: float) -> str:
    """RFC 3339 in UTC with microseconds; what no calendar holds becomes `NEVER`."""
    try:
        moment = datetime.fromtimestamp(unix, UTC)
    except (OverflowError, ValueError, OSError):
        return NEVER
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if 1970 <= moment.year < 9999 else NEVER
