"""Fixtures that all tests share. `tests/support/` holds what they are made of."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import httpx
import ollama
import pytest

from support.server import PATIENCE, Server, ServerMaker, servers


def pytest_configure() -> None:
    """Gives back their meaning to signals that nohup, or a shell's `&`, has told us to ignore.

    The servers under test would inherit that, and many a test ends one by such a signal.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server that many tests share: they leave it as they found it."""
    with servers() as make:
        yield make()


@pytest.fixture
def make_server() -> Iterator[ServerMaker]:
    """Makes servers that a test has for itself, with settings of its own."""
    with servers() as make:
        yield make


@pytest.fixture
def client(server: Server) -> ollama.Client:
    """The official client."""
    return ollama.Client(host=server.url, timeout=PATIENCE)


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """Plain HTTP."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield client
