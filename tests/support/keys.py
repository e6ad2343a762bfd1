"""Key directories of a server's host and of hosts that join it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pronk.protocol import keys


class Hosts:
    """A server's keys, and those of as many others as the test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.server = root / "server-keys"
        keys.create(self.server, "server")

    def client(self, name: str, *, known: bool = True) -> Path:
        """The directory of a host that knows the server, and is known to it if wanted."""
        directory = self.root / f"{name}-keys"
        keys.create(directory, name)
        shutil.copy(self.server / "server.public", directory)
        if known:
            self.introduce(directory)
        return directory

    def introduce(self, directory: Path) -> None:
        """Makes the server know a host."""
        for public in directory.glob("*.public"):
            if public.stem != keys.SERVER:
                shutil.copy(public, self.server)
