"""The commands about models, over real HTTP: what they ask, what they print, how they end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pronk.frontend.cli.app import app
from support.played_api import GIGABYTES, PULLED, PlayedApi, listed, played_api, said
from support.server import PATIENCE
from support.store import tiny_gguf
from support.terminal import CTRL_C, terminal

Pronk = Callable[..., Result]


@pytest.fixture
def api() -> Iterator[PlayedApi]:
    with played_api() as api:
        api.models["m"] = {"capabilities": ["completion"]}
        yield api


@pytest.fixture
def pronk(api: PlayedApi, monkeypatch: pytest.MonkeyPatch) -> Pronk:
    """Runs a command against the played API."""
    monkeypatch.setenv("PRONK_HOST", api.url)

    def run(*arguments: str, stdin: str | bytes = "", status: int = 0) -> Result:
        result = CliRunner().invoke(app, arguments, input=stdin)
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result

    return run


def command(*arguments: str, **options) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pronk.frontend.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        **{"stdout": subprocess.PIPE} | options,
    )


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a program that answers everything with the same bytes."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def error(result: Result) -> str:
    """The one line on standard error."""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert result.stdout == ""
    return line.removeprefix("Error: ")


# list, ps, show


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


# cp, rm, stop


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


# pull, push


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


# create


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


# run


def test_run_answers_a_prompt(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("The sky ", "is\x1b[31m blue.")
    options = ["--system", "Be kind.", "--keepalive", "1h", "--format", "json", "--think=high"]
    result = pronk("run", "m", "Why is", "the sky blue?", *options)
    assert result.stdout == "The sky is\x1b[31m blue.\n", "a pipe gets what the model said"
    (asked,) = api.bodies("/api/generate")
    assert {name: value for name, value in asked.items() if value not in ("", False)} == {
        "model": "m",
        "prompt": "Why is the sky blue?",
        "system": "Be kind.",
        "stream": True,
        "format": "json",
        "keep_alive": "1h",
        "think": "high",
    }


def test_run_joins_standard_input_and_prompt(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("ok")
    pronk("run", "m", "Sum it up", stdin=b"A text\xff\n")
    pronk("run", "m", stdin="Only this")
    assert [body["prompt"] for body in api.bodies("/api/generate")] == [
        "A text\ufffd\n Sum it up",
        "Only this",
    ]


def test_run_with_nothing_to_ask_loads_the_model(api: PlayedApi, pronk: Pronk) -> None:
    assert pronk("run", "m", "--keepalive", "-1").stdout == ""
    assert api.bodies("/api/generate") == [{"model": "m", "stream": False, "keep_alive": "-1"}]


def test_run_pulls_what_is_not_there(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("hi")
    result = pronk("run", "new", "hello")
    assert result.stdout == "hi\n"
    assert result.stderr.splitlines()[-1] == "success"
    assert api.bodies("/api/pull")[0]["model"] == "new"


def test_run_prints_the_vector_of_an_embedding_model(api: PlayedApi, pronk: Pronk) -> None:
    api.models["e"] = {"capabilities": ["embedding"]}
    result = pronk("run", "e", "a text", "--dimensions", "2")
    assert json.loads(result.stdout) == [0.25, -0.5]
    assert api.bodies("/api/embed")[0]["input"] == "a text"
    assert api.bodies("/api/embed")[0]["dimensions"] == 2
    assert "needs a text" in error(pronk("run", "e", status=1))


def test_run_shows_what_a_model_thinks(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = [{"model": "m", "response": "", "thinking": "Hm", "done": False}, *said("Yes.")]
    whole = pronk("run", "m", "Well?", "--think").stdout
    assert whole == "Thinking...\nHm\n...done thinking.\n\nYes.\n"
    assert pronk("run", "m", "Well?", "--think", "--hidethinking").stdout == "Yes.\n"
    pronk("run", "m", "Well?", "--think=false")
    pronk("run", "m", "--no-think", "--", "Well?", "--think=high")
    asked = api.bodies("/api/generate")
    assert [body.get("think") for body in asked] == [True, True, False, False]
    assert asked[-1]["prompt"] == "Well? --think=high"


def test_verbose_says_how_long_it_took(api: PlayedApi, pronk: Pronk) -> None:
    measured = {"total_duration": 2_500_000_000, "load_duration": 1_500_000, "prompt_eval_count": 9}
    measured |= {"prompt_eval_duration": 9_000_000, "eval_count": 50, "eval_duration": 10**9}
    api.answer = said("ok", **measured)
    assert pronk("run", "m", "hi", "--verbose").stderr.splitlines() == [
        "total duration:       2.5s",
        "load duration:        1.5ms",
        "prompt eval count:    9 token(s)",
        "prompt eval duration: 9ms",
        "prompt eval rate:     1000.00 tokens/s",
        "eval count:           50 token(s)",
        "eval duration:        1s",
        "eval rate:            50.00 tokens/s",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--keepalive", "soon"), "--keepalive soon: is not a duration"),
        (("--format", "xml"), "a format is `json`, or a JSON schema"),
        (("--think=much",), "--think is true, false, high"),
    ],
)
def test_options_that_mean_nothing_are_told(
    pronk: Pronk, arguments: tuple[str, ...], told: str
) -> None:
    assert told in error(pronk("run", "m", "hi", *arguments, status=1))


def test_an_answer_that_is_cut_off_is_an_error(api: PlayedApi, pronk: Pronk) -> None:
    api.answer = said("The sky")[:1]
    result = pronk("run", "m", "hi", status=1)
    assert result.stdout == "The sky\n"
    assert "cut off" in result.stderr


# How commands end


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
