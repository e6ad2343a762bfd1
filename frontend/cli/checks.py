"""What must be true before a server starts, each with the one line that says so when it is not."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from ...protocol.errors import Code, PronkError
from ...protocol.keys import client_keys, server_keys
from ...protocol.settings import Settings
from ...protocol.state import StateDirectory


def check(settings: Settings) -> int:
    """Raises `PronkError` for the first thing that would keep a server from running.

    Creates the state directory and, where there is none yet, the library's directory. Returns the
    descriptor of a lock that is to stay open as long as the server runs: it keeps a second one out
    also while the first one's scheduler has died and is not back yet.
    """
    state = StateDirectory(settings.state)
    state.prepare()
    server = state.lock("server")
    try:
        _check(settings, state)
    except PronkError:
        os.close(server)
        raise
    return server


def _check(settings: Settings, state: StateDirectory) -> None:
    lock = state.lock("scheduler")  # of a server under another supervisord
    try:
        _check_library(settings.models)
        if settings.scheduler:
            client_keys(settings.keys_directory)
        else:
            check_address(*settings.address)
        if settings.listen_tcp:
            server_keys(settings.keys_directory)
        state.remove_stale_sockets()
    finally:
        os.close(lock)


def free_port(address: str) -> socket.socket:
    """A port of `address` on which nobody listens: as long as this socket is open, the kernel gives
    it to nobody who does not ask for it by its number.
    """
    return _bound(address, 0)


def _check_library(models: Path) -> None:
    try:
        models.mkdir(parents=True, exist_ok=True)
        with os.scandir(models):
            pass
    except OSError as error:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"PRONK_MODELS={models}: {error.strerror}; name a directory that this user can read",
        ) from None


def check_address(address: str, port: int) -> None:
    """Raises `PronkError` where nobody could listen there."""
    _bound(address, port).close()


def _bound(address: str, port: int) -> socket.socket:
    where = f"PRONK_HOST={address}:{port}"
    try:
        family, *_, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise PronkError(Code.INVALID_REQUEST, f"{where}: {error.strerror or error}") from None
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As supervisord opens it: connections of an earlier server that still linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(target)
    except OSError as error:
        probe.close()
        raise PronkError(Code.INVALID_REQUEST, f"{where}: {_advice(error, address)}") from None
    return probe


def _advice(error: OSError, address: str) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return "another program listens there; stop it, or set PRONK_HOST to another port"
        case errno.EADDRNOTAVAIL:
            return f"{address} is no address of this machine; set PRONK_HOST to one that is"
        case errno.EACCES:
            return "this user may not listen on a port below 1024; set PRONK_HOST to a higher one"
        case _:
            return error.strerror or str(error)
