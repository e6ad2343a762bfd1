"""Fixtures that all tests share. `tests/support/` holds what they are made of."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import httpx
import ollama
import pytest
from hypothesis import HealthCheck, settings

from support.server import PATIENCE, Server, ServerMaker, servers

# Hundreds of processes are started, here and by the servers under test. Where compiled modules are
# not kept, each of them would compile ours anew, and each run the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


# How fast examples are drawn and run depends on what else the machine does. And the same tests pass
# today and tomorrow: other examples are looked for with `--hypothesis-profile=search`.
settings.register_profile(
    "pronk", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("search", settings.get_profile("pronk"), derandomize=False)
settings.load_profile("pronk")


def pytest_configure() -> None:
    """Gives back their meaning to signals that nohup, or a shell's `&`, has told us to ignore.

    The servers under test would inherit that, and many a test ends one by such a signal.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the group of a test behind an `@` into its id, where `--dist loadgroup` looks for it.

    pytest-xdist 3.8 does so itself, but at a place that pytest 9.2 does not read any more: in
    silence all its workers got tests of each group, and each started the group's server. Those that
    share `server` are a group of their own.
    """
    if not config.getoption("loadgroup", None):
        return
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        shared = "server" in getattr(item, "fixturenames", ())
        group = str(mark.args[0]) if mark else "server" if shared else ""
        if group and not item.nodeid.endswith(f"@{group}"):
            item._id = type(item.id).parse(f"{item.nodeid}@{group}")
            assert item.nodeid.endswith(f"@{group}")


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
