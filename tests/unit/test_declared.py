"""`PRONK_DEVICES`: what is understood, and what is said of what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.protocol.declared import DeclaredDevice, canonical, declared
from pronk.protocol.errors import PronkError
from pronk.protocol.settings import load_settings

GIB = 2**30


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PRONK_", "OLLAMA_")):
            monkeypatch.delenv(name)


def test_devices_are_declared_as_people_write_sizes(monkeypatch: pytest.MonkeyPatch):
    text = '[{"name":"sim0","memory":"8GiB"}, {"name": "b-1.x", "memory": 1000}]'
    monkeypatch.setenv("PRONK_DEVICES", text)
    assert load_settings().declared_devices == [
        DeclaredDevice("sim0", 8 * GIB),
        DeclaredDevice("b-1.x", 1000),
    ]


def test_a_file_declares_them_as_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file = tmp_path / "pronk.toml"
    tables = ("name = 'a'\nmemory = '1MiB'", "name = 'b'\nmemory = 9")
    file.write_text("".join(f"[[devices]]\n{table}\n" for table in tables))
    monkeypatch.setenv("PRONK_CONFIG", str(file))
    assert load_settings().declared_devices == [DeclaredDevice("a", 2**20), DeclaredDevice("b", 9)]


@pytest.mark.parametrize("text", ["", "  ", "[]"])
def test_nothing_declares_nothing(monkeypatch: pytest.MonkeyPatch, text: str):
    monkeypatch.setenv("PRONK_DEVICES", text)
    assert load_settings().declared_devices == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sim0", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"name":"a"}', "is no list"),
        ("[1]", "no object"),
        ('[{"name":"a","memory":1,"size":2}]', 'knows no "size"'),
        ('[{"name":"a"}]', "memory"),
        ('[{"memory":"8GiB"}]', 'needs a "name"'),
        ('[{"name":"","memory":"8GiB"}]', 'needs a "name"'),
        ('[{"name":"a b","memory":"8GiB"}]', 'needs a "name"'),
        ('[{"name":7,"memory":"8GiB"}]', 'needs a "name"'),
        ('[{"name":"a","memory":"much"}]', "is not a size"),
        ('[{"name":"a","memory":0}]', 'needs "memory" for a'),
        ('[{"name":"a","memory":-1}]', 'needs "memory" for a'),
        ('[{"name":"a","memory":true}]', 'needs "memory" for a'),
        ('[{"name":"a","memory":1.5}]', 'needs "memory" for a'),
        ('[{"name":"a","memory":1e999}]', 'needs "memory" for a'),
        ('[{"name":"a","memory":"99999999999TiB"}]', 'needs "memory" for a'),
        ('[{"name":"cpu","memory":"1GiB"}]', "always there"),
        ('[{"name":"a","memory":1},{"name":"a","memory":2}]', "the device a twice"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, text: str, reason: str):
    monkeypatch.setenv("PRONK_DEVICES", text)
    with pytest.raises(PronkError) as caught:
        load_settings()
    assert caught.value.message.startswith("PRONK_DEVICES=")
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


_NAMES = st.from_regex(r"[a-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True).filter(
    lambda name: name.upper() != "CPU"
)


@given(st.lists(st.tuples(_NAMES, st.integers(1, 2**60)), unique_by=lambda pair: pair[0]))
def test_the_form_that_is_passed_on_means_the_same(pairs: list[tuple[str, int]]):
    text = canonical([{"name": name, "memory": memory} for name, memory in pairs])
    assert canonical(text) == text
    assert [(device.name, device.memory) for device in declared(text)] == pairs
