"""User names, passwords and tokens: from the settings, else from the keyring of the user.

In the keyring, the service is `pronk`, the user is the registry's host (`keyring set pronk
registry.example.org`), and the secret is `user:password` or a bearer token. A keyring may not be
there, may be locked, or may ask a question on a screen that nobody sees: it is given some seconds,
in a thread of its own, and no answer is an answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from pydantic import ValidationError

from ....protocol.patience import within
from ....protocol.registries import RegistryAccess

_log = logging.getLogger(__name__)

SERVICE = "pronk"
KEYRING_SECONDS = 5.0
REMEMBERED_SECONDS = 60.0
"""For how long an answer of the keyring is kept."""

_NOTHING = RegistryAccess()
_OLLAMA = "registry.ollama.ai"


def how_to_be_let_in(host: str) -> str:
    """What an operator can do about a registry that wants to know who asks."""
    if host == _OLLAMA:
        return (
            "for pushes and private models it wants a signature with Ollama's own key, which Pronk "
            "cannot give; `ollama push` and `ollama pull` can, and work on the same library"
        )
    return (
        f'give username and password, or a token, under [registry."{host}"] in the server\'s '
        f"settings, or `keyring set pronk {host}`"
    )


def _from_keyring(host: str) -> str | None:
    import keyring  # which looks for its backends when it is imported

    return keyring.get_password(SERVICE, host)


class Credentials:
    """What is known about registries. Lives on one event loop."""

    def __init__(
        self,
        settings: Mapping[str, RegistryAccess],
        look_up: Callable[[str], str | None] = _from_keyring,
        patience: float = KEYRING_SECONDS,
    ) -> None:
        self._settings = settings
        self._look_up = look_up
        self._patience = patience
        # One thread: however many questions a keyring leaves without an answer, no more hang.
        self._thread = ThreadPoolExecutor(1, "store-keyring")
        self._known: dict[str, tuple[float, str | None]] = {}

    def close(self) -> None:
        """A thread that hangs is left to itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def settings_of(self, host: str) -> RegistryAccess:
        """What the settings say about a host."""
        return self._settings.get(host, _NOTHING)

    async def of(self, host: str) -> RegistryAccess:
        """The same, with what the keyring has where the settings have no secret."""
        access = self.settings_of(host)
        if access.username or access.token:
            return access
        if not (secret := await self._secret(host)):
            return access
        user, colon, password = secret.partition(":")
        given = {"username": user, "password": password} if colon else {"token": secret}
        try:
            return RegistryAccess.model_validate(
                {**access.model_dump(exclude={"username", "password", "token"}), **given}
            )
        except ValidationError:
            _log.warning("the keyring's entry for %s is neither user:password nor a token", host)
            return access

    async def _secret(self, host: str) -> str | None:
        asked_at, secret = self._known.get(host, (float("-inf"), None))
        if monotonic() - asked_at < REMEMBERED_SECONDS:
            return secret
        loop = asyncio.get_running_loop()
        asking = loop.run_in_executor(self._thread, self._look_up, host)
        try:
            if await within(asking, self._patience):
                secret = asking.result()
            else:
                _log.warning("the keyring did not answer within %g seconds", self._patience)
                secret = None
        except Exception as error:
            # No keyring is the usual case on a server. What it says may hold anything.
            _log.debug("no keyring: %s", type(error).__name__)
            secret = None
        finally:
            asking.cancel()
        if len(self._known) >= 1024:
            self._known.clear()
        self._known[host] = monotonic(), secret
        return secret
