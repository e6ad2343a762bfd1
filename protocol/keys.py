"""Key files: who a server of several hosts is, and whom it knows.

One directory (`PRONK_KEYS`) on each host. It holds what `pronk keys create NAME` made there:

    NAME.secret     the host's own pair of CURVE keys, mode 0600, never copied
    NAME.public     the public half, for the other hosts

and the `.public` files that the operator copied there from other hosts. The server's pair is
called `server`: a host that joins looks for `server.public`, and the server accepts whoever has the
secret half of another `.public` file in its directory. Keys travel by these files and in no other
way. The files have the form that `zmq.auth` reads.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import zmq
from zmq.auth import certs

from .errors import Code, PronkError

_log = logging.getLogger(__name__)

SERVER = "server"
"""Name of the server's own keys."""

_load_certificate: Callable[[Path], tuple[bytes, bytes | None]] = cast(Any, certs).load_certificate

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_Z85_KEY = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_LARGEST = 4096
"""Bytes of a key file; ours have some 300."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One host's own keys, each in 40 characters of Z85."""

    name: str
    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """What a process needs to join a server: its own keys, and the server's public one."""

    own: Pair
    server: bytes


def create(directory: Path, name: str) -> tuple[Path, Path]:
    """Makes a pair of keys; returns the paths of its secret and its public file.

    Raises `PronkError` when the name is none, or the directory has a pair of this name or cannot
    be written.
    """
    if not _NAME.fullmatch(name):
        raise PronkError(
            Code.INVALID_REQUEST,
            f"{name!r} is no name for keys; use letters, digits, dots, - and _, such as a host's",
        )
    public, secret = cast(tuple[bytes, bytes], cast(Any, zmq).curve_keypair())
    secret_file, public_file = directory / f"{name}.secret", directory / f"{name}.public"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (secret_file, public_file):
            if path.exists():
                raise PronkError(
                    Code.INVALID_REQUEST,
                    f"{path} is there already; remove it first where it shall be replaced",
                )
        _write(
            secret_file,
            0o600,
            "# Pronk: the secret keys of this host. Do not copy or show them.\ncurve\n"
            f'    public-key = "{public.decode()}"\n    secret-key = "{secret.decode()}"\n',
        )
        _write(
            public_file,
            0o644,
            f"# Pronk: the public key of {name}, to be copied to other hosts.\ncurve\n"
            f'    public-key = "{public.decode()}"\n',
        )
    except OSError as error:
        raise PronkError(
            Code.INVALID_REQUEST, f"{directory}: {error.strerror or error}; name another directory"
        ) from None
    return secret_file, public_file


def server_keys(directory: Path) -> Pair:
    """The server's own keys. Raises `PronkError`, which says how to make them."""
    return _pair(
        directory / f"{SERVER}.secret", "listening on tcp needs keys; `pronk keys create server`"
    )


def client_keys(directory: Path) -> ClientKeys:
    """The keys of a host that joins a server. Raises `PronkError`, which says what is missing."""
    own = [path for path in _files(directory, ".secret") if path.stem != SERVER]
    if len(own) != 1:
        found = f"{len(own)} pairs of keys" if own else "no keys of this host"
        advice = "keep one of them" if own else "`pronk keys create NAME` makes them"
        raise PronkError(Code.INVALID_REQUEST, f"PRONK_KEYS={directory}: {found}; {advice}")
    server = directory / f"{SERVER}.public"
    try:
        public, _ = _read(server)
    except PronkError as error:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"{error.message}; copy it from the server's PRONK_KEYS",
        ) from None
    return ClientKeys(_pair(own[0], "`pronk keys create NAME`"), public)


def known_clients(directory: Path) -> dict[bytes, str]:
    """Names by public key of all hosts that may join. Unusable files are left out and logged."""
    known: dict[bytes, str] = {}
    for path in _files(directory, ".public"):
        if path.stem == SERVER:
            continue
        try:
            public, _ = _read(path)
        except PronkError as error:
            _log.warning("a key is left out: %s", error.message)
        else:
            known[public] = path.stem
    return known


def _files(directory: Path, suffix: str) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == suffix)
    except OSError:
        return []


def _pair(path: Path, advice: str) -> Pair:
    try:
        public, secret = _read(path)
    except PronkError as error:
        raise PronkError(Code.INVALID_REQUEST, f"{error.message}; {advice} makes them") from None
    if secret is None:
        raise PronkError(Code.INVALID_REQUEST, f"PRONK_KEYS: {path} has no secret key in it")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise PronkError(
            Code.INVALID_REQUEST, f"PRONK_KEYS: {path} can be read by others; chmod 600 it"
        )
    return Pair(path.stem, public, secret)


def _read(path: Path) -> tuple[bytes, bytes | None]:
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError
        keys = _load_certificate(path)
        if not all(_Z85_KEY.fullmatch(key) for key in keys if key is not None):
            raise ValueError
    except OSError as error:
        reason = "is not there" if not path.exists() else error.strerror or "cannot be read"
        raise PronkError(Code.INVALID_REQUEST, f"PRONK_KEYS: {path} {reason}") from None
    except (ValueError, IndexError):  # the latter for one that is still being written
        raise PronkError(Code.INVALID_REQUEST, f"PRONK_KEYS: {path} is no key file") from None
    return keys


def _write(path: Path, mode: int, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
