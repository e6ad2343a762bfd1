"""Where settings come from: which variables and which key of the file set a field."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import AliasChoices
from pydantic_settings import BaseSettings, TomlConfigSettingsSource


def config_file() -> Path | None:
    """The file that PRONK_CONFIG names, as an absolute path; None where it names none."""
    named = os.environ.get("PRONK_CONFIG")
    try:
        return Path(named).expanduser().absolute() if named else None
    except RuntimeError:  # of a user who does not exist
        return Path(named or "")


def variables_of(settings: type[BaseSettings], name: str) -> list[str]:
    """The environment variables that set a field, the one that wins first."""
    alias = settings.model_fields[name].validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [f"PRONK_{name.upper()}"]
    return [str(choice) for choice in choices if str(choice).isupper()]


def key_of(settings: type[BaseSettings], name: str) -> str:
    """What a field is called in the file: its own name, or that of its tables."""
    alias = settings.model_fields[name].validation_alias
    return str(alias.choices[-1]) if isinstance(alias, AliasChoices) else name


def field_of(settings: type[BaseSettings], key: str) -> str | None:
    """The field that is called so, by us, in the file or in the environment."""
    for name in settings.model_fields:
        if key in (name, key_of(settings, name), *variables_of(settings, name)):
            return name
    return None


def is_in_environment(settings: type[BaseSettings], name: str) -> bool:
    """Whether a variable sets a field, and so the file does not."""
    names = {variable.lower() for variable in variables_of(settings, name)}
    return any(value for variable, value in os.environ.items() if variable.lower() in names)


class FileBehindVariables(TomlConfigSettingsSource):
    """The file without what variables set: a table is not mixed from both."""

    def __call__(self) -> dict[str, Any]:
        """What the file says."""
        return {
            key: value for key, value in super().__call__().items() if not self._is_overruled(key)
        }

    def _is_overruled(self, key: str) -> bool:
        name = field_of(self.settings_cls, key)
        return name is not None and is_in_environment(self.settings_cls, name)
