"""The command line: what it prints, and the one line and status when it cannot do its work."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pronk.frontend.cli import console
from pronk.frontend.cli.app import app
from pronk.frontend.cli.checks import check, check_address, free_port
from pronk.frontend.cli.listener import Listener, last_line
from pronk.frontend.cli.supervisord import Clock, Options
from pronk.protocol.errors import PronkError
from pronk.protocol.settings import load_settings
from pronk.protocol.state import StateDirectory
from support.cli import completed


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path, because that of a socket is limited and pytest's are long."""
    with tempfile.TemporaryDirectory(prefix="pronk-", dir="/tmp") as directory:
        yield Path(directory)


def pronk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PRONK_", "OLLAMA_"))}
    return completed(*arguments, env=inherited | environment)


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_the_version_is_pronks_own() -> None:
    for option in ("--version", "-v"):
        assert pronk(option).stdout == f"pronk {version('pronk')}\n"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in this process, for what each command does for itself."""

    def run(*arguments: str, **environment: str) -> Result:
        for name in [n for n in os.environ if n.startswith(("PRONK_", "OLLAMA_"))]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return CliRunner().invoke(app, arguments)

    return run


@pytest.mark.parametrize(
    "command",
    ["serve", "demo", "settings", "status", "drain", "supervisor-config", "run"],
)
def test_every_command_explains_itself(command: str, here: Callable[..., Result]) -> None:
    assert f" {command} " in here("--help").stdout
    done = here(command, "--help")
    assert done.exit_code == 0
    assert "Usage:" in done.stdout


def test_help_has_every_form_that_people_try(here: Callable[..., Result]) -> None:
    whole, of_drain = here("--help"), here("drain", "--help")
    assert "supervisor-config" in whole.stdout
    assert "--undo" in of_drain.stdout
    assert here("-h").stdout == here("help").stdout == whole.stdout
    assert here("drain", "-h").stdout == here("help", "drain").stdout == of_drain.stdout
    assert "FILE|MODEL" in here("help", "template", "check").stdout
    assert "PRONK_HOST" in here("start", "-h").stdout
    assert here("help", "fly").exit_code == 2


def test_the_list_of_commands_is_printed() -> None:
    done = pronk("--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    assert done.stderr == ""


def test_settings_are_printed_with_their_values() -> None:
    done = pronk("settings", PRONK_WORKERS="7")
    assert done.returncode == 0
    assert "PRONK_WORKERS=7 (default " in done.stdout


def test_supervisor_config_prints_a_file_and_nothing_else(place: Path) -> None:
    done = pronk("supervisor-config", PRONK_STATE=str(place / "s"), PRONK_WORKERS="2")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith(";")
    assert "numprocs=2" in done.stdout
    assert "[supervisord]" not in done.stdout


@pytest.mark.parametrize("command", ["settings", "status", "supervisor-config"])
def test_a_bad_setting_is_one_line_and_status_1(command: str, here: Callable[..., Result]) -> None:
    done = here(command, PRONK_WORKERS="many")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert only_line(done.stderr).startswith("pronk: PRONK_WORKERS=many: ")


def test_a_server_with_a_bad_setting_is_one_line_and_status_1() -> None:
    done = pronk("serve", PRONK_WORKERS="many")
    assert done.returncode == 1
    assert done.stdout == ""
    assert only_line(done.stderr).startswith("pronk: PRONK_WORKERS=many: ")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["everything"], "everything"),
        (["worker"], "which worker"),
        (["device"], "which device"),
        (["worker", "worker-00", "--undo"], "--undo"),
        (["worker", "worker-00", "--timeout", "soon"], "soon"),
        (["worker", "worker-00", "--timeout", "-1"], "less than nothing"),
    ],
)
def test_what_cannot_be_drained_is_said_before_anybody_is_asked(
    arguments: list[str], word: str, here: Callable[..., Result]
) -> None:
    done = here("drain", *arguments)
    assert done.exit_code == 2
    assert word in done.stderr


@pytest.fixture
def occupied() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_an_occupied_port_is_one_line_and_status_1(place: Path, occupied: int) -> None:
    done = pronk(
        "serve",
        PRONK_HOST=f"127.0.0.1:{occupied}",
        PRONK_STATE=str(place / "s"),
        PRONK_MODELS=str(place / "m"),
    )
    assert done.returncode == 1
    assert f"PRONK_HOST=127.0.0.1:{occupied}" in only_line(done.stderr)


@pytest.mark.parametrize("variable", ["PRONK_STATE", "PRONK_MODELS"])
def test_a_directory_that_cannot_be_is_one_line_and_status_1(place: Path, variable: str) -> None:
    (place / "file").write_text("")
    environment = {
        "PRONK_HOST": "127.0.0.1:0",
        "PRONK_STATE": str(place / "s"),
        "PRONK_MODELS": str(place / "m"),
        variable: str(place / "file" / "below"),
    }
    done = pronk("serve", **environment)
    assert done.returncode == 1
    assert variable in only_line(done.stderr)


@pytest.mark.parametrize("host", ["192.0.2.1:0", "127.0.0.1:99999"])
def test_an_address_that_is_not_ours_is_one_line_and_status_1(place: Path, host: str) -> None:
    directories = {"PRONK_STATE": str(place / "s"), "PRONK_MODELS": str(place / "m")}
    done = pronk("serve", "--host", host, **directories)
    assert done.returncode == 1
    assert f"PRONK_HOST={host}" in only_line(done.stderr)


def test_a_path_too_long_for_a_socket_is_one_line_and_status_1(place: Path) -> None:
    done = pronk("serve", PRONK_STATE=str(place / ("s" * 100)), PRONK_HOST="127.0.0.1:0")
    assert done.returncode == 1
    assert "too long" in only_line(done.stderr)


def test_an_existing_library_is_left_as_it_is(place: Path) -> None:
    models = place / "models"
    models.mkdir()
    before = models.stat().st_mtime_ns
    settings = load_settings(PRONK_HOST="127.0.0.1:0", PRONK_MODELS=models, state=place / "s")
    os.close(check(settings))
    assert models.stat().st_mtime_ns == before
    assert list(models.iterdir()) == []


def test_a_free_port_is_kept_for_whoever_knows_its_number() -> None:
    with free_port("127.0.0.1") as kept:
        place = kept.getsockname()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(place)
        check_address(*place)
        with socket.create_server(place), pytest.raises(PronkError, match="listens there"):
            check_address(*place)


def test_a_state_directory_in_use_is_refused(place: Path) -> None:
    state = StateDirectory(place / "s")
    state.prepare()
    settings = load_settings(PRONK_MODELS=place, state=state.root, PRONK_HOST="127.0.0.1:0")
    scheduler = state.lock("scheduler")
    with pytest.raises(PronkError, match="another server"):
        check(settings)
    os.close(scheduler)
    server = check(settings)  # whose scheduler has not come yet, or has died
    with pytest.raises(PronkError, match="another server"):
        check(settings)
    os.close(server)
    os.close(check(settings))


class TestListener:
    """What the console hears of supervisord's events."""

    def answer(self, listener: Listener, name: str, payload: str = "") -> str:
        return listener.answer({"eventname": name}, payload)

    @pytest.fixture
    def listener(self, tmp_path: Path) -> Listener:
        return Listener("http://127.0.0.1:1", tmp_path)

    def test_a_process_that_cannot_start_ends_the_server(
        self, listener: Listener, tmp_path: Path
    ) -> None:
        (tmp_path / "scheduler.log").write_text("first\n\x1b[31mno such thing\n\n")
        payload = "processname:scheduler groupname:pronk-scheduler from_state:BACKOFF"
        answer = self.answer(listener, "PROCESS_STATE_FATAL", payload)
        assert answer.startswith(f"{console.FAILURE} pronk: scheduler cannot start")
        assert answer.endswith("[31mno such thing")

    def test_one_that_takes_long_to_see_that_it_cannot_start_is_given_up_as_well(
        self, listener: Listener
    ) -> None:
        names = "processname:scheduler groupname:pronk-scheduler"
        backoff = ("PROCESS_STATE_BACKOFF", f"{names} from_state:STARTING tries:1")
        refusal = ("PROCESS_STATE_EXITED", f"{names} from_state:RUNNING expected:0 pid:7 status:78")
        death = ("PROCESS_STATE_EXITED", f"{names} from_state:RUNNING expected:0 pid:7 status:-1")
        for event in (refusal, backoff, refusal):
            assert self.answer(listener, *event) == console.NOTHING
        assert "died" in self.answer(listener, *death)  # so it had started, and all begins anew
        for event in (backoff, refusal, refusal):
            assert self.answer(listener, *event) == console.NOTHING
        other = refusal[1].replace("scheduler", "store")
        assert self.answer(listener, refusal[0], other) == console.NOTHING
        assert self.answer(listener, *refusal).startswith(f"{console.FAILURE} pronk: scheduler can")
        assert self.answer(listener, *refusal) == console.NOTHING, "it is told once"

    def test_what_gives_up_while_the_server_stops_is_no_failure(self, listener: Listener) -> None:
        assert self.answer(listener, "SUPERVISOR_STATE_CHANGE_STOPPING") == console.NOTHING
        payload = "processname:scheduler groupname:pronk-scheduler from_state:BACKOFF"
        assert self.answer(listener, "PROCESS_STATE_FATAL", payload) == console.NOTHING

    def test_a_death_is_told_once_and_an_exit_is_not(self, listener: Listener) -> None:
        names = "processname:worker-00 groupname:pronk-worker from_state:RUNNING"
        death = names + " expected:{} pid:7 status:1"
        exited = "PROCESS_STATE_EXITED"
        assert self.answer(listener, exited, death.format(1)) == console.NOTHING
        first = self.answer(listener, exited, death.format(0))
        assert first.startswith(f"{console.WARNING} pronk: worker-00 (pid 7) died")
        assert self.answer(listener, exited, death.format(0)) == console.NOTHING

    def test_nothing_is_ready_where_nobody_answers(self, listener: Listener) -> None:
        self.answer(listener, "SUPERVISOR_STATE_CHANGE_RUNNING")
        assert listener.starting
        assert listener.look() is None

    def test_a_log_that_is_not_there_says_nothing(self, tmp_path: Path) -> None:
        assert last_line(tmp_path / "none.log") == ""


def test_a_hang_up_ends_supervisord_and_starts_nothing_anew() -> None:
    options = Options()
    for number in (signal.SIGHUP, signal.SIGCHLD):
        options.signal_receiver.receive(number, None)
    assert [options.get_signal() for _ in range(3)] == [signal.SIGTERM, signal.SIGCHLD, None]


def test_no_standstill_counts_against_what_supervisord_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moment = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: moment)
    clock = Clock()
    began = clock.time()
    for moment, passed in ((101.0, 1.0), (3600.0, 1.0 + Clock.LONGEST_TURN)):  # noqa: B007
        assert clock.time() == pytest.approx(began + passed)


def test_a_console_that_nobody_reads_holds_nothing_up() -> None:
    reading, writing = os.pipe()
    try:
        for _ in range(200):
            console.say(writing, "x" * 1000)
        assert len(os.read(reading, 1 << 20)) <= 1 << 16
        os.close(reading)
        console.say(writing, "nobody is there")
    finally:
        os.close(writing)


def test_keys_are_made_and_listed(place: Path, here: Callable[..., Result]) -> None:
    keys = str(place / "keys")
    made = here("keys", "create", "server", "--keys", keys)
    assert made.exit_code == 0, made.stderr
    assert "server.secret: stays here" in made.stdout
    assert here("keys", "create", "server", PRONK_KEYS=keys).exit_code == 1
    other = here("keys", "create", "box", PRONK_STATE=str(place / "state"))
    assert other.exit_code == 0, other.stderr
    (place / "state" / "keys" / "box.public").rename(place / "keys" / "box.public")
    listed = here("keys", "list", PRONK_KEYS=keys)
    assert listed.stdout.splitlines() == ["server: this host's own", "box: may join"]
    assert "no keys" in here("keys", "list", "--keys", str(place / "nowhere")).stdout


def test_a_worker_needs_to_know_which_scheduler(place: Path) -> None:
    result = pronk("worker", PRONK_STATE=str(place))
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    assert "--join" in result.stderr
