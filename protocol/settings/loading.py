"""Reading the settings, and telling in one line what is wrong with them."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from ..errors import Code, PronkError
from .definition import Settings
from .sources import config_file, field_of, is_in_environment, key_of, variables_of

_SOURCE_FIELD = re.compile(r'field "(\w+)"')
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_SHOWN = 300


def load_settings(kind: type[Settings] = Settings, **overrides: Any) -> Settings:
    """The settings of this process. Any but the store and the command line wants those of
    `withheld`.

    Raises `PronkError` with one line that names the variable, or the file and its key, and what is
    wrong with its value.
    """
    config = config_file()
    if config and not config.is_file():
        raise PronkError(Code.INVALID_REQUEST, f"PRONK_CONFIG: there is no file {config}")
    try:
        return kind(**overrides)
    except ValidationError as error:
        raise PronkError(Code.INVALID_REQUEST, _first_problem(error, overrides)) from None
    except SettingsError as error:  # of a variable that has to hold JSON
        wrong = _SOURCE_FIELD.search(str(error))
        name = variables_of(Settings, wrong[1])[0] if wrong else "the environment"
        raise PronkError(
            Code.INVALID_REQUEST, f"{name} is not valid JSON: {error.__cause__ or error}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PronkError(Code.INVALID_REQUEST, f"{config} is not valid TOML: {error}") from None
    except OSError as error:
        raise PronkError(
            Code.INVALID_REQUEST, f"PRONK_CONFIG={config}: {error.strerror or error}"
        ) from None


def _first_problem(error: ValidationError, overrides: dict[str, Any]) -> str:
    problem = error.errors()[0]
    place = [_shown(part) for part in problem["loc"]] or ["settings"]
    first = place[0]
    field = field_of(Settings, first)
    message = problem["msg"].removeprefix("Value error, ")
    # Part of what is said of a registry is secret, and any part of it may be in the wrong place.
    given = "…" if field == "registries" else _shown(problem["input"])
    if field and not ({field, *variables_of(Settings, field)} & overrides.keys()):
        own = is_in_environment(Settings, field)
    else:
        own = first in overrides
    if (config := config_file()) and not own:
        if field:
            place[0] = key_of(Settings, field)
        where = ".".join(part if _BARE_KEY.fullmatch(part) else f'"{part}"' for part in place)
        where = f"{config}: {where}"
        equals = " = "
    else:
        where = ".".join([variables_of(Settings, field)[0] if field else first, *place[1:]])
        equals = "="
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such setting; see `pronk settings`"
    return f"{where}{equals}{given}: {message}"


def _shown(value: object) -> str:
    """A value on one line of text, which it may not be."""
    text = str(value)
    if len(text) > _LONGEST_SHOWN:
        text = text[:_LONGEST_SHOWN] + "…"
    return "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)
