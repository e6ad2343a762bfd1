"""`pronk create`: which files it sends, and what it asks the server for."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from support.cli import Pronk, error
from support.played_api import PlayedApi
from support.store import tiny_gguf


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a Modelfile and what it names."""
    tiny_gguf(tmp_path / "weights.gguf")
    tiny_gguf(tmp_path / "lora.gguf")
    (tmp_path / "Modelfile").write_text(
        "FROM ./weights.gguf\nADAPTER lora.gguf\nSYSTEM Be kind.\nPARAMETER temperature 1\n"
        "PARAMETER stop a\nPARAMETER stop b\nMESSAGE user Hi\nLICENSE MIT\nRENDERER r\nPARSER p\n"
        "TEMPLATE {{ .Prompt }}\nREQUIRES 0.14.0\n"
    )
    return tmp_path


def digest_of(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_create_sends_files_and_fields(api: PlayedApi, pronk: Pronk, folder: Path) -> None:
    weights, lora = folder / "weights.gguf", folder / "lora.gguf"
    lora.write_bytes(lora.read_bytes() + bytes(3_000_000))
    pronk("create", "mine", "-f", str(folder / "Modelfile"), "-q", "q4_K_M")
    assert api.blobs == {
        digest_of(weights): weights.stat().st_size,
        digest_of(lora): lora.stat().st_size,
    }
    assert api.bodies("/api/create") == [
        {
            "model": "mine",
            "stream": True,
            "quantize": "q4_K_M",
            "files": {"weights.gguf": digest_of(weights)},
            "adapters": {"lora.gguf": digest_of(lora)},
            "system": "Be kind.",
            "template": "{{ .Prompt }}",
            "parameters": {"temperature": 1.0, "stop": ["a", "b"]},
            "messages": [{"role": "user", "content": "Hi"}],
            "license": ["MIT"],
            "renderer": "r",
            "parser": "p",
            "requires": "0.14.0",
        }
    ]


def test_create_sends_nothing_twice(api: PlayedApi, pronk: Pronk, folder: Path) -> None:
    api.blobs[digest_of(folder / "weights.gguf")] = 1
    with (folder / "lora.gguf").open("ab") as lora:
        lora.write(bytes(100))
    said = pronk("create", "mine", "-f", str(folder / "Modelfile")).stderr
    assert "copying lora.gguf: 100%" in said
    assert "copying weights.gguf" not in said
    assert "hashing weights.gguf: 100%" in said
    assert said.splitlines()[-1] == "success"


def test_create_in_json_is_objects_alone(api: PlayedApi, pronk: Pronk, folder: Path) -> None:
    lines = pronk("create", "mine", "-f", str(folder / "Modelfile"), "--json").stdout.splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert json.loads(lines[-1]) == {"status": "success"}


def test_create_reads_modelfiles_of_its_folder_and_of_standard_input(
    api: PlayedApi, pronk: Pronk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    pronk("create", "a")
    pronk("create", "b", "-f", "-", stdin="FROM weights.gguf")
    pronk("create", "c", "-f", "-", stdin="FROM ~/weights.gguf")
    files = [body["files"] for body in api.bodies("/api/create")]
    assert files == [{"weights.gguf": digest_of(folder / "weights.gguf")}] * 3


def test_create_takes_a_name_for_a_name(
    api: PlayedApi, pronk: Pronk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama3.2").mkdir()
    (tmp_path / "mistral").write_text("notes about it")
    monkeypatch.chdir(tmp_path)
    for name in ("llama3.2", "mistral", "hf.co/org/repo:Q4_K_M"):
        pronk("create", "x", "-f", "-", stdin=f"FROM {name}")
        assert api.bodies("/api/create")[-1] == {"model": "x", "stream": True, "from": name}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("FROM ./missing.gguf", "line 1 of the Modelfile: ./missing.gguf: No such file"),
        ("FROM missing.gguf", "missing.gguf: No such file"),
        ("FROM .", ". is a directory; name a GGUF file in it"),
        ("FROM ./model.safetensors", "is no GGUF file; safetensors become one with"),
        ("FROM ./big-00001-of-00003.gguf", "one part of a model in several files"),
        ("FROM ./pipe", "./pipe is not a file"),
        ("FROM a\nFROM b", "line 2 of the Modelfile: FROM names a second model"),
        ("FROM a\nADAPTER nowhere", "line 2 of the Modelfile: there is no file nowhere"),
        ("FROM ~nobody-here/x", "there is no file ~nobody-here/x"),
        ("FROM a\nNONSENSE b", "line 2 of the Modelfile: 'NONSENSE' is no command"),
    ],
)
def test_what_a_modelfile_cannot_name_is_told_before_anything_is_sent(
    api: PlayedApi,
    pronk: Pronk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    told: str,
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}")
    tiny_gguf(tmp_path / "big-00001-of-00003.gguf")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert told in error(pronk("create", "x", "-f", "-", stdin=text, status=1))
    assert not api.asked


def test_a_modelfile_that_is_not_there(pronk: Pronk, tmp_path: Path) -> None:
    told = error(pronk("create", "x", "-f", str(tmp_path / "none"), status=1))
    assert told.endswith("none: No such file or directory; name a Modelfile with -f")


def test_a_server_that_takes_no_file_says_why(api: PlayedApi, pronk: Pronk, folder: Path) -> None:
    api.refuses_blobs = "the disk of the library is full"
    with (folder / "weights.gguf").open("ab") as file:
        file.truncate(50_000_000)
    result = pronk("create", "x", "-f", str(folder / "Modelfile"), status=1)
    assert result.stderr.splitlines()[-1] == "Error: the disk of the library is full"
