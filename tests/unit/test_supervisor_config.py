"""What we hand supervisord is read by supervisord's own parser, and means what we meant."""

from __future__ import annotations

import configparser
import io
import os
import pwd
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from supervisor.options import ServerOptions

from pronk.frontend import server
from pronk.frontend.cli import rendering
from pronk.protocol.errors import PronkError
from pronk.protocol.settings import Settings, load_settings

USER = pwd.getpwuid(os.getuid()).pw_name


def settings(directory: Path, **values: Any) -> Settings:
    """Settings that do not depend on where the tests run; `directory` must exist."""
    state = directory / "state"
    (state / "logs").mkdir(parents=True, exist_ok=True)
    (state / "run").mkdir(exist_ok=True)
    plain = {"PRONK_HOST": "127.0.0.1:11434", "PRONK_MODELS": directory / "models", "state": state}
    return Settings(**{**plain, **values})


def parsed(text: str) -> dict[str, Any]:
    """The process groups by name, as supervisord reads them."""
    if "[supervisord]" not in text:
        text = "[supervisord]\n" + text
    options = ServerOptions()
    options.environ_expansions = {}  # a placeholder that is left over must not find a value
    options.configfile = None
    section = options.read_config(io.StringIO(text))
    return {group.name: group for group in section.process_group_configs}


def test_the_root_file_holds_programs_only() -> None:
    config = configparser.RawConfigParser()
    config.read(rendering.SOURCE)
    assert {section.split(":")[0] for section in config.sections()} == {"program", "fcgi-program"}


@pytest.mark.parametrize("kind", ["serve", "host"])
def test_no_placeholder_is_left(tmp_path: Path, kind: str) -> None:
    text = render(settings(tmp_path), kind)
    assert "%(ENV_" not in text
    assert "%(here)s" not in text


def render(chosen: Settings, kind: str) -> str:
    if kind == "serve":
        return rendering.render_for_serve(chosen)
    return rendering.render_for_host(chosen, USER)


def test_numbers_of_processes_come_from_the_settings(tmp_path: Path) -> None:
    groups = parsed(rendering.render_for_serve(settings(tmp_path, workers=5, frontends=2)))
    names = {name: [p.name for p in group.process_configs] for name, group in groups.items()}
    assert names == {
        "pronk-scheduler": ["scheduler"],
        "pronk-store": ["store"],
        "pronk-worker": [f"worker-{n:02d}" for n in range(5)],
        "pronk-frontend": ["frontend-00", "frontend-01"],
        "pronk-listener": ["listener"],
    }


def test_each_process_shows_its_role_and_runs_our_interpreter(tmp_path: Path) -> None:
    groups = parsed(rendering.render_for_serve(settings(tmp_path, workers=2)))
    commands = {p.name: shlex.split(p.command) for g in groups.values() for p in g.process_configs}
    python = [sys.executable, "-P", "-m"]
    assert commands["scheduler"] == [*python, "pronk.scheduler"]
    assert commands["store"] == [*python, "pronk.workers", "store"]
    assert commands["worker-01"] == [*python, "pronk.workers", "worker", "--name", "worker-01"]
    assert commands["frontend-00"] == [*python, "pronk.frontend", "--name", "frontend-00"]


def test_the_end_comes_in_the_order_frontends_workers_store_scheduler(tmp_path: Path) -> None:
    groups = parsed(rendering.render_for_serve(settings(tmp_path)))
    # Supervisord stops the highest priority first.
    order = sorted(groups, key=lambda name: groups[name].priority, reverse=True)
    assert order == [
        "pronk-frontend",
        "pronk-worker",
        "pronk-store",
        "pronk-scheduler",
        "pronk-listener",
    ]
    for group in groups.values():
        for process in group.process_configs:
            assert process.stopwaitsecs <= 4
            assert process.stopasgroup
            assert process.killasgroup
    # Even where every process hangs.
    assert sum(group.process_configs[0].stopwaitsecs for group in groups.values()) < 10


def test_a_frontend_that_ends_its_answers_is_not_killed_before_it_is_done(tmp_path: Path) -> None:
    frontends = parsed(rendering.render_for_serve(settings(tmp_path)))["pronk-frontend"]
    longest = 2 * server.HANDLER_SECONDS + server.FAREWELL_SECONDS
    assert longest < frontends.process_configs[0].stopwaitsecs
    assert frontends.process_configs[0].startsecs < server.SHORTEST_LIFE


def test_a_worker_may_exit_at_any_time_and_the_others_may_not(tmp_path: Path) -> None:
    groups = parsed(rendering.render_for_serve(settings(tmp_path)))
    start = {name: group.process_configs[0].startsecs for name, group in groups.items()}
    assert start["pronk-worker"] == 0
    assert start["pronk-scheduler"] == start["pronk-store"] == start["pronk-frontend"] == 1


def test_frontends_share_one_socket(tmp_path: Path) -> None:
    chosen = settings(tmp_path, PRONK_HOST="0.0.0.0:8080", frontends=3)
    frontends = parsed(rendering.render_for_serve(chosen))["pronk-frontend"]
    assert frontends.socket_config.url == "tcp://0.0.0.0:8080"


def test_frontends_open_an_ipv6_address_themselves(tmp_path: Path) -> None:
    chosen = settings(tmp_path, PRONK_HOST="[::1]:8080", frontends=2)
    frontends = parsed(rendering.render_for_serve(chosen))["pronk-frontend"]
    assert not hasattr(frontends, "socket_config")
    assert len(frontends.process_configs) == 2


@pytest.mark.parametrize(
    "name", ["a b", "50%", "%(here)d", "it's", "two  b'c%%d", "semi;colon#hash"]
)
def test_any_usual_path_survives_the_parser(tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    groups = parsed(rendering.render_for_serve(settings(directory, workers=1)))
    worker = groups["pronk-worker"].process_configs[0]
    assert worker.stdout_logfile == str(directory / "state/logs/worker-00.log")
    listener = groups["pronk-listener"].process_configs[0]
    assert shlex.split(listener.command)[-1] == str(directory / "state/logs")


@pytest.mark.parametrize("name", ["a ;b", "a #b", "a\nb"])
def test_a_path_that_the_parser_cannot_take_is_refused_in_one_line(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(PronkError, match="PRONK_STATE=") as caught:
        rendering.render_for_serve(settings(tmp_path / name))
    assert "\n" not in caught.value.message


def test_a_host_gets_the_settings_with_the_programs(tmp_path: Path) -> None:
    chosen = settings(
        tmp_path, workers=4, PRONK_KEEP_ALIVE="5m1s", origins='https://a.example,"b" 100%'
    )
    text = rendering.render_for_host(chosen, USER)
    assert "[supervisord]" not in text
    assert "eventlistener" not in text
    groups = parsed(text)
    for group in groups.values():
        for process in group.process_configs:
            environment = process.environment
            assert process.uid == os.getuid()
            assert environment["PRONK_HOST"] == "127.0.0.1:11434"
            assert environment["PRONK_STATE"] == str(tmp_path / "state")
            assert environment["PRONK_MODELS"] == str(tmp_path / "models")
            assert environment["PRONK_WORKERS"] == "4"
            assert environment["PRONK_KEEP_ALIVE"] == "301.0"
            assert environment["PRONK_ORIGINS"] == 'https://a.example,"b" 100%'
            assert "PRONK_MAX_QUEUE" not in environment  # its default may get better


def test_a_host_gets_the_place_of_the_file_and_not_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state" / "logs").mkdir(parents=True)
    (tmp_path / "pronk.toml").write_text(
        f'workers = 4\nmax_queue = 9\nstate = "{tmp_path}/state"\nmodels = "models"\n'
        "[model.demo]\npreload = true\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PRONK_", "OLLAMA_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PRONK_CONFIG", "pronk.toml")
    monkeypatch.setenv("PRONK_KEEP_ALIVE", "7")
    for group in parsed(rendering.render_for_host(load_settings(), USER)).values():
        for process in group.process_configs:
            assert process.environment == {
                "PRONK_CONFIG": str(tmp_path / "pronk.toml"),
                "PRONK_KEEP_ALIVE": "7.0",
                "PRONK_HOST": "127.0.0.1:11434",
                "PRONK_MODELS": str(tmp_path / "models"),
                "PRONK_STATE": str(tmp_path / "state"),
                "PRONK_WORKERS": "4",
                "PRONK_FRONTENDS": "2",
            }


def test_what_has_parts_reaches_a_hosts_processes_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"demo": {"devices": ["a b", "50%"], "preload": True}}
    chosen = settings(tmp_path, model_limits=limits, PRONK_SCHED_SPREAD="1")
    group = parsed(rendering.render_for_host(chosen, USER))["pronk-scheduler"]
    for name, value in group.process_configs[0].environment.items():
        monkeypatch.setenv(name, value)
    read = load_settings()
    assert read.model_limits == chosen.model_limits
    assert read.sched_spread


@pytest.mark.parametrize("origins", ["'\"", "'a'", "a ;b"])
def test_a_setting_that_the_parser_cannot_take_is_refused(tmp_path: Path, origins: str) -> None:
    with pytest.raises(PronkError, match=re.escape("PRONK_ORIGINS=")):
        rendering.render_for_host(settings(tmp_path, PRONK_ORIGINS=origins), USER)


def test_the_programs_of_a_host_keep_their_own_names(tmp_path: Path) -> None:
    groups = parsed(rendering.render_for_host(settings(tmp_path), USER))
    assert all(name.startswith("pronk-") for name in groups)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("::1", "http://[::1]:1"),
        ("localhost", "http://localhost:1"),
    ],
)
def test_the_ready_line_names_an_address_that_can_be_called(address: str, url: str) -> None:
    assert rendering.reachable_url(address, 1) == url


@pytest.mark.parametrize("kind", ["serve", "host"])
def test_a_host_that_joins_another_ones_scheduler_runs_workers_only(
    tmp_path: Path, kind: str
) -> None:
    joining = settings(tmp_path, workers=2, scheduler="gpu-host:11500", keys=tmp_path / "keys")
    groups = parsed(render(joining, kind))
    assert set(groups) == {"pronk-worker"} | ({"pronk-listener"} if kind == "serve" else set())
    processes = groups["pronk-worker"].process_configs
    assert [process.name for process in processes] == ["worker-00", "worker-01"]
    if kind == "host":
        environment = processes[0].environment
        assert environment["PRONK_SCHEDULER"] == "tcp://gpu-host:11500"
        assert environment["PRONK_KEYS"] == str(tmp_path / "keys")
