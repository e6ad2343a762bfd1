"""`pronk list`, `ps`, `show`, `cp`, `rm` and `stop`: what they ask, what they print."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest

from support.cli import Pronk, error
from support.played_api import GIGABYTES, PlayedApi, listed


def test_list_has_ollamas_columns(api: PlayedApi, pronk: Pronk) -> None:
    three_days_ago = (datetime.now(UTC) - timedelta(days=3, minutes=1)).isoformat()
    api.list = [
        listed("llama3.2:3b", modified_at=three_days_ago),
        listed("demo:latest", size=92_345),
    ]
    lines = pronk("list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "ID", "SIZE", "MODIFIED"]
    digest = hashlib.sha256(b"llama3.2:3b").hexdigest()[:12]
    assert lines[1] == f"llama3.2:3b    {digest}    4.7 GB    3 days ago"
    assert lines[2].startswith("demo:latest ")
    assert pronk("ls").stdout.splitlines() == lines
    assert len(pronk("list", "LLAMA").stdout.splitlines()) == 2


def test_an_empty_list_has_its_columns(pronk: Pronk) -> None:
    assert pronk("list").stdout == "NAME    ID    SIZE    MODIFIED\n"


def test_ps_has_ollamas_columns(api: PlayedApi, pronk: Pronk) -> None:
    now = datetime.now(UTC)
    soon, past = now + timedelta(minutes=4, seconds=30), now - timedelta(seconds=5)
    api.loaded = [
        listed("a:1", size_vram=GIGABYTES, expires_at=soon.isoformat(), context_length=4096),
        listed("b:1", size_vram=0, expires_at="2318-01-01T00:00:00Z", context_length=2048),
        listed("c:1", size_vram=GIGABYTES // 2, expires_at=past.isoformat(), context_length=8),
    ]
    head, first, second, third = pronk("ps").stdout.splitlines()
    assert head.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL"]
    assert "4.7 GB    100% GPU" in first
    assert first.endswith("4096       4 minutes from now")
    assert "100% CPU" in second
    assert second.endswith("2048       Forever")
    assert "50%/50% CPU/GPU" in third
    assert third.endswith("8          Stopping...")


def test_json_is_what_the_server_says(api: PlayedApi, pronk: Pronk) -> None:
    api.list = [listed("a:1", unknown={"to": ["this", "version"]}), listed("b:1")]
    api.loaded = [listed("a:1", size_vram=5)]
    api.models["m"] = {"capabilities": ["completion"], "template": "ä"}
    assert json.loads(pronk("list", "--json").stdout) == {"models": api.list}
    assert json.loads(pronk("list", "b", "--json").stdout) == {"models": api.list[1:]}
    assert json.loads(pronk("ps", "--json").stdout) == {"models": api.loaded}
    assert json.loads(pronk("show", "m", "--json").stdout) == api.models["m"]


def test_show_prints_one_part_as_it_is(api: PlayedApi, pronk: Pronk) -> None:
    parts = {
        "license": "MIT\n",
        "modelfile": "FROM m\n\n",
        "parameters": "top_k  3",
        "system": "[bold]You are a llama.[/]",
        "template": "{{ .Prompt }}",
    }
    api.models["m"] |= parts
    for part, text in parts.items():
        assert pronk("show", "m", f"--{part}").stdout == text.rstrip("\n") + "\n"
    assert "You are a llama" in pronk("show", "m").stdout
    del api.models["m"]["system"]
    assert pronk("show", "m", "--system").stdout == ""
    assert pronk("show", "-v", "m").exit_code == 0
    assert api.bodies("/api/show")[-1] == {"model": "m", "verbose": True}


def test_two_parts_at_once_are_a_usage_error(pronk: Pronk) -> None:
    assert "only one of" in pronk("show", "m", "--system", "--license", status=2).stderr


def test_copy(api: PlayedApi, pronk: Pronk) -> None:
    assert pronk("cp", "m", "n").stdout == "copied 'm' to 'n'\n"
    assert api.bodies("/api/copy") == [{"source": "m", "destination": "n"}]


def test_remove_goes_on_behind_a_failure(api: PlayedApi, pronk: Pronk) -> None:
    api.models["n"] = {}
    result = pronk("rm", "m", "missing", "n", status=1)
    assert result.stdout == "deleted 'm'\ndeleted 'n'\n"
    assert "Error: model 'missing' not found; `pronk list` shows" in result.stderr
    assert not api.models


def test_stop_ends_the_stay(api: PlayedApi, pronk: Pronk) -> None:
    assert pronk("stop", "m").stdout == ""
    assert api.bodies("/api/generate") == [{"model": "m", "keep_alive": 0, "stream": False}]


@pytest.mark.parametrize(
    "arguments",
    [("show", "x"), ("cp", "x", "y"), ("rm", "x"), ("stop", "x")],
)
def test_a_model_that_is_missing_is_told_with_what_to_do(
    pronk: Pronk, arguments: tuple[str, ...]
) -> None:
    told = error(pronk(*arguments, status=1))
    assert told.startswith("model 'x' not found; `pronk list` shows what is there")
