"""The directory `PRONK_STATE`: sockets, locks and logs of one server, private to its user."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from .errors import Code, PronkError

_IPC_PATH_LIMIT = 107
"""Bytes of a Unix socket's path on Linux (103 on macOS, where the kernel says so itself)."""


class StateDirectory:
    """Names everything in the directory, so that no other module builds a path of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sockets = root / "run"
        self.logs = root / "logs"

    def prepare(self) -> None:
        """Creates what is missing and checks what is there.

        Raises `PronkError` when the directory cannot be created, written, or made private, or when
        its path is too long for a socket.
        """
        try:
            for directory in (self.root, self._sockets, self.logs):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.chmod(0o700)
        except OSError as error:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"PRONK_STATE={self.root}: {error.strerror or error}; name a directory of your own",
            ) from None
        if not os.access(self._sockets, os.W_OK | os.X_OK):
            raise PronkError(Code.INVALID_REQUEST, f"PRONK_STATE={self.root}: is not writable")
        excess = len(os.fsencode(self._socket("frontend-" + 16 * "0"))) - _IPC_PATH_LIMIT
        if excess > 0:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"PRONK_STATE={self.root}: the path is {excess} bytes too long for a Unix socket",
            )

    def _socket(self, name: str) -> Path:
        return self._sockets / f"{name}.sock"

    @property
    def scheduler(self) -> str:
        """Where the scheduler is reached."""
        return f"ipc://{self._socket('scheduler')}"

    @property
    def store(self) -> str:
        """Where the store worker is reached."""
        return f"ipc://{self._socket('store')}"

    @property
    def uploads(self) -> str:
        """Where the store worker takes files."""
        return f"ipc://{self._socket('uploads')}"

    @property
    def control(self) -> str:
        """Where the scheduler is reached by an operator."""
        return f"ipc://{self._socket('control')}"

    @property
    def keys(self) -> Path:
        """Where the keys of this host lie, unless PRONK_KEYS names another directory."""
        return self.root / "keys"

    def frontend(self, incarnation: str) -> str:
        """Where one life of one frontend is reached."""
        return f"ipc://{self._socket('frontend-' + incarnation)}"

    def crash_record(self, name: str) -> Path:
        """Where the process called `name` remembers its recent deaths."""
        return self._sockets / f"{name}.crashes"

    def last_words(self, name: str) -> Path:
        """Where the process called `name` leaves what it dies of."""
        return self._sockets / f"{name}.died"

    @property
    def orders(self) -> Path:
        """Where the store keeps what it was told to do and is not done with."""
        return self._sockets / "orders.json"

    @property
    def drained_devices(self) -> Path:
        """Where the scheduler remembers on which devices nothing is to be placed."""
        return self.root / "drained-devices.json"

    def log(self, name: str) -> Path:
        """Where the process called `name` writes what it has to say."""
        return self.logs / f"{name}.log"

    @property
    def supervisor_config(self) -> Path:
        """The file that `pronk serve` renders for supervisord."""
        return self.root / "supervisord.conf"

    @property
    def supervisor_pid(self) -> Path:
        """Where supervisord leaves its pid."""
        return self._sockets / "supervisord.pid"

    def remove_stale_sockets(self) -> None:
        """Removes the sockets of frontends that were killed. Only while no server runs here."""
        for path in self._sockets.glob("frontend-*.sock"):
            path.unlink(missing_ok=True)

    def lock(self, name: str) -> int:
        """Takes the lock called `name` until this process ends; returns its descriptor.

        Raises `PronkError` when another process holds it: a second scheduler on one directory
        would silently take the first one's new peers.
        """
        descriptor = os.open(self._sockets / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise PronkError(
                Code.UNAVAILABLE,
                f"PRONK_STATE={self.root}: another server runs on this directory; stop it, or set "
                "PRONK_STATE to another directory",
            ) from None
        return descriptor
