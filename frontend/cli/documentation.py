"""The settings as a page of text, from the one place where they are declared."""

from __future__ import annotations

import textwrap

from pydantic import BaseModel

from ...protocol.limits import CallerClass, ModelLimits
from ...protocol.registries import RegistryAccess
from ...protocol.settings import Settings

_CONFIG = (
    "PRONK_CONFIG names a TOML file with any of these in lower case and without the prefix, for "
    'example `host = "0.0.0.0:11434"`, and with the tables. Variables win over the file. Every '
    "process reads it when it starts."
)

_TABLES: dict[str, tuple[str, type[BaseModel]]] = {
    "model_limits": ('[model."llama3.2:3b"]', ModelLimits),
    "caller_classes": ("[class.people]", CallerClass),
    "registries": ('[registry."models.example.org"]', RegistryAccess),
}
"""Settings that have parts, each with an example of its table's name."""


def describe(settings: Settings) -> str:
    """Every setting with its variable, value, default and documentation, which names the variable
    of Ollama's that it falls back to.
    """
    entries = [_entry(name, settings) for name in Settings.model_fields]
    return "\n\n".join([*entries, textwrap.fill(_CONFIG, 80)])


def _entry(name: str, settings: Settings) -> str:
    field = Settings.model_fields[name]
    if name in _TABLES:
        return _table(name, field.description or "", getattr(settings, name))
    value, default = getattr(settings, name), field.get_default()
    same = "the default" if value == default else f"default {_shown(default)}"
    return "\n".join(
        [f"PRONK_{name.upper()}={_shown(value)} ({same})", _indented(field.description or "", 4)]
    )


def _table(name: str, text: str, value: dict[str, BaseModel]) -> str:
    head, parts = _TABLES[name]
    given = f"set for {', '.join(sorted(value))}" if value else "none"
    lines = [f"{head}, or PRONK_{name.upper()}={{…}} ({given})", _indented(text, 4)]
    for part, field in parts.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        usual = "" if field.is_required() or default is None else f" ({_toml(default)})"
        lines += [f"    {part}{usual}", _indented(field.description or "", 8)]
    return "\n".join(lines)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _indented(text: str, columns: int) -> str:
    margin = " " * columns
    return textwrap.fill(
        " ".join(text.split()), 80, initial_indent=margin, subsequent_indent=margin
    )


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
