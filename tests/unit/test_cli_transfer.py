"""`pronk pull` and `push`: their progress on a terminal and elsewhere, and their ends."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from support.cli import Pronk
from support.played_api import GIGABYTES, PULLED, PlayedApi
from support.terminal import CTRL_C, terminal


def test_pull_without_a_terminal_prints_plain_lines(api: PlayedApi, pronk: Pronk) -> None:
    result = pronk("pull", "llama3.2", "--insecure")
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "pulling manifest",
        "pulling 6a0746a1ec1a:   0% 0 B/4.7 GB",
        "pulling 6a0746a1ec1a:  23% 1.1 GB/4.7 GB",
        "pulling 6a0746a1ec1a: 100% 4.7 GB",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    ]
    assert api.bodies("/api/pull") == [{"model": "llama3.2", "insecure": True, "stream": True}]


@pytest.mark.parametrize("name", ["pull", "push"])
def test_json_progress_is_what_the_server_says(api: PlayedApi, pronk: Pronk, name: str) -> None:
    api.push = list(PULLED)
    lines = pronk(name, "m", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == PULLED


@pytest.mark.parametrize("name", ["pull", "push"])
def test_an_error_in_the_stream_is_one_line(api: PlayedApi, pronk: Pronk, name: str) -> None:
    lines = [{"status": "pulling manifest"}, {"error": "the registry\nrefused\x1b[2J"}]
    api.pull = api.push = lines
    result = pronk(name, "m", status=1)
    assert result.stderr.splitlines()[-1] == "Error: the registry refused[2J"


@pytest.mark.parametrize(
    "end", ["", '{"status": "pul', "[]\n", "nonsense\n", '{"error": {"a": 1}}\n']
)
def test_a_stream_that_breaks_off_is_an_error(api: PlayedApi, pronk: Pronk, end: str) -> None:
    api.pull = [{"status": "pulling manifest"}, end]
    assert "Error: " in pronk("pull", "m", status=1).stderr


def test_bars_on_a_terminal(api: PlayedApi, tmp_path: Path) -> None:
    go_on = threading.Event()
    half = PULLED[2] | {"completed": GIGABYTES // 2}
    api.pull = [*PULLED[:3], go_on, half, half, *PULLED[3:]]
    with terminal("pull", "llama3.2", home=tmp_path, url=api.url) as screen:
        screen.read_until("pulling 6a0746a1ec1a:  23% ▕████              ▏ 1.1 GB/4.7 GB")
        go_on.set()
        assert screen.wait() == 0
        lines = [line.rpartition("\r")[2].rstrip() for line in screen.shown.split("\n")]
        assert [line for line in lines if line][-5:] == [
            "pulling manifest",
            f"pulling 6a0746a1ec1a: 100% ▕{'█' * 18}▏ 4.7 GB",
            "verifying sha256 digest",
            "writing manifest",
            "success",
        ]


def test_a_bar_has_its_speed_and_the_time_left(api: PlayedApi, tmp_path: Path) -> None:
    first, go_on, never = threading.Event(), threading.Event(), threading.Event()
    steps = [PULLED[2] | {"completed": count * 10**9} for count in (1, 2, 3)]
    api.pull = [steps[0], first, steps[1], go_on, steps[2], never]
    with terminal("pull", "m", home=tmp_path, url=api.url) as screen:
        screen.read_until("1 GB/4.7 GB")
        first.set()
        screen.read_until("2 GB/4.7 GB")
        go_on.set()
        screen.read_until("3 GB/4.7 GB  ")
        assert re.fullmatch(r"[\d.]+ [GTM]B/s", screen.read_until("/s"))
        assert re.fullmatch(r"  (\d+m)?\d+s", screen.read_until("s"))
    never.set()


def test_many_parts_fit_on_a_small_terminal(api: PlayedApi, tmp_path: Path) -> None:
    go_on = threading.Event()
    api.pull = [
        {"status": f"pulling {i}", "digest": f"sha256:{i}", "total": 10, "completed": 10}
        for i in range(100)
    ]
    api.pull += [{"status": "the one that is worked on"}, go_on, PULLED[-1]]
    with terminal("pull", "m", home=tmp_path, url=api.url) as screen:
        screen.read_until("the one that is worked on")
        for i in range(100):
            assert f"pulling {i}: 100% ▕{'█' * 18}▏ 10 B\n" in screen.shown
        go_on.set()
        assert screen.wait() == 0


def test_a_dumb_terminal_gets_plain_lines(api: PlayedApi, tmp_path: Path) -> None:
    with terminal("pull", "m", home=tmp_path, url=api.url, term="dumb") as screen:
        assert screen.wait() == 0
        assert "\x1b" not in screen.raw
        assert "pulling 6a0746a1ec1a: 100% 4.7 GB\n" in screen.shown


def test_ctrl_c_ends_a_pull_and_says_that_the_parts_are_kept(
    api: PlayedApi, tmp_path: Path
) -> None:
    never = threading.Event()
    api.pull = [*PULLED[:3], never]
    # A terminal of another encoding than UTF-8 is no reason for a traceback, either.
    with terminal("pull", "m", home=tmp_path, url=api.url, PYTHONIOENCODING="latin-1") as screen:
        screen.read_until("23% [####              ] 1.1 GB/4.7 GB")
        screen.type(CTRL_C)
        screen.read_until("Stopped. What came is kept: `pronk pull m` goes on from there.")
        assert screen.wait() == 130
        assert "Traceback" not in screen.shown
    never.set()
