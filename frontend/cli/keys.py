"""`pronk keys`: what the commands do, and the words that they say."""

from __future__ import annotations

from pathlib import Path

from ...protocol import keys
from ...protocol.settings import Settings, load_settings
from ...protocol.state import StateDirectory


def create(name: str, directory: str | None) -> str:
    """Makes keys; returns what to do with them. Raises `PronkError` as `protocol.keys` does."""
    settings = load_settings()
    place = _place(settings, directory)
    secret, public = keys.create(place, name)
    other = (
        "the PRONK_KEYS of every host that shall join"
        if name == keys.SERVER
        else "the PRONK_KEYS of the scheduler's host, which then lets this one join"
    )
    return (
        f"{secret}: stays here; whoever can read it can play this host\n"
        f"{public}: copy it to {other}"
    )


def describe(directory: str | None) -> str:
    """One line for each pair of keys of this host and for each host that it knows."""
    place = _place(load_settings(), directory)
    own = [f"{path.stem}: this host's own" for path in sorted(place.glob("*.secret"))]
    mine = {path.stem for path in place.glob("*.secret")}
    known = [
        f"{path.stem}: " + ("the server to join" if path.stem == keys.SERVER else "may join")
        for path in sorted(place.glob("*.public"))
        if path.stem not in mine
    ]
    return "\n".join([*own, *known]) or f"there are no keys in {place}; see `pronk keys create`"


def _place(settings: Settings, directory: str | None) -> Path:
    if directory is not None:
        return Path(directory).expanduser().absolute()
    if settings.keys is None:
        StateDirectory(settings.state).prepare()
    return settings.keys_directory
