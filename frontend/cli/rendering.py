"""`supervisord.conf` with everything filled in, for our own supervisord or for a host's.

The rules that the values must obey are those of supervisor 4.3.0's parser: a percent sign is
doubled (twice in log files, which it expands twice), and what it would take for a comment, and
some quotes, cannot be said at all.
"""

from __future__ import annotations

import configparser
import io
import json
import os
import re
import shlex
import socket
import sys
from pathlib import Path

from ...protocol.errors import Code, PronkError
from ...protocol.settings import Settings, config_file
from ...protocol.settings.sources import is_in_environment, variables_of
from ...protocol.state import StateDirectory

SOURCE = Path(__file__).parents[2] / "supervisord.conf"
"""The one description of the processes: beside the rooms, in a checkout and when installed."""

_RENDERED = ("host", "models", "state", "workers", "frontends")
"""Settings that the file of the programs is made of, or that depend on whose home directory and
which working directory it is: they are written down wherever they come from."""

_SECRET = "registries"
"""The setting that may hold passwords."""

_FRONTENDS = "fcgi-program:pronk-frontend"
_WORKERS = "program:pronk-worker"
_STORE = "program:pronk-store"
_PLACEHOLDER = re.compile(r"%\(ENV_(PRONK_[A-Z]+)\)s")
_UNSPEAKABLE = re.compile(r"[\r\n\0]|\s[;#]|^\s|\s$")


def render_for_serve(settings: Settings) -> str:
    """The configuration of the supervisord that `pronk serve` becomes.

    Its processes inherit their settings with the environment.
    """
    config = _programs(settings, environment="")
    state = StateDirectory(settings.state)
    processes = settings.workers + settings.frontends
    subject = settings.scheduler or reachable_url(*settings.address)
    config["supervisord"] = {
        "nodaemon": "true",
        "silent": "true",
        "identifier": "pronk",
        "logfile": _value("PRONK_STATE", str(state.log("supervisord"))),
        "logfile_maxbytes": "10MB",
        "logfile_backups": "3",
        "pidfile": _value("PRONK_STATE", str(state.supervisor_pid)),
        "nocleanup": "true",
        # Two pipes for each child; supervisord raises its own limit to this number.
        "minfds": str(1024 + 4 * processes),
        "minprocs": "1",
    }
    config["eventlistener:pronk-listener"] = {
        "process_name": "listener",
        "command": shlex.join(
            [
                _value("python", sys.executable),
                "-P",  # a folder called `pronk` where the server was started is not the package
                "-m",
                "pronk.frontend.cli.listener",
                _value("PRONK_HOST", subject),
                _value("PRONK_STATE", str(state.logs)),
            ]
        ),
        "events": "SUPERVISOR_STATE_CHANGE,PROCESS_STATE_BACKOFF,PROCESS_STATE_EXITED,"
        "PROCESS_STATE_FATAL,PROCESS_COMMUNICATION_STDERR",
        "result_handler": "pronk.frontend.cli.console:handle",
        "buffer_size": str(1024 + 4 * processes),
        "startsecs": "0",
        "autorestart": "true",
        "stopasgroup": "true",
        "killasgroup": "true",
        "stopwaitsecs": "1",
        "stdout_logfile": "NONE",
        "stderr_capture_maxbytes": "4KB",
        "stderr_logfile": _value("PRONK_STATE", str(state.log("listener")), expanded=2),
        "stderr_logfile_maxbytes": "1MB",
        "stderr_logfile_backups": "1",
    }
    if nothing := ",".join(f'{variable}="{{}}"' for variable in _given(_SECRET)):
        # Passwords and tokens are for the store alone: workers run what strangers have made.
        for section in config.sections():
            if section not in ("supervisord", _STORE):
                config[section]["environment"] = nothing
    return _text(config, f"; Written by `pronk serve` from {SOURCE.name}; edits are lost.\n\n")


def render_for_host(settings: Settings, user: str) -> str:
    """The programs alone, for the supervisord of a host, which runs them as `user`.

    They carry their settings with them, because the environment there is the host's.
    """
    given = settings.model_dump(mode="json", exclude_defaults=True)
    given |= {name: getattr(settings, name) for name in ("host", "models", "state")}
    if config := config_file():
        # What it says is not written down: an edit counts when the processes start again.
        given = {name: value for name, value in given.items() if is_in_environment(Settings, name)}
        given |= {name: getattr(settings, name) for name in _RENDERED}
        given["config"] = config
    if any(access.password or access.token for access in settings.registries.values()) and (
        "registries" in given
    ):
        raise PronkError(
            Code.INVALID_REQUEST,
            "PRONK_REGISTRIES: passwords are not written into a configuration file; put them "
            "into the file that PRONK_CONFIG names, or into the keyring",
        )
    variables = {name: _variable(value) for name, value in given.items()}
    environment = ",".join(
        f"PRONK_{name.upper()}={_quoted(f'PRONK_{name.upper()}', text)}"
        for name, text in sorted(variables.items())
    )
    programs = _programs(settings, environment)
    for section in programs.sections():
        programs[section]["user"] = user
    return _text(
        programs, "; Written by `pronk supervisor-config`, for inclusion by supervisord.\n\n"
    )


def reachable_url(address: str, port: int) -> str:
    """The URL under which this machine itself reaches a server that listens on `address`."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def _programs(settings: Settings, environment: str) -> configparser.RawConfigParser:
    config = configparser.RawConfigParser()
    config.read_string(SOURCE.read_text(), SOURCE.name)
    address, port = settings.address
    logs = str(StateDirectory(settings.state).logs)
    values = {
        "PRONK_PYTHON": _value("python", shlex.quote(sys.executable)),
        "PRONK_LOGS": _value("PRONK_STATE", logs, expanded=2),
        "PRONK_HOST": _value("PRONK_HOST", f"{address}:{port}"),
        "PRONK_WORKERS": str(settings.workers),
        "PRONK_FRONTENDS": str(settings.frontends),
        "PRONK_ENVIRONMENT": environment,
    }
    for section in config.sections():
        for option, text in config.items(section):
            config[section][option] = _PLACEHOLDER.sub(lambda match: values[match[1]], text)
    if settings.scheduler:  # another host's
        for section in config.sections():
            if section != _WORKERS:
                config.remove_section(section)
    elif not _is_ipv4(address):
        frontends = dict(config[_FRONTENDS])
        del frontends["socket"]
        config.remove_section(_FRONTENDS)
        config[_FRONTENDS.removeprefix("fcgi-")] = frontends
    return config


def _given(name: str) -> list[str]:
    """The variables that set a field, as they are written in the environment."""
    wanted = {variable.lower() for variable in variables_of(Settings, name)}
    return [variable for variable in os.environ if variable.lower() in wanted]


def _variable(value: object) -> str:
    """A setting as a variable: what has parts is JSON."""
    return json.dumps(value) if isinstance(value, (dict, list, bool)) else str(value)


def _is_ipv4(address: str) -> bool:
    try:
        return bool(socket.getaddrinfo(address, None, socket.AF_INET))
    except OSError:
        return False


def _value(variable: str, text: str, expanded: int = 1) -> str:
    """`text` as supervisor's parser gives it back after expanding it `expanded` times."""
    if _UNSPEAKABLE.search(text):
        raise PronkError(
            Code.INVALID_REQUEST,
            f"{variable}={text!r}: supervisord's configuration cannot express line breaks, outer "
            "spaces, or a space before ; or #; choose another value",
        )
    return text.replace("%", "%" * 2**expanded)


def _quoted(variable: str, text: str) -> str:
    """`text` as the value of a variable in an `environment` line."""
    quote = '"' if '"' not in text else "'"
    if quote in text or text.strip("'\"") != text:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"{variable}={text}: supervisord's configuration cannot express outer quotes, or both "
            "kinds of them; choose another value, or write the setting to a file for PRONK_CONFIG",
        )
    return quote + _value(variable, text) + quote


def _text(config: configparser.RawConfigParser, head: str) -> str:
    text = io.StringIO(head)
    text.seek(0, os.SEEK_END)
    config.write(text, space_around_delimiters=False)
    return text.getvalue().rstrip("\n") + "\n"
