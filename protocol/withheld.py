"""Settings without those that are for the store alone: passwords and tokens of registries.

Every process reads the file that PRONK_CONFIG names, and some of them run what strangers have made.
A fault of such code may show what lies in their memory, what was freed among it. So the tables of
registries are cut out of the bytes before anything is made of them, and the bytes are wiped.
"""

from __future__ import annotations

import errno
import os
import re
import tomllib
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource

from .settings import Settings, config_file, load_settings
from .settings.sources import FileBehindVariables, is_in_environment

_FIELD = "registries"
_NAMES = frozenset({"registries", "registry", "pronk_registries"})
"""What the field is called in the file and in the environment, in lower case."""

_TOKEN = re.compile(
    rb"""(?sx)
      \"{3} (?: [^\\] | \\. )*? \"{3,5}
    | '{3} .*? '{3,5}
    | " (?: [^"\\\n] | \\. )* "
    | ' [^'\n]* '
    | \#[^\n]*
    | (?P<open> [\[{] ) | (?P<close> [\]}] ) | (?P<end> \n )
    | [^"'\#\[\]{}\n]+ | .
    """
)
_KEY = re.compile(rb"""\s*(\[{0,2})\s*(?:"([^"\n]*)"|'([^'\n]*)'|([A-Za-z0-9_-]+))""")


class OpenSettings(Settings):
    """What every process may know."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """As `Settings` has them, without what is withheld."""
        sources = super().settings_customise_sources(
            settings_cls, init_settings, env_settings, dotenv_settings, file_secret_settings
        )
        assert isinstance(env_settings, EnvSettingsSource)
        env_settings.env_vars = {
            name: value
            for name, value in env_settings.env_vars.items()
            if name.lower() not in _NAMES
        }
        return sources

    @classmethod
    def file_source(cls, config: Path) -> FileBehindVariables:
        """What reads the file."""
        return _OpenFile(cls, config)


class _OpenFile(FileBehindVariables):
    def _read_file(self, file_path: Path | Traversable) -> dict[str, Any]:
        given = tomllib.loads(_read(Path(str(file_path))).decode())
        # Whatever way of writing it was not recognized.
        return {key: value for key, value in given.items() if key.lower() not in _NAMES}


def load_open_settings() -> Settings:
    """The settings of a process that is not the store. Raises `PronkError` as `load_settings`."""
    return load_settings(OpenSettings)


def advice(settings: Settings) -> str | None:
    """What to say to the operator where others can read passwords; None where they cannot."""
    config = config_file()
    secret = any(access.password or access.token for access in settings.registries.values())
    if not config or not secret or is_in_environment(Settings, _FIELD):
        return None
    try:
        open_to = config.stat().st_mode & 0o077
    except OSError:
        return None
    if not open_to & 0o044:
        return None
    return (
        f"PRONK_CONFIG={config} holds passwords of registries, and other users may read it: "
        f"`chmod 600 {config}`, or keep them in the keyring"
    )


def without_registries(text: bytes | bytearray) -> bytes:
    """A TOML file's text without what it says of registries. Line numbers stay as they are."""
    kept = bytearray()
    withheld = at_top = True
    for start, end in _statements(text):
        if key := _KEY.match(text, start, end):
            named = (key[2] or key[3] or key[4] or b"").decode(errors="replace").lower() in _NAMES
            if key[1]:
                withheld, at_top = named, False
            elif at_top:
                withheld = named
        elif at_top:
            withheld = False
        if withheld:
            kept += b"\n" * text.count(b"\n", start, end)
        else:
            kept += memoryview(text)[start:end]
    return bytes(kept)


def _statements(text: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Headers of tables, and keys with their values, which may go over several lines."""
    start, depth = 0, 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "open":
            depth += 1
        elif token.lastgroup == "close":
            depth -= 1
        elif token.lastgroup == "end" and depth <= 0:
            yield start, token.end()
            start, depth = token.end(), 0
    yield start, len(text)


def _read(path: Path) -> bytes:
    content = bytearray()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = bytearray(os.fstat(descriptor).st_size)
        length = 0
        while length < len(content):
            with memoryview(content)[length:] as rest:
                if not (count := os.readv(descriptor, [rest])):
                    raise OSError(errno.EIO, "it became shorter while it was read")
            length += count
        return without_registries(content)
    finally:
        os.close(descriptor)
        content[:] = bytes(len(content))
