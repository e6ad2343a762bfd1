"""Passwords and tokens in settings and keyring: found, and never shown."""

from __future__ import annotations

import asyncio
import configparser
import json
import logging
import threading
import time
from pathlib import Path

import keyring
import pytest

from pronk.frontend.cli.documentation import describe
from pronk.frontend.cli.rendering import render_for_host, render_for_serve
from pronk.protocol.errors import PronkError
from pronk.protocol.registries import RegistryAccess, canonical_host
from pronk.protocol.settings import Settings, load_settings
from pronk.workers.store.registry.credentials import Credentials
from support.calls import until

HOST = "models.example.org"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRONK_CONFIG", raising=False)
    monkeypatch.delenv("PRONK_REGISTRIES", raising=False)


def secret_of(access: RegistryAccess) -> tuple[str | None, str | None, str | None]:
    password = access.password.get_secret_value() if access.password else None
    token = access.token.get_secret_value() if access.token else None
    return access.username, password, token


def test_a_table_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "pronk.toml"
    file.write_text(
        '[registry."Models.Example.org:443"]\nusername = "ann"\npassword = "s3cret"\n'
        '[registry."10.0.0.7:5000"]\ntoken = "t0ken"\nstorage = ["MinIO.local:9000"]\n'
    )
    monkeypatch.setenv("PRONK_CONFIG", str(file))
    registries = load_settings().registries
    assert secret_of(registries[HOST]) == ("ann", "s3cret", None)
    assert secret_of(registries["10.0.0.7:5000"]) == (None, None, "t0ken")
    assert registries["10.0.0.7:5000"].storage == ["minio.local:9000"]


def test_the_same_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {HOST: {"username": "ann", "password": "s3cret", "realm": "auth.example.org"}}
    monkeypatch.setenv("PRONK_REGISTRIES", json.dumps(value))
    assert load_settings().registries[HOST].realm == "auth.example.org"


@pytest.mark.parametrize(
    "value",
    [
        {"https://models.example.org": {}},
        {"": {}},
        {"host/path": {}},
        {"host:0": {}},
        {"host:99999": {}},
        {"user@host": {}},
        {HOST: {}, "MODELS.example.org": {}},
        {HOST: {"username": "ann"}},
        {HOST: {"password": "s3cret"}},
        {HOST: {"username": "a:b", "password": "s3cret"}},
        {HOST: {"username": "ann", "password": ""}},
        {HOST: {"username": "ann", "password": "s3cret\nInjected: yes"}},
        {HOST: {"username": "ann", "password": "s3cret", "token": "s3cret"}},
        {HOST: {"password": ["s3cret"]}},
        {HOST: {"passwort": "s3cret"}},
        {HOST: {"realm": "https://auth.example.org", "token": "s3cret"}},
        {HOST: "s3cret"},
        "s3cret",
    ],
)
@pytest.mark.parametrize("in_file", [False, True])
def test_what_makes_no_sense_is_refused_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: object, in_file: bool
) -> None:
    if in_file:
        file = tmp_path / "pronk.toml"
        file.write_text(f"registries = {_toml(value)}\n")
        monkeypatch.setenv("PRONK_CONFIG", str(file))
    else:
        monkeypatch.setenv("PRONK_REGISTRIES", json.dumps(value))
    with pytest.raises(PronkError, match=r"registr|REGISTR") as caught:
        load_settings()
    assert "s3cret" not in caught.value.message
    assert caught.value.message.isprintable()


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def test_json_that_is_none_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONK_REGISTRIES", '{"a": {"token": "s3cret"')
    with pytest.raises(PronkError, match="PRONK_REGISTRIES is not valid JSON") as caught:
        load_settings()
    assert "s3cret" not in caught.value.message


def test_no_page_or_file_of_ours_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {HOST: {"username": "ann", "password": "s3cret"}, "b.example": {"token": "s3cret"}}
    monkeypatch.setenv("PRONK_REGISTRIES", json.dumps(value))
    settings = load_settings()
    page = describe(settings)
    assert '[registry."models.example.org"]' in page
    assert "set for b.example, models.example.org" in page
    for text in (page, repr(settings), str(settings), settings.model_dump_json()):
        assert "s3cret" not in text
    with pytest.raises(PronkError, match="PRONK_REGISTRIES"):
        render_for_host(settings, "nobody")


def test_no_process_but_the_store_gets_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRONK_STATE", str(tmp_path))
    monkeypatch.setenv("PRONK_REGISTRIES", json.dumps({HOST: {"token": "s3cret"}}))
    text = render_for_serve(load_settings())
    assert "s3cret" not in text
    config = configparser.RawConfigParser()
    config.read_string(text)
    for section in config.sections():
        kept = section in ("supervisord", "program:pronk-store")
        hidden = config.get(section, "environment", fallback="") == 'PRONK_REGISTRIES="{}"'
        assert hidden is not kept, section
    monkeypatch.setenv("PRONK_REGISTRIES", "{}")  # as those processes have it
    assert load_settings().registries == {}


def test_what_is_not_secret_may_be_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONK_REGISTRIES", json.dumps({HOST: {"realm": "auth.example.org"}}))
    assert "auth.example.org" in render_for_host(load_settings(), "nobody")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Registry.Example.org", "registry.example.org"),
        ("registry.example.org:443", "registry.example.org"),
        ("127.0.0.1:5000", "127.0.0.1:5000"),
        ("[::1]:5000", "[::1]:5000"),
    ],
)
def test_hosts(text: str, host: str) -> None:
    assert canonical_host(text) == host


@pytest.mark.parametrize(
    ("secret", "found"),
    [
        ("ann:s3cret", ("ann", "s3cret", None)),
        ("ann:s3:cret", ("ann", "s3:cret", None)),
        ("t0ken", (None, None, "t0ken")),
        (None, (None, None, None)),
        ("", (None, None, None)),
        ("ann:", (None, None, None)),
        ("line\nbreak", (None, None, None)),
    ],
)
async def test_the_keyring(
    secret: str | None, found: tuple[str | None, ...], caplog: pytest.LogCaptureFixture
) -> None:
    known = Credentials({HOST: RegistryAccess(realm="auth.example.org")}, lambda host: secret)
    access = await known.of(HOST)
    assert secret_of(access) == found
    assert access.realm == "auth.example.org"
    assert "s3cret" not in caplog.text


async def test_settings_win_over_the_keyring() -> None:
    def never(host: str) -> str:
        raise AssertionError

    known = Credentials({HOST: RegistryAccess.model_validate({"token": "t0ken"})}, never)
    assert secret_of(await known.of(HOST))[2] == "t0ken"


async def test_a_keyring_that_fails_or_hangs_is_none(caplog: pytest.LogCaptureFixture) -> None:
    def fails(host: str) -> str:
        raise RuntimeError("the secret is s3cret")

    with caplog.at_level(logging.DEBUG):
        assert secret_of(await Credentials({}, fails).of(HOST)) == (None, None, None)
    assert "s3cret" not in caplog.text
    answered, asked = threading.Event(), 0

    def hangs(host: str) -> str:
        nonlocal asked
        asked += 1
        answered.wait()
        return "t0ken"

    known = Credentials({}, hangs, patience=0.05)
    try:
        assert secret_of(await known.of(HOST)) == (None, None, None)
        assert secret_of(await known.of("other.example")) == (None, None, None)
        assert asked == 1  # one thread hangs, not one for each question
    finally:
        answered.set()
        known.close()


async def test_a_standstill_of_ours_is_not_the_keyrings() -> None:
    def answers(host: str) -> str:
        asked.set()
        may_answer.wait()
        return "t0ken"

    asked, may_answer = threading.Event(), threading.Event()
    known = Credentials({}, answers, patience=0.5)
    asking = asyncio.create_task(known.of(HOST))
    await until(asked.is_set)
    may_answer.set()
    time.sleep(0.6)  # noqa: ASYNC251  what asks lives on this loop and stands still
    assert secret_of(await asking)[2] == "t0ken"
    known.close()


async def test_the_keyring_of_the_user_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "get_password", lambda service, user: f"{service}:{user}")
    known = Credentials(Settings().registries)
    assert secret_of(await known.of(HOST)) == ("pronk", HOST, None)
