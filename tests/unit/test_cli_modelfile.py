"""Modelfiles: what is read of them, and how mistakes are told."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.frontend.cli.modelfile import MAX_BYTES, Modelfile, parse
from pronk.protocol.errors import PronkError


def parsed(text: str) -> Modelfile:
    return parse(text.encode())


def problem(text: str | bytes) -> str:
    with pytest.raises(PronkError) as caught:
        parse(text if isinstance(text, bytes) else text.encode())
    assert "\n" not in caught.value.message
    return caught.value.message


def test_every_command_is_read() -> None:
    found = parsed(
        """
# A comment, and a blank line.

FROM ./weights.gguf
from second.gguf
ADAPTER ./lora.gguf
Template {{ .Prompt }}
SYSTEM You are a llama.
  PARAMETER temperature 0.7
MESSAGE user Hello
message ASSISTANT Hi there
LICENSE one
LICENSE two
RENDERER qwen3
PARSER qwen3-thinking
REQUIRES 0.14.0
"""
    )
    assert [(each.text, each.line) for each in found.origins] == [
        ("./weights.gguf", 4),
        ("second.gguf", 5),
    ]
    assert [each.text for each in found.adapters] == ["./lora.gguf"]
    assert found.template == "{{ .Prompt }}"
    assert found.system == "You are a llama."
    assert found.parameters == {"temperature": 0.7}
    assert found.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi there"},
    ]
    assert found.licenses == ["one", "two"]
    assert (found.renderer, found.parser, found.requires) == ("qwen3", "qwen3-thinking", "0.14.0")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("plain text  ", "plain text"),
        ('"in quotes"', "in quotes"),
        ('"with a blank at the end "', "with a blank at the end "),
        ('"two\nlines"', "two\nlines"),
        ('"a" and "b"', 'a" and "b'),
        ('""', ""),
        ('"""triple"""', "triple"),
        ('"""\nThree\n\n  lines  \n"""', "\nThree\n\n  lines  \n"),
        ('"""has "quotes" and\n# no comment\nFROM nothing"""', None),
        ('""" """', " "),
        ('""""""', ""),
        ('"""a\r\nb"""', "a\r\nb"),
        ("it's # no comment", "it's # no comment"),
        ('say "hi"', 'say "hi"'),
        ("back\\slash\\", "back\\slash\\"),
        ("größer 🦙", "größer 🦙"),
    ],
)
def test_texts_and_their_quotes(written: str, meant: str | None) -> None:
    if meant is None:
        meant = written.removeprefix('"""').removesuffix('"""')
    found = parsed(f"FROM x\nSYSTEM {written}\nPARAMETER seed 1\n")
    assert found.system == meant
    assert found.parameters == {"seed": 1}, "what follows is read, too"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str) -> None:
    found = parsed(end.join(["FROM x", "", "SYSTEM y", "PARAMETER top_k 3"]))
    assert (found.origins[0].text, found.system, found.parameters) == ("x", "y", {"top_k": 3})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_editors_that_mark_their_encoding_are_read(encoding: str) -> None:
    assert parse("FROM x\nSYSTEM ä".encode(encoding)).system == "ä"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("num_ctx 8192", 8192),
        ("num_ctx 8192.0", 8192),
        ("NUM_CTX 1", 1),
        ("seed -1", -1),
        ("seed 9223372036854775807", 2**63 - 1),
        ("temperature 1", 1.0),
        ("temperature 1e-1", 0.1),
        ('temperature "0.5"', 0.5),
        ("use_mmap false", False),
        ("use_mmap True", True),
        ("penalize_newline 1", True),
        ("stop <|end|>", ["<|end|>"]),
        ('stop "two words "', ["two words "]),
    ],
)
def test_parameters_have_their_types(written: str, meant: object) -> None:
    (found,) = parsed(f"FROM x\nPARAMETER {written}").parameters.values()
    assert found == meant
    assert type(found) is type(meant)


def test_stop_repeats_and_for_others_the_last_counts() -> None:
    found = parsed(
        "FROM x\nPARAMETER stop a\nPARAMETER stop b\nPARAMETER top_k 1\nPARAMETER top_k 2"
    )
    assert found.parameters == {"stop": ["a", "b"], "top_k": 2}


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("FROM x\nFORM y", 2, "'FORM' is no command; there are FROM, ADAPTER"),
        ("FROM", 1, "FROM has no value"),
        ('FROM ""', 1, "FROM has no value"),
        ("FROM x\n\nSYSTEM", 3, "SYSTEM has no value"),
        ("FROM x\nPARAMETER temperature", 2, "PARAMETER has no value"),
        ("FROM x\nPARAMETER temperature hot", 2, "temperature must be a number, and not 'hot'"),
        ("FROM x\nPARAMETER temperature nan", 2, "must be a number"),
        ("FROM x\nPARAMETER num_ctx 1.5", 2, "num_ctx must be an integer, and not '1.5'"),
        ("FROM x\nPARAMETER num_ctx 1_000", 2, "must be an integer"),
        ("FROM x\nPARAMETER seed 1e300", 2, "is too large"),
        ("FROM x\nPARAMETER use_mmap maybe", 2, "must be true or false"),
        ("FROM x\nPARAMETER temprature 1", 2, "is no parameter; is temperature meant?"),
        ("FROM x\nPARAMETER qqqqqq 1", 2, "PARAMETER qqqqqq is no parameter"),
        ("FROM x\nMESSAGE robot hi", 2, "'robot' is no role; there are system, user, assistant"),
        ("FROM x\nMESSAGE user", 2, "MESSAGE has no value"),
        ('FROM x\nSYSTEM """never\nclosed\n', 2, 'begins with """'),
        ('FROM x\nSYSTEM "never', 2, 'has no " at its end'),
        ("FROM x\nSYSTEM a\0b", 2, "has a NUL"),
        ("FROM x\n{{ if }}", 2, "'{{' is no command"),
    ],
)
def test_a_mistake_is_told_with_its_line(text: str, line: int, told: str) -> None:
    message = problem(text)
    assert message.startswith(f"line {line} of the Modelfile: ")
    assert told in message


def test_a_file_that_is_no_modelfile_is_told() -> None:
    assert "no FROM" in problem("# nothing\nSYSTEM x")
    assert "no FROM" in problem("")
    assert "line 2 of the Modelfile: is not valid UTF-8" in problem(b"FROM x\nSYSTEM \xff\xfe")
    assert "longer than 4 MiB" in problem(b"#" * (MAX_BYTES + 1))
    assert "line 1" in problem(b"GGUF\x03\0\0\0")


def test_the_largest_file_is_read_in_time() -> None:
    text = "FROM x\n" + "\n" * 500_000 + 'LICENSE """' + '"\n' * 1_000_000 + '"""'
    assert len(parsed(text).licenses[0]) == 2_000_000


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(PronkError):
        parse(b"FROM x\n" + data)


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters='\0"'), max_size=60))
def test_any_text_can_be_a_system_message(text: str) -> None:
    found = parsed(f'FROM x\nSYSTEM """{text}"""\nPARAMETER seed 1')
    assert found.system == text
    assert found.parameters == {"seed": 1}
