"""What the commands about models write: sizes, ages, tables, and words at the end of a line."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.frontend.cli import wording
from pronk.frontend.cli.address import is_local, server_url, url_of
from pronk.frontend.cli.conversation.wrapping import Wrapping, cells_of
from pronk.frontend.cli.listing import processor
from pronk.frontend.cli.progress import Lines, Objects, follow
from pronk.frontend.cli.showing import sections
from pronk.frontend.cli.terminal import printable
from pronk.protocol.errors import PronkError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:80", "http://127.0.0.1:80"),
        ("[::]:5", "http://[::1]:5"),
        ("::1", "http://[::1]:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("gpu-host", "http://gpu-host:11434"),
        ('"gpu-host:1"', "http://gpu-host:1"),
        ("http://gpu-host", "http://gpu-host:80"),
        ("https://gpu-host/", "https://gpu-host:443"),
        ("https://gpu-host:1/pronk/", "https://gpu-host:1/pronk"),
    ],
)
def test_a_server_is_found_by_every_form_of_its_address(given: str, url: str) -> None:
    assert url_of(given) == url


@pytest.mark.parametrize(
    "given", ["ftp://x", "host:port", "host:70000", "[::1", "user@host", "x?y", "größe", "-"]
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(PronkError, match=r"^--host="):
        server_url(given)


def test_the_option_wins_over_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRONK_HOST", "OLLAMA_HOST", "PRONK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert server_url() == "http://127.0.0.1:11434"
    monkeypatch.setenv("OLLAMA_HOST", "theirs:1")
    assert server_url() == "http://theirs:1"
    monkeypatch.setenv("PRONK_HOST", "ours:2")
    assert server_url() == "http://ours:2"
    assert server_url("given:3") == "http://given:3"


def test_the_file_of_settings_counts_where_no_variable_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    for name in ("PRONK_HOST", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "pronk.toml"
    config.write_text('host = "0.0.0.0:4242"\n')
    monkeypatch.setenv("PRONK_CONFIG", str(config))
    assert server_url() == "http://127.0.0.1:4242"


def test_no_proxy_stands_before_loopback() -> None:
    assert is_local("http://127.0.0.1:1")
    assert is_local("http://[::1]:1")
    assert is_local("http://localhost:1")
    assert not is_local("http://gpu-host:1")
    assert not is_local("http://10.0.0.1:1")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1500, "1.5 KB"),
        (92_345, "92 KB"),
        (999_999, "999 KB"),
        (4_700_000_000, "4.7 GB"),
        (4_990_000_000, "4.9 GB"),
        (19_851_349_856, "19 GB"),
        (1_200_000_000_000, "1.2 TB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (3_481_088, "3.48M"), (8_030_261_312, "8.0B"), (7_000_000_000, "7B")],
)
def test_numbers(count: int, text: str) -> None:
    assert wording.number(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "Less than a second ago"),
        (1, "1 second ago"),
        (45, "45 seconds ago"),
        (100, "About a minute ago"),
        (240, "4 minutes ago"),
        (3500, "58 minutes ago"),
        (4000, "About an hour ago"),
        (47 * 3600, "47 hours ago"),
        (3 * 86400, "3 days ago"),
        (20 * 86400, "2 weeks ago"),
        (100 * 86400, "3 months ago"),
        (800 * 86400, "2 years ago"),
        (-299, "4 minutes from now"),
        (-300 * 365 * 86400, "Forever"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert wording.age(NOW - timedelta(seconds=seconds), NOW) == text


def test_a_moment_that_is_missing_or_has_no_zone() -> None:
    assert wording.age(None) == "Never"
    assert wording.age(NOW.replace(tzinfo=None), NOW) == "Less than a second ago"


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (17, "17ns"),
        (1_500, "1.5µs"),
        (12_345_678, "12.345678ms"),
        (2_500_000_000, "2.5s"),
        (60_000_000_000, "1m0s"),
        (62_500_000_000, "1m2.5s"),
        (3_603_000_000_000, "1h0m3s"),
        (-1_000_000, "-1ms"),
    ],
)
def test_durations(nanoseconds: int, text: str) -> None:
    assert wording.duration(nanoseconds) == text


@given(st.integers(-(2**63), 2**63))
def test_no_number_is_too_odd_to_be_written(count: int) -> None:
    for write in (wording.size, wording.number, wording.duration):
        assert write(count).strip()
    assert wording.span(abs(count))


def test_a_table_has_columns_and_no_blanks_at_its_ends() -> None:
    lines = wording.table(("NAME", "SIZE"), [("llama3.2:3b", "2 GB"), ("x", "")]).splitlines()
    assert lines == ["NAME           SIZE", "llama3.2:3b    2 GB", "x"]


@pytest.mark.parametrize(
    ("size", "on_gpu", "text"),
    [
        (10, 0, "100% CPU"),
        (10, 10, "100% GPU"),
        (100, 52, "48%/52% CPU/GPU"),
        (0, 0, "100% CPU"),
        (0, 5, "Unknown"),
        (5, 10, "Unknown"),
    ],
)
def test_where_a_model_lies(size: int, on_gpu: int, text: str) -> None:
    assert processor(size, on_gpu) == text


def test_text_of_others_commands_no_terminal() -> None:
    hostile = "a\x1b[2J\x1b]0;title\x07b\x9bc\rd\x08e\x7f\u202ef\tg\nh"
    assert printable(hostile) == "a[2J]0;titlebcdef\tg\nh"


def shown_by_a_terminal(written: str, columns: int) -> list[str]:
    """What stands on the lines of a terminal that knows the commands that wrapping uses."""
    lines: list[list[str]] = [[]]
    column = 0
    for piece in re.findall(r"\x1b\[\d*[DK]|.|\n", written):
        if piece == "\n":
            lines.append([])
            column = 0
        elif piece.endswith("D") and piece.startswith("\x1b"):
            column -= int(piece[2:-1])
            assert column >= 0
        elif piece == "\x1b[K":
            del lines[-1][column:]
        else:
            lines[-1][column:] = [piece, *[""] * (cells_of(piece, column) - 1)]
            column = len(lines[-1])
            assert column <= columns, "the terminal would have broken the line itself"
    return ["".join(line) for line in lines]


def test_words_stay_whole() -> None:
    wrapping = Wrapping(lambda: 20)
    text = "Sunlight contains all colours, and a verylongwordthatfitsnowhereatall.\n\nEnd"
    written = "".join(wrapping.wrap(text[i : i + 3]) for i in range(0, len(text), 3))
    assert [line.rstrip() for line in shown_by_a_terminal(written, 19)] == [
        "Sunlight contains",
        "all colours, and a",
        "verylongwordthatfit",
        "snowhereatall.",
        "",
        "End",
    ]


def test_letters_are_written_as_soon_as_they_come() -> None:
    wrapping = Wrapping(lambda: 80)
    assert [wrapping.wrap(piece) for piece in ("W", "h", "y")] == ["W", "h", "y"]


def test_a_window_may_become_smaller() -> None:
    width = 40
    wrapping = Wrapping(lambda: width)
    first = wrapping.wrap("one two three ")
    width = 10
    assert (first + wrapping.wrap("four five six")).count("\n") == 2


@given(st.text("ab \n\t漢é", max_size=200), st.integers(4, 30), st.integers(1, 7))
def test_wrapping_loses_no_letter(text: str, columns: int, step: int) -> None:
    wrapping = Wrapping(lambda: columns)
    written = "".join(wrapping.wrap(text[i : i + step]) for i in range(0, len(text), step))
    lines = shown_by_a_terminal(written, columns - 1)
    assert re.sub(r"\s", "", "".join(lines)) == re.sub(r"\s", "", text)


def test_progress_in_plain_lines_is_short() -> None:
    lines: list[str] = []
    parts = [{"status": "pulling manifest"}, {"status": "pulling manifest"}]
    parts += [
        {"status": "pulling abc", "digest": "sha256:abc", "total": 4000, "completed": done}
        for done in range(0, 4001, 8)
    ]
    parts += [{"status": "success"}]
    assert follow(parts, Lines(lines.append)) is True
    assert lines[:2] == ["pulling manifest", "pulling abc:   0% 0 B/4 KB"]
    assert lines[-1] == "success"
    assert len(lines) == 13, "every tenth"


def test_progress_of_the_commands_own_work_is_an_object_for_each_percent(
    capsys: pytest.CaptureFixture,
) -> None:
    shown = Objects()
    for done in range(1, 1001):
        shown.part("key", "hashing x", 1000, done)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 101
    assert lines[-1] == {"status": "hashing x", "total": 1000, "completed": 1000}


def test_progress_that_is_odd_is_shown_as_well_as_it_can_be() -> None:
    lines: list[str] = []
    parts = [
        {"status": None},
        {"status": "x\x1b[2J", "total": -1, "completed": 5},
        {"status": "over", "total": 10, "completed": 20},
        {"status": "text", "total": "many", "completed": []},
        {},
    ]
    assert follow(parts, Lines(lines.append)) is False
    assert lines == ["x[2J", "over: 100% 10 B", "text"]


def test_what_is_shown_of_a_model_stands_in_sections() -> None:
    text = sections(
        {
            "details": {"family": "llama", "quantization_level": "Q4_K_M", "parameter_size": "8B"},
            "model_info": {
                "general.architecture": "llama",
                "general.parameter_count": 8_030_261_312,
                "llama.context_length": 131072,
                "llama.embedding_length": 4096,
                "tokenizer.chat_template": "{{ a }}\n" + "x" * 300,
                "tokenizer.ggml.tokens": ["a", "b", "c", "d", "e"],
            },
            "projector_info": {"general.architecture": "clip", "clip.vision.projection_dim": 768},
            "capabilities": ["completion", "tools"],
            "parameters": 'stop                           "<|eot|>"\ntemperature 0.7\n',
            "system": "One.\n\nTwo.\nThree.",
            "license": "MIT",
            "requires": "0.14.0",
            "tensors": [{"name": "output.weight", "type": "F16", "shape": [4096, 128]}],
        },
        verbose=True,
    )
    assert (
        text
        == """\
  Model
    architecture        llama
    parameters          8.0B
    context length      131072
    embedding length    4096
    quantization        Q4_K_M
    requires            0.14.0

  Projector
    architecture    clip
    dimensions      768

  Capabilities
    completion
    tools

  Parameters
    stop           "<|eot|>"
    temperature    0.7

  Metadata
    general.architecture       llama
    general.parameter_count    8030261312
    llama.context_length       131072
    llama.embedding_length     4096
    tokenizer.chat_template    {{ a }} """
        + "x" * 192
        + """...
    tokenizer.ggml.tokens      [a, b, c, ...+2 more]

  Tensors
    output.weight    F16    [4096, 128]

  System
    One.
    Two.
    ...

  License
    MIT

"""
    )


ODD = (
    None,
    7,
    -1,
    "",
    "text\x1b",
    [],
    [None],
    ["a", ["b"]],
    {},
    {"": {"x": []}},
    [{"name": 5}],
    True,
)
FIELDS = (
    *("details", "model_info", "projector_info", "capabilities", "parameters"),
    *("tensors", "system", "license", "requires"),
)


@given(st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(ODD)))
def test_whatever_a_server_tells_of_a_model_can_be_shown(shown: dict) -> None:
    assert isinstance(sections(shown, verbose=True), str)
