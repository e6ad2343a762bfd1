"""Settings: one class, read from the environment and a file, wrong values told in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import AliasChoices

from pronk.frontend.cli.documentation import describe
from pronk.protocol.errors import PronkError
from pronk.protocol.limits import CallerClass, ModelLimits
from pronk.protocol.messages.placement import CacheType, FlashAttention
from pronk.protocol.settings import Settings, load_settings
from pronk.protocol.settings.kinds import split_host
from pronk.protocol.sizes import parse_size


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PRONK_", "OLLAMA_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("0.0.0.0", ("0.0.0.0", 11434)),
        (":8080", ("127.0.0.1", 8080)),
        ("localhost", ("localhost", 11434)),
        ("[::1]:8080", ("::1", 8080)),
        ("[::]", ("::", 11434)),
        ("::1", ("::1", 11434)),
        ("http://10.0.0.1", ("10.0.0.1", 80)),
        ("http://10.0.0.1:99/", ("10.0.0.1", 99)),
        (' "1.2.3.4:5" ', ("1.2.3.4", 5)),
    ],
)
def test_host_is_read_as_ollama_reads_it(text: str, address: tuple[str, int]) -> None:
    assert split_host(text) == address


@pytest.mark.parametrize("text", ["127.0.0.1:99999", "1.2.3.4:port", "https://1.2.3.4", "ftp://a"])
def test_a_host_that_cannot_be_served_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        split_host(text)


def test_ollamas_variable_counts_when_ours_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "0.0.0.0:1111")
    assert load_settings().host == "0.0.0.0:1111"
    monkeypatch.setenv("PRONK_HOST", "127.0.0.1:2222")
    assert load_settings().host == "127.0.0.1:2222"


@pytest.mark.parametrize(
    ("variable", "name", "text", "value"),
    [
        ("OLLAMA_MODELS", "models", "/library", Path("/library")),
        ("OLLAMA_KEEP_ALIVE", "keep_alive", "1h30m", 5400.0),
        ("OLLAMA_KEEP_ALIVE", "keep_alive", "-1", -1.0),
        ("OLLAMA_CONTEXT_LENGTH", "context_length", "8192", 8192),
        ("OLLAMA_MAX_QUEUE", "max_queue", "7", 7),
        ("OLLAMA_LOAD_TIMEOUT", "load_timeout", "10m", 600.0),
        ("OLLAMA_ORIGINS", "origins", "https://a.example", "https://a.example"),
        ("OLLAMA_NUM_PARALLEL", "num_parallel", "4", 4),
        ("OLLAMA_GPU_OVERHEAD", "gpu_overhead", "536870912", 512 << 20),
        ("OLLAMA_SCHED_SPREAD", "sched_spread", "1", True),
        ("OLLAMA_SCHED_SPREAD", "sched_spread", "false", False),
        ("OLLAMA_KV_CACHE_TYPE", "kv_cache_type", "Q8_0", CacheType.Q8_0),
        ("OLLAMA_FLASH_ATTENTION", "flash_attention", "1", FlashAttention.ON),
        ("OLLAMA_FLASH_ATTENTION", "flash_attention", "true", FlashAttention.ON),
        ("OLLAMA_FLASH_ATTENTION", "flash_attention", "0", FlashAttention.OFF),
        ("OLLAMA_FLASH_ATTENTION", "flash_attention", "False", FlashAttention.OFF),
        ("OLLAMA_FLASH_ATTENTION", "flash_attention", "auto", FlashAttention.AUTO),
    ],
)
def test_a_switch_from_ollama_keeps_its_settings(
    monkeypatch: pytest.MonkeyPatch, variable: str, name: str, text: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(load_settings(), name) == value


def test_variables_of_other_programs_are_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_settings()
    for name in ("HOST", "MODELS", "MODEL", "CLASS", "host", "ORIGINS", "MAX_QUEUE"):
        monkeypatch.setenv(name, "9.9.9.9")
    assert load_settings() == before


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONK_WORKERS", "")
    assert load_settings().workers == Settings.model_fields["workers"].default


def test_the_environment_wins_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pronk.toml"
    file.write_text('host = "127.0.0.1:3333"\nworkers = 9\nkeep_alive = "2m"\n')
    monkeypatch.setenv("PRONK_CONFIG", str(file))
    monkeypatch.setenv("PRONK_WORKERS", "2")
    loaded = load_settings()
    assert (loaded.host, loaded.workers, loaded.keep_alive) == ("127.0.0.1:3333", 2, 120.0)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PRONK_HOST", "127.0.0.1:99999"),
        ("PRONK_WORKERS", "many"),
        ("PRONK_WORKERS", "0"),
        ("PRONK_KEEP_ALIVE", "soon"),
        ("PRONK_LOAD_TIMEOUT", "-1"),
        ("PRONK_MAX_GENERATION_BODY", "big"),
        ("PRONK_DEMO_MODEL", "maybe"),
        ("PRONK_NUM_PARALLEL", "241"),
        ("PRONK_NUM_BATCH", "0"),
        ("PRONK_KV_CACHE_TYPE", "q5_1"),
        ("PRONK_FLASH_ATTENTION", "maybe"),
        ("PRONK_CACHE_MEMORY", "-1"),
        ("PRONK_SLOT_MEMORY", "much"),
        ("PRONK_REQUEST_TIMEOUT", "-5"),
        ("PRONK_QUEUE_TIMEOUT", "-5"),
        ("PRONK_GPU_OVERHEAD", "-1"),
        ("PRONK_SCHED_SPREAD", "maybe"),
        ("PRONK_CONFIG", "/nowhere/pronk.toml"),
        ("PRONK_CONFIG", "~nobody-of-this-name/pronk.toml"),
        ("PRONK_MODELS", "~nobody-of-this-name/models"),
        ("OLLAMA_KEEP_ALIVE", "soon"),
    ],
)
def test_a_wrong_value_is_told_in_one_line_with_its_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(PronkError) as caught:
        load_settings()
    assert variable in caught.value.message or variable.startswith("OLLAMA_")
    assert text in caught.value.message
    assert "\n" not in caught.value.message


def test_a_quantized_cache_without_flash_attention_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PRONK_KV_CACHE_TYPE", "q4_0")
    assert load_settings().kv_cache_type is CacheType.Q4_0
    monkeypatch.setenv("OLLAMA_FLASH_ATTENTION", "0")
    with pytest.raises(
        PronkError, match=r"PRONK_KV_CACHE_TYPE=q4_0: needs flash attention"
    ) as caught:
        load_settings()
    assert "\n" not in caught.value.message


def test_a_switch_in_the_file_may_be_a_truth_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pronk.toml"
    file.write_text("flash_attention = false\nnum_parallel = 8\n")
    monkeypatch.setenv("PRONK_CONFIG", str(file))
    loaded = load_settings()
    assert (loaded.flash_attention, loaded.num_parallel) == (FlashAttention.OFF, 8)


@pytest.fixture
def in_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Path]:
    """Writes the file of the settings."""

    def write(content: str) -> Path:
        file = tmp_path / "pronk.toml"
        file.write_text(content)
        monkeypatch.setenv("PRONK_CONFIG", str(file))
        return file

    return write


EVERYTHING = """
host = "127.0.0.1:3333"
queue_timeout = "30s"
sched_spread = true
gpu_overhead = "1GiB"

[model.demo]
min_replicas = 1
max_replicas = 2
devices = ["sim0", "sim1"]
preload = true

[model."Registry.example/team/Big:Q4"]
max_replicas = 1

[class.people]
weight = 4
callers = ["alice", "anonymous@10.0.*"]

[class.night]
weight = 0.5
callers = ["batch-*"]
"""


def test_a_file_says_what_holds_for_models_and_for_callers(in_file: Callable[[str], Path]) -> None:
    in_file(EVERYTHING)
    loaded = load_settings()
    assert (loaded.queue_timeout, loaded.sched_spread, loaded.gpu_overhead) == (30.0, True, 1 << 30)
    demo = ModelLimits(min_replicas=1, max_replicas=2, devices=["sim0", "sim1"], preload=True)
    assert loaded.model_limits == {
        "demo:latest": demo,
        "registry.example/team/big:q4": ModelLimits(max_replicas=1),
    }
    assert loaded.caller_classes == {
        "people": CallerClass(weight=4, callers=["alice", "anonymous@10.0.*"]),
        "night": CallerClass(weight=0.5, callers=["batch-*"]),
    }


def test_a_models_limits_are_found_by_every_name_of_it(in_file: Callable[[str], Path]) -> None:
    in_file(EVERYTHING)
    loaded = load_settings()
    for name in ("demo", "demo:latest", "library/DEMO", "registry.ollama.ai/library/demo"):
        assert loaded.limits_of(name).min_replicas == 1
    assert loaded.limits_of("registry.example/team/big:q4").max_replicas == 1
    assert loaded.limits_of("another") == ModelLimits()


def test_variables_may_hold_tables_and_win_over_the_file(
    monkeypatch: pytest.MonkeyPatch, in_file: Callable[[str], Path]
) -> None:
    in_file(EVERYTHING)
    monkeypatch.setenv("PRONK_MODEL_LIMITS", '{"other": {"preload": true}}')
    loaded = load_settings()
    assert loaded.model_limits == {"other:latest": ModelLimits(preload=True)}
    monkeypatch.setenv("PRONK_MODEL_LIMITS", "{")
    with pytest.raises(PronkError, match=r"PRONK_MODEL_LIMITS is not valid JSON") as caught:
        load_settings()
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("workers = ", "", "not valid TOML"),
        ("wrokers = 3", "wrokers", "no such setting"),
        ('"wro\\nkers" = 3', "wro\\nkers", "no such setting"),
        ('workers = """\nmany\n"""', "workers = many\\n", "integer"),
        (f'workers = "{"m" * 10_000}"', "workers = mmm", "integer"),
        ("workers = [1]", "workers = [1]", "integer"),
        ("workers = 0", "workers = 0", "greater"),
        ('keep_alive = "soon"', "keep_alive = soon", ""),
        ("[models.demo]\npreload = true", "models = {", '[model."its name"]'),
        ("[model.demo]\nmin_replica = 1", "model.demo.min_replica", "no such setting"),
        ('[model.demo]\nmin_replicas = "1"', "model.demo.min_replicas = 1", "integer"),
        ("[model.demo]\nmin_replicas = -1", "model.demo.min_replicas = -1", "greater"),
        ("[model.demo]\nmax_replicas = 0", "model.demo.max_replicas = 0", "greater"),
        ('[model."a:b"]\npreload = "yes"', 'model."a:b".preload = yes', "boolean"),
        ('[model.demo]\ndevices = "gpu0"', "model.demo.devices = gpu0", "list"),
        ('[model.demo]\ndevices = [""]', "model.demo.devices.0", "at least 1"),
        ("[model.demo]\nmin_replicas = 3\nmax_replicas = 2", "model.demo", "more than max"),
        ('[model."../x"]', "model = ", "not a model name"),
        ('[model.demo]\n[model."demo:latest"]', "model = ", "demo:latest twice"),
        ("model = 3", "model = 3", "dictionary"),
        ("[class.people]\nweight = 3", "class.people.callers", "required"),
        ('[class.people]\ncallers = "alice"', "class.people.callers = alice", "list"),
        ("[class.people]\ncallers = []", "class.people.callers = []", "at least 1"),
        ('[class.a]\nweight = 0\ncallers = ["x"]', "class.a.weight = 0", "greater"),
        ('[class.a]\nweight = inf\ncallers = ["x"]', "class.a.weight = inf", "finite"),
        ('[class.a]\ncallers = ["x"]\n[class.b]\ncallers = ["x"]', "class = ", "class b"),
        ('[class.a]\ncallers = ["x"]\nwieght = 2', "class.a.wieght", "no such setting"),
    ],
)
def test_a_wrong_file_is_told_in_one_line_with_the_place(
    in_file: Callable[[str], Path], content: str, where: str, what: str
) -> None:
    file = in_file(content)
    with pytest.raises(PronkError) as caught:
        load_settings()
    message = caught.value.message
    assert str(file) in message
    assert where in message
    assert what in message
    assert "\n" not in message
    assert len(message) < 1000


def test_a_wrong_variable_is_not_blamed_on_the_file(
    monkeypatch: pytest.MonkeyPatch, in_file: Callable[[str], Path]
) -> None:
    file = in_file("workers = 3\nhost = '127.0.0.1:1'")
    monkeypatch.setenv("PRONK_WORKERS", "many")
    with pytest.raises(PronkError, match=r"^PRONK_WORKERS=many: ") as caught:
        load_settings()
    assert str(file) not in caught.value.message


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that nobody can read")
def test_a_file_that_cannot_be_read_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONK_CONFIG", "/proc/self/mem")  # not even root reads its beginning
    with pytest.raises(PronkError, match=r"^PRONK_CONFIG=/proc/self/mem: .*error"):
        load_settings()


def test_a_directory_is_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRONK_CONFIG", str(tmp_path))
    with pytest.raises(PronkError, match="there is no file"):
        load_settings()


@pytest.mark.parametrize("variable", ["PRONK_STATE", "PRONK_MODELS"])
def test_a_path_that_is_no_text_is_told_in_text(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/tmp/\udcff")
    with pytest.raises(PronkError, match="UTF-8") as caught:
        load_settings()
    assert variable in caught.value.message.encode().decode()


def test_a_file_that_is_no_text_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pronk.toml"
    file.write_bytes(b"\xff\xfe\0")
    monkeypatch.setenv("PRONK_CONFIG", str(file))
    with pytest.raises(PronkError, match="not valid TOML"):
        load_settings()


def test_a_user_without_a_home_can_name_the_directories() -> None:
    program = (
        "import os, pathlib\n"
        "os.environ.pop('HOME', None)\n"
        "def lost(): raise RuntimeError('no home')\n"
        "pathlib.Path.home = lost\n"
        "from pronk.protocol.settings import load_settings\n"
        "print(load_settings(state='/tmp/s', PRONK_MODELS='/tmp/m').state)\n"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "/tmp/s\n"


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("64MiB", 64 << 20), ("8 GB", 8 * 10**9), ("1.5k", 1536), (7, 7)],
)
def test_sizes_are_written_as_people_write_them(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1", "5 XB", "1e3", "9" * 400, "9" * 400 + "GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|is larger than any"):
        parse_size(text)


def test_every_setting_is_documented_with_its_variables_and_value() -> None:
    page = describe(load_settings(PRONK_HOST="127.0.0.1:4444"))
    assert "PRONK_HOST=127.0.0.1:4444 (default 127.0.0.1:11434)" in page
    assert "PRONK_MODEL_LIMITS={…} (none)" in page
    for table in (ModelLimits, CallerClass):
        for name, field in table.model_fields.items():
            assert f"\n    {name}" in page
            assert field.description
    for name, field in Settings.model_fields.items():
        assert f"PRONK_{name.upper()}=" in page
        assert field.description, f"{name} has no documentation"
        alias = field.validation_alias
        if isinstance(alias, AliasChoices):
            for choice in alias.choices:
                assert not str(choice).startswith("OLLAMA_") or str(choice) in page


@pytest.mark.parametrize("name", ["listen_tcp", "scheduler"])
@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("10.0.0.7:11500", "tcp://10.0.0.7:11500"),
        ("tcp://10.0.0.7:11500", "tcp://10.0.0.7:11500"),
        ("gpu-host.example.org:1", "tcp://gpu-host.example.org:1"),
        ("[::1]:11500", "tcp://[::1]:11500"),
        (" 0.0.0.0:11500 ", "tcp://0.0.0.0:11500"),
    ],
)
def test_a_tcp_address_is_written_with_or_without_its_scheme(
    name: str, text: str, endpoint: str
) -> None:
    assert getattr(load_settings(**{name: text}), name) == endpoint


@pytest.mark.parametrize("name", ["listen_tcp", "scheduler"])
@pytest.mark.parametrize(
    "text", ["host", "host:", ":11500", "host:0", "host:65536", "::1:11500", "ipc:///x:1", "a b:1"]
)
def test_what_is_no_tcp_address_is_refused(name: str, text: str) -> None:
    with pytest.raises(PronkError, match=f"^PRONK_{name.upper()}="):
        load_settings(**{name: text})


def test_there_have_to_be_ports_for_the_frontends() -> None:
    with pytest.raises(PronkError, match="no room for the frontends' ports"):
        load_settings(listen_tcp="0.0.0.0:65534", frontends=2)
    assert load_settings(listen_tcp="0.0.0.0:65533", frontends=2)


def test_a_host_cannot_both_have_a_scheduler_for_others_and_join_one() -> None:
    with pytest.raises(PronkError, match="has no PRONK_LISTEN_TCP"):
        load_settings(listen_tcp="0.0.0.0:11500", scheduler="other:11500")


def test_keys_lie_in_the_state_directory_unless_they_are_elsewhere(tmp_path: Path) -> None:
    assert load_settings(state=tmp_path).keys_directory == tmp_path / "keys"
    assert load_settings(state=tmp_path, keys=tmp_path / "k").keys_directory == tmp_path / "k"
