from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.protocol.names import ModelName, name_of_parts, parse_name


@pytest.mark.parametrize(
    ("text", "parts", "display"),
    [
        ("llama3", ("registry.ollama.ai", "library", "llama3", "latest"), "llama3:latest"),
        ("llama3:8b", ("registry.ollama.ai", "library", "llama3", "8b"), "llama3:8b"),
        ("library/llama3", ("registry.ollama.ai", "library", "llama3", "latest"), "llama3:latest"),
        ("eva/phi:v1", ("registry.ollama.ai", "eva", "phi", "v1"), "eva/phi:v1"),
        (
            "registry.ollama.ai/library/phi:v1",
            ("registry.ollama.ai", "library", "phi", "v1"),
            "phi:v1",
        ),
        (
            "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
            ("hf.co", "bartowski", "Llama-3.2-1B-Instruct-GGUF", "Q4_K_M"),
            "hf.co/bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        ),
        (
            "localhost:5000/library/phi",
            ("localhost:5000", "library", "phi", "latest"),
            "localhost:5000/library/phi:latest",
        ),
        ("https://example.com/a/b:c", ("example.com", "a", "b", "c"), "example.com/a/b:c"),
        (
            "http://localhost:80/a/b",
            ("localhost:80", "a", "b", "latest"),
            "localhost:80/a/b:latest",
        ),
        (
            "_x..y-z:.5"[:7],
            ("registry.ollama.ai", "library", "_x..y-z", "latest"),
            "_x..y-z:latest",
        ),
    ],
)
def test_a_name_is_completed_and_shown_as_ollama_does(
    text: str, parts: tuple[str, ...], display: str
) -> None:
    name = parse_name(text)
    assert name.parts == parts
    assert name.display == display
    assert parse_name(display) == name


def test_case_is_kept_but_does_not_count() -> None:
    assert parse_name("Demo").display == "Demo:latest"
    assert parse_name("DEMO:Latest").key == parse_name("demo").key
    assert parse_name("Library/Demo").display == "Demo:latest"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "../demo",
        "../../etc/passwd",
        "library/../../x",
        "a/../b",
        "a/b/..",
        "a/b/c:..",
        "/etc/passwd",
        "a/https://b",
        "ahttp://b",
        "//demo",
        "demo/",
        "demo:",
        ":latest",
        "/demo",
        "a//b",
        "a/b/c/d",
        "demo\0",
        "demo\n",
        "demo\\x",
        "C:\\models\\demo",
        "de mo",
        "demo:a:b",
        "-demo",
        "demo:-x",
        "a.b/demo",
        "démo",
        "\u212aelvin",
        "demo@sha256-abc",
        "~/demo",
        "file:///etc/passwd",
        "https://demo",
        "https://",
        "x" * 81,
        "demo:" + "x" * 81,
        "n" * 81 + "/demo",
        "h" * 351 + "/n/demo",
        "x" * 10_000,
        "a/" * 5_000,
    ],
)
def test_what_is_no_name_is_refused_with_a_short_reason(text: str) -> None:
    with pytest.raises(PronkError) as caught:
        parse_name(text)
    assert caught.value.code is Code.INVALID_REQUEST
    assert "is not a model name: " in caught.value.message
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()


@settings(deadline=None)
@given(st.text(max_size=700) | st.from_regex(r"[a-zA-Z0-9./:_\\-]{0,60}", fullmatch=True))
def test_no_text_leads_out_of_the_library(text: str) -> None:
    try:
        name = parse_name(text)
    except PronkError as error:
        assert error.code is Code.INVALID_REQUEST  # noqa: PT017
        return
    assert all(part and "/" not in part and "\0" not in part for part in name.parts)
    root = Path("/library/manifests")
    assert root.joinpath(*name.parts).resolve().relative_to(root).parts == name.parts
    assert name_of_parts(name.parts) == name
    assert parse_name(name.display).key == name.key


def test_a_path_that_is_no_names_is_none() -> None:
    assert name_of_parts(("registry.ollama.ai", "library", "demo", ".hidden")) is None
    assert name_of_parts(("registry.ollama.ai", "library", "..", "latest")) is None
    known = ("registry.ollama.ai", "library", "demo", "latest")
    assert name_of_parts(known) == ModelName(*known)
