"""How commands about models end, whatever answers them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from support.cli import Pronk, answering, command, error
from support.played_api import PlayedApi, said
from support.server import PATIENCE


def test_a_server_that_does_not_run_is_one_line(
    monkeypatch: pytest.MonkeyPatch, pronk: Pronk
) -> None:
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for arguments in (("list",), ("run", "m", "hi"), ("pull", "m"), ("rm", "a", "b")):
            told = error(pronk(*arguments, "--host", url, status=1))
            assert told.startswith(f"no server at {url}; start one with `pronk serve`")


def test_a_server_that_redirects_is_one_line(pronk: Pronk) -> None:
    with answering(b"HTTP/1.0 301 Moved\r\nLocation: https://elsewhere/\r\n\r\n<html>") as host:
        for arguments in (("list",), ("list", "--json"), ("pull", "m")):
            told = error(pronk(*arguments, "--host", host, status=1))
            assert told.startswith("the server redirects (status 301)")


def test_what_is_no_ollama_is_one_line(pronk: Pronk) -> None:
    with answering(b"HTTP/1.0 200 OK\r\n\r\n<html>[1]</html>") as host:
        for arguments in (("list",), ("list", "--json"), ("show", "m"), ("pull", "m")):
            told = error(pronk(*arguments, "--host", host, status=1))
            assert "does not speak Ollama's API" in told


def test_an_error_of_another_program_is_one_short_line(pronk: Pronk) -> None:
    page = b"<html>\n" + b"<p>no \x1b[2J such page</p>\n" * 1000
    with answering(b"HTTP/1.0 502 Bad Gateway\r\n\r\n" + page) as host:
        for arguments in (("list",), ("ps", "--json"), ("push", "m")):
            told = error(pronk(*arguments, "--host", host, status=1))
            assert len(told) < 600
            assert "\x1b" not in told


def test_a_name_of_two_lines_is_told_on_one(pronk: Pronk) -> None:
    assert error(pronk("show", "a\nb", status=1)).startswith("model 'a b' not found")


def test_a_key_is_sent_with_everything(
    api: PlayedApi, pronk: Pronk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_API_KEY", "secret")
    pronk("show", "m")
    pronk("cp", "m", "n")
    assert api.keys == ["Bearer secret", "Bearer secret"]


def test_standard_input_may_be_closed(api: PlayedApi) -> None:
    api.answer = said("ok")
    process = subprocess.run(
        [sys.executable, "-m", "pronk.frontend.cli", "run", "m", "hi", "--host", api.url],
        preexec_fn=lambda: os.close(0),
        capture_output=True,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, b"ok\n", b"")


def test_text_that_is_no_text_is_mended(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("ok")
    pronk("run", "m", os.fsdecode(b"caf\xe9"))
    assert api.bodies("/api/generate")[0]["prompt"] == "caf\ufffd"
    assert "not found" in error(pronk("show", os.fsdecode(b"\xff"), status=1))


def test_a_reader_that_has_enough_ends_it_silently(api: PlayedApi) -> None:
    never = threading.Event()
    go_on = threading.Event()
    api.answer = [*said("word ")[:1], go_on, *said(*["word "] * 1000)[:-1], never]
    process = command("run", "m", "hi", "--host", api.url)
    assert process.stdout
    assert process.stderr
    assert process.stdout.read(5) == b"word "
    process.stdout.close()
    go_on.set()
    assert process.wait(PATIENCE) == 1
    assert process.stderr.read() == b""
    process.stderr.close()
    never.set()


def test_ctrl_c_ends_an_answer_with_130(api: PlayedApi) -> None:
    never = threading.Event()
    api.answer = [*said("word")[:1], never]
    process = command("run", "m", "hi", "--host", api.url)
    assert process.stdout
    assert process.stdout.read(4) == b"word", "each piece is written when it comes"
    process.send_signal(signal.SIGINT)
    rest, told = process.communicate(timeout=PATIENCE)
    assert (process.returncode, rest, told) == (130, b"\n", b"")
    never.set()


def test_a_full_disk_behind_the_output_is_one_line(api: PlayedApi) -> None:
    with Path("/dev/full").open("wb") as full:
        process = command("list", "--host", api.url, stdout=full)
        _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert told.startswith(b"Error: No space left on device\n")
    assert b"Traceback" not in told
