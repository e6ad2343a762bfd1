"""Which web pages may call, and under which names the server answers."""

from __future__ import annotations

import socket

import pytest

from pronk.frontend.origins import Origins

LOOPBACK = Origins("https://chat.example.org, http://10.0.0.*", "127.0.0.1")


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost",
        "https://localhost:3000",
        "http://127.0.0.1:8080",
        "http://[::1]:1",
        "http://0.0.0.0",
        "app://obsidian.md",
        "file://",
        "tauri://localhost",
        "vscode-webview://1a2b",
        "vscode-file://vscode-app",
        "https://chat.example.org",
        "http://10.0.0.7",
    ],
)
def test_local_pages_and_those_of_the_setting_may_call(origin: str) -> None:
    assert LOOPBACK.allows_origin(origin, "localhost:11434")


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://evil.example",
        "http://localhost.evil.example",
        "http://localhost:3000@evil.example",
        "http://evil.example/http://localhost",
        "https://chat.example.org.evil.example",
        "chrome-extension://abc",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    assert not LOOPBACK.allows_origin(origin, "localhost:11434")


def test_a_page_that_was_served_from_here_may_call() -> None:
    assert LOOPBACK.allows_origin("https://llm.local", "llm.local")


def test_a_star_allows_every_page() -> None:
    assert Origins("*", "127.0.0.1").allows_origin("https://evil.example", "localhost")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "localhost",
        "LOCALHOST:11434",
        "pronk.localhost:80",
        "host.docker.internal:11434",
        "nas.local",
        "127.0.0.1:11434",
        "[::1]:11434",
        "::1",
        "192.168.1.5",
        "0.0.0.0:1",
        socket.gethostname(),
    ],
)
def test_a_loopback_server_answers_to_local_names(host: str) -> None:
    assert LOOPBACK.allows_host(host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:11434", "localhost.evil.example", "8.8.8.8", "local"]
)
def test_a_loopback_server_answers_to_no_foreign_name(host: str) -> None:
    assert not LOOPBACK.allows_host(host)
    assert Origins("", "0.0.0.0").allows_host(host)
