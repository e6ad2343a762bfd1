"""The settings as a page of text, from the one place where they are declared."""

from __future__ import annotations

import textwrap

from ...protocol.settings import Settings

_CONFIG = (
    "PRONK_CONFIG names a TOML file with any of these in lower case and without the prefix, for "
    'example `host = "0.0.0.0:11434"`. Variables win over the file.'
)


def describe(settings: Settings) -> str:
    """Every setting with its variable, value, default and documentation, which names the variable
    of Ollama's that it falls back to.
    """
    entries = [_entry(name, settings) for name in Settings.model_fields]
    return "\n\n".join([*entries, textwrap.fill(_CONFIG, 80)])


def _entry(name: str, settings: Settings) -> str:
    field = Settings.model_fields[name]
    value, default = getattr(settings, name), field.get_default()
    same = "the default" if value == default else f"default {_shown(default)}"
    text = " ".join((field.description or "").split())
    return "\n".join(
        [
            f"PRONK_{name.upper()}={_shown(value)} ({same})",
            textwrap.fill(text, 80, initial_indent="    ", subsequent_indent="    "),
        ]
    )


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
