"""Every setting of Pronk, in one typed class that each process reads for itself.

Values come from environment variables (`PRONK_…`), then from the TOML file that `PRONK_CONFIG`
names (same names in lower case, without the prefix, and tables for what has parts), then from the
defaults. Where Ollama has a variable for the same thing it is honoured when ours is not set. The
docstring below each field is its documentation: `pronk settings` prints them.
"""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from .declared import DeclaredDevice, canonical, declared
from .durations import parse_duration
from .errors import Code, PronkError
from .limits import CallerClass, ModelLimits, canonical_limits, one_class_each
from .messages.placement import CacheType, FlashAttention
from .names import parse_name
from .registries import RegistryAccess, canonical_registries
from .sizes import parse_size
from .state import StateDirectory
from .tcp import join_tcp, split_tcp

DEFAULT_PORT = 11434
MIB = 1024 * 1024

MOST_PARALLEL = 240
"""Requests that a model can be asked to answer at a time: llama.cpp knows 256 sequences, and some
of them keep what finished requests have computed."""


def _either(ours: str, ollamas: str) -> AliasChoices:
    """The names under which a setting is looked up: ours first, then Ollama's, then the file's."""
    return AliasChoices(ours, ollamas, ours.removeprefix("PRONK_").lower())


def _home() -> Path:
    """The user's home directory, or `/` for a user who has none, as in many a container."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/")


def _path(value: object) -> object:
    if isinstance(value, dict):
        raise ValueError('is a directory; what belongs to one model stands in [model."its name"]')
    if not isinstance(value, (str, Path)):
        return value
    try:
        path = Path(value).expanduser().absolute()
    except RuntimeError:
        raise ValueError("there is no such user; write the path in full") from None
    try:
        str(path).encode()
    except UnicodeEncodeError:  # it goes into messages and configuration files
        raise ValueError("the path is not valid UTF-8") from None
    return path


def _switch(value: object) -> object:
    """`on`, `off` or `auto` from these words, and from what Ollama takes for a truth value."""
    text = str(value).strip().lower()
    if text in ("1", "t", "true", "y", "yes"):
        return FlashAttention.ON
    return FlashAttention.OFF if text in ("0", "f", "false", "n", "no") else text


def _lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


Directory = Annotated[Path, BeforeValidator(_path)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1)]
SizeOrNone = Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=2**60)]


class Settings(BaseSettings):
    """What an operator may change. Read once per process at its start; immutable from then on."""

    model_config = SettingsConfigDict(
        env_prefix="PRONK_",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    host: str = Field(
        f"127.0.0.1:{DEFAULT_PORT}", validation_alias=_either("PRONK_HOST", "OLLAMA_HOST")
    )
    """Address and port to listen on, for example `0.0.0.0:11434`. There is no authentication yet:
    listen beyond loopback only in a network you trust. Falls back to OLLAMA_HOST."""

    models: Directory = Field(
        _home() / ".pronk" / "models", validation_alias=_either("PRONK_MODELS", "OLLAMA_MODELS")
    )
    """The model library, in Ollama's layout on disk: an existing Ollama directory works as it is.
    Falls back to OLLAMA_MODELS."""

    state: Directory = _home() / ".pronk" / "state"
    """Directory for sockets, locks and logs, kept at mode 0700. Its path is limited to about 75
    bytes, because a Unix socket's path ends at 107. One running server per directory."""

    workers: int = Field(3, ge=1, le=512)
    """Worker processes in all, loaded and blank. Each serves one model at a time, so this is also
    the most models that can be loaded at once."""

    frontends: int = Field(2, ge=1, le=64)
    """Frontend processes, which share one listening socket. With two or more, connections are
    accepted even in the moment after one of them died."""

    listen_tcp: str = ""
    """Address and port on which workers of other hosts may join, for example `0.0.0.0:11500`; empty
    for this host alone. The scheduler listens there, the frontends on the ports behind it, one
    each. Needs keys: see PRONK_KEYS."""

    scheduler: str = ""
    """Address and port of another host's scheduler (its PRONK_LISTEN_TCP), such as
    `gpu-host.example.org:11500`. `pronk serve` then runs workers only, which join it."""

    keys: Directory | None = None
    """Directory of the keys with which hosts know each other, made by `pronk keys create`. Default:
    the folder `keys` in PRONK_STATE."""
    devices: Annotated[str, BeforeValidator(canonical)] = ""
    """Simulated devices that compute on the CPU, for tests, as a JSON list:
    `[{"name":"sim0","memory":"8GiB"},{"name":"sim1","memory":"8GiB"}]`. They take the place of the
    GPUs that are there; empty for those."""

    gpu_overhead: SizeOrNone = Field(
        0, validation_alias=_either("PRONK_GPU_OVERHEAD", "OLLAMA_GPU_OVERHEAD")
    )
    """Bytes of memory on each GPU that no model may take. Falls back to OLLAMA_GPU_OVERHEAD."""

    threads: int = Field(os.cpu_count() or 1, ge=1, le=1024)
    """CPU threads of the engine in each worker that has a model."""

    num_parallel: int = Field(
        0,
        ge=0,
        le=MOST_PARALLEL,
        validation_alias=_either("PRONK_NUM_PARALLEL", "OLLAMA_NUM_PARALLEL"),
    )
    """Requests that each loaded model answers at a time, each with the whole context; 0 for as many
    as there is memory for, at most 16. What does not fit into memory is lowered. A model's own
    `num_parallel` parameter wins. Falls back to OLLAMA_NUM_PARALLEL."""

    slot_memory: SizeOrNone = 0
    """Bytes of memory that the KV cache of one model may take where the number of its slots is
    automatic; 0 for a quarter of what is free when it is loaded."""

    cache_memory: SizeOrNone = 1024 * MIB
    """Bytes of memory in each worker in which finished sequences are kept, so that a request that
    begins like an earlier one is answered sooner; 0 for none."""

    num_batch: int = Field(512, ge=1, le=16384)
    """Most tokens that one step of the engine computes: more reads long prompts faster, and takes
    more memory. A model's own `num_batch` parameter wins."""

    flash_attention: Annotated[FlashAttention, BeforeValidator(_switch)] = Field(
        FlashAttention.AUTO,
        validation_alias=_either("PRONK_FLASH_ATTENTION", "OLLAMA_FLASH_ATTENTION"),
    )
    """`on`, `off`, or `auto` for where model and device can: attention in blocks, which takes less
    memory. Falls back to OLLAMA_FLASH_ATTENTION, whose 1 and 0 are understood."""

    kv_cache_type: Annotated[CacheType, BeforeValidator(_lower)] = Field(
        CacheType.F16,
        validation_alias=_either("PRONK_KV_CACHE_TYPE", "OLLAMA_KV_CACHE_TYPE"),
    )
    """How the KV cache is stored: `f16`, or `q8_0` for half and `q4_0` for a quarter of the memory
    with a little or more loss in quality; these two need flash attention. Falls back to
    OLLAMA_KV_CACHE_TYPE."""

    request_timeout: float = Field(0.0, ge=0)
    """Longest time that a request may take from its acceptance to its last token, in seconds or as
    `10m`, waiting and loading included; what takes longer ends with an error. 0 for no limit."""

    demo_model: Literal["on", "off"] = "on"
    """Whether the built-in `demo:latest` is listed and served."""

    echo_model: Literal["on", "off"] = "off"
    """Whether `echo` is listed and served: no model, it says again what it was told, for load tests
    of everything else. `echo` is as fast as it can be, `echo:50` gives each request 50 tokens in a
    second."""

    keep_alive: float = Field(
        300.0, validation_alias=_either("PRONK_KEEP_ALIVE", "OLLAMA_KEEP_ALIVE")
    )
    """How long a model stays loaded after its last request: seconds or `5m`, `1h30m`; negative
    for ever; 0 unloads at once. A request's `keep_alive` wins. Falls back to OLLAMA_KEEP_ALIVE."""

    context_length: int = Field(
        4096,
        ge=8,
        le=2**24,
        validation_alias=_either("PRONK_CONTEXT_LENGTH", "OLLAMA_CONTEXT_LENGTH"),
    )
    """Context in tokens that a model is loaded with when the request names none; never more than
    the model was trained for. Falls back to OLLAMA_CONTEXT_LENGTH."""

    max_queue: int = Field(
        512, ge=1, le=1_000_000, validation_alias=_either("PRONK_MAX_QUEUE", "OLLAMA_MAX_QUEUE")
    )
    """Requests that may wait. Beyond it, the newest one of the caller who has the most waiting for
    its weight is answered 503 with Retry-After. Falls back to OLLAMA_MAX_QUEUE."""

    max_queue_bytes: Size = 1024 * MIB
    """Bytes of request bodies that may wait in the scheduler, and that each frontend keeps until
    their requests are answered. Beyond it, the newest request of the caller who has the most bytes
    waiting for its weight gets a 503 with Retry-After."""

    queue_timeout: float = Field(0.0, ge=0)
    """Longest time that a request may wait before it is begun, in seconds or as `30s`, the loading
    of its model included; then it gets a 503 with Retry-After. A request that was begun already,
    and waits because its worker died, goes on waiting. 0 for no limit."""

    max_generation_body: Size = 64 * MIB
    """Largest body in bytes of a chat or generate request: a history of 128 k tokens and several
    images fit in the default. Beyond it the answer is 413."""

    max_control_body: Size = MIB
    """Largest body in bytes of every other request, such as show. A request that creates a model
    holds its texts and may have 4 MiB, whatever this says; an uploaded file may have what the disk
    has room for."""

    max_stream_buffer: Size = 4 * MIB
    """Text in bytes that may wait in a frontend for one slow client; beyond it the client is
    dropped and its generation cancelled."""

    pull_connections: int = Field(8, ge=1, le=64)
    """Connections over which one file of a model is fetched from its registry."""

    sched_spread: bool = Field(
        False, validation_alias=_either("PRONK_SCHED_SPREAD", "OLLAMA_SCHED_SPREAD")
    )
    """Whether a model is spread over all GPUs even where one has room for it. Falls back to
    OLLAMA_SCHED_SPREAD."""

    load_timeout: float = Field(
        300.0, gt=0, validation_alias=_either("PRONK_LOAD_TIMEOUT", "OLLAMA_LOAD_TIMEOUT")
    )
    """Longest time a model may take to load, in seconds or as `5m`; beyond it the worker is ended
    and the requests get an error. Falls back to OLLAMA_LOAD_TIMEOUT."""

    load_cooldown: float = Field(30.0, ge=0)
    """How long a model is left alone after it failed to load three times in a row, in seconds or as
    `1m`: requests for it are answered with the reason at once, instead of costing a worker each."""

    stall_timeout: float = Field(120.0, gt=0)
    """Time in seconds (or `2m`) without a heartbeat, or with work but without an engine step,
    after which a worker counts as hung and is ended."""

    drain_timeout: float = Field(60.0, ge=0)
    """Longest time in seconds (or `5m`) that a process which is drained lets its streams finish.
    What is left then goes on in another worker; a frontend ends it with an error."""

    origins: str = Field("", validation_alias=_either("PRONK_ORIGINS", "OLLAMA_ORIGINS"))
    """Comma-separated browser origins that may call the API besides loopback ones, `*` as a wild
    card: `https://chat.example.org,http://10.0.0.*`. Falls back to OLLAMA_ORIGINS."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much each process writes to its log."""

    model_limits: dict[str, ModelLimits] = Field(
        default_factory=dict,
        validation_alias=AliasChoices("PRONK_MODEL_LIMITS", "model_limits", "model"),
    )
    """What holds for one model, in a table `[model."its name"]` of the file (or all of them as JSON
    in the variable)."""

    caller_classes: dict[str, CallerClass] = Field(
        default_factory=dict,
        validation_alias=AliasChoices("PRONK_CALLER_CLASSES", "caller_classes", "class"),
    )
    """Callers whose waiting requests weigh more or less than others', in a table `[class.<any
    name>]` of the file (or all of them as JSON in the variable). A caller whom no class names has
    the weight 1."""

    registries: dict[str, RegistryAccess] = Field(
        default_factory=dict,
        validation_alias=AliasChoices("PRONK_REGISTRIES", "registries", "registry"),
    )
    """What holds for one registry of models, in a table `[registry."its host"]` of the file (or all
    of them as JSON in the variable). Passwords and tokens may also lie in the keyring of the user
    that the server runs as: `keyring set pronk its-host`, where the secret is `user:password` or a
    token."""

    @field_validator("registries")
    @classmethod
    def _by_host(cls, value: dict[str, RegistryAccess]) -> dict[str, RegistryAccess]:
        return canonical_registries(value)

    @field_validator("model_limits")
    @classmethod
    def _canonical(cls, value: dict[str, ModelLimits]) -> dict[str, ModelLimits]:
        return canonical_limits(value)

    @field_validator("caller_classes")
    @classmethod
    def _one_class_each(cls, value: dict[str, CallerClass]) -> dict[str, CallerClass]:
        return one_class_each(value)

    @field_validator(
        "keep_alive",
        "load_timeout",
        "load_cooldown",
        "stall_timeout",
        "request_timeout",
        "queue_timeout",
        "drain_timeout",
        mode="before",
    )
    @classmethod
    def _duration(cls, value: object) -> object:
        return parse_duration(value)

    @field_validator("kv_cache_type")
    @classmethod
    def _computable(cls, value: CacheType, info: ValidationInfo) -> CacheType:
        off = info.data.get("flash_attention") is FlashAttention.OFF
        if off and value is not CacheType.F16:
            raise ValueError(
                "needs flash attention, which PRONK_FLASH_ATTENTION=off rules out; set it to auto, "
                "or the cache type to f16"
            )
        return value

    @field_validator("listen_tcp")
    @classmethod
    def _bindable(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            return value
        address, port = split_tcp(value)
        if port + info.data.get("frontends", 0) > 65535:
            raise ValueError("leaves no room for the frontends' ports behind it")
        return join_tcp(address, port)

    @field_validator("scheduler")
    @classmethod
    def _joinable(cls, value: str, info: ValidationInfo) -> str:
        if value and info.data.get("listen_tcp"):
            raise ValueError("a host that joins another one's scheduler has no PRONK_LISTEN_TCP")
        return join_tcp(*split_tcp(value)) if value else value

    @field_validator("host")
    @classmethod
    def _listenable(cls, value: str) -> str:
        address, port = split_host(value)
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    @property
    def keys_directory(self) -> Path:
        """`keys`, or its default."""
        return self.keys or StateDirectory(self.state).keys

    @property
    def declared_devices(self) -> list[DeclaredDevice]:
        """`devices` as what it means."""
        return declared(self.devices)

    @property
    def address(self) -> tuple[str, int]:
        """`host` as the pair that sockets take."""
        return split_host(self.host)

    def limits_of(self, model: str) -> ModelLimits:
        """What `model_limits` says of a model, by any name that means it."""
        return self.model_limits.get(parse_name(model).canonical, _NO_LIMITS)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before file. No `.env` file is ever read."""
        assert isinstance(env_settings, EnvSettingsSource)
        # A setting's name in the file is no name of a variable: HOST belongs to somebody else.
        env_settings.env_vars = {
            name: value
            for name, value in env_settings.env_vars.items()
            if name.lower().startswith(("pronk_", "ollama_"))
        }
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings]
        if config := config_file():
            sources.append(cls.file_source(config))
        return tuple(sources)

    @classmethod
    def file_source(cls, config: Path) -> SettingsFile:
        """What reads the file."""
        return SettingsFile(cls, config)


class SettingsFile(TomlConfigSettingsSource):
    """The file without what variables set: a table is not mixed from both."""

    def __call__(self) -> dict[str, Any]:
        """What it says."""
        given = super().__call__()
        return {
            key: value
            for key, value in given.items()
            if not ((name := _field_of(key)) and is_in_environment(name))
        }


_NO_LIMITS = ModelLimits()


def split_host(value: str) -> tuple[str, int]:
    """Address and port from every form that OLLAMA_HOST has: `host`, `:port`, `[::1]:port`, a URL.

    Raises ValueError when the port is no port or the address is empty of meaning.
    """
    text = value.strip().strip("'\"")
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", "http"):
        raise ValueError(f"has the scheme {scheme!r}; only http is served")
    try:
        bare = ipaddress.ip_address(rest)
    except ValueError:
        parts = urlsplit("//" + rest)
        port = parts.port  # raises ValueError beyond 65535
        address = parts.hostname or "127.0.0.1"
    else:
        port, address = None, str(bare)
    if port is None:
        port = 80 if scheme else DEFAULT_PORT
    return address, port


def config_file() -> Path | None:
    """The file that PRONK_CONFIG names, as an absolute path; None where it names none."""
    named = os.environ.get("PRONK_CONFIG")
    try:
        return Path(named).expanduser().absolute() if named else None
    except RuntimeError:  # of a user who does not exist
        return Path(named or "")


def variables_of(name: str) -> list[str]:
    """The environment variables that set a field, the one that wins first."""
    alias = Settings.model_fields[name].validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [f"PRONK_{name.upper()}"]
    return [str(choice) for choice in choices if str(choice).isupper()]


def key_of(name: str) -> str:
    """What a field is called in the file: its own name, or that of its tables."""
    alias = Settings.model_fields[name].validation_alias
    return str(alias.choices[-1]) if isinstance(alias, AliasChoices) else name


def _field_of(key: str) -> str | None:
    """The field that is called so, by us, in the file or in the environment."""
    names = (n for n in Settings.model_fields if key in (n, key_of(n), *variables_of(n)))
    return next(names, None)


def is_in_environment(name: str) -> bool:
    """Whether a variable sets a field, and so the file does not."""
    names = {variable.lower() for variable in variables_of(name)}
    return any(value for variable, value in os.environ.items() if variable.lower() in names)


def load_settings(kind: type[Settings] = Settings, **overrides: Any) -> Settings:
    """The settings of this process. Any but the store and the command line wants those of
    `withheld`.

    Raises `PronkError` with one line that names the variable, or the file and its key, and what is
    wrong with its value.
    """
    config = config_file()
    if config and not config.is_file():
        raise PronkError(Code.INVALID_REQUEST, f"PRONK_CONFIG: there is no file {config}")
    try:
        return kind(**overrides)
    except ValidationError as error:
        raise PronkError(Code.INVALID_REQUEST, _first_problem(error, overrides)) from None
    except SettingsError as error:  # of a variable that has to hold JSON
        wrong = _SOURCE_FIELD.search(str(error))
        name = variables_of(wrong[1])[0] if wrong else "the environment"
        raise PronkError(
            Code.INVALID_REQUEST, f"{name} is not valid JSON: {error.__cause__ or error}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PronkError(Code.INVALID_REQUEST, f"{config} is not valid TOML: {error}") from None
    except OSError as error:
        raise PronkError(
            Code.INVALID_REQUEST, f"PRONK_CONFIG={config}: {error.strerror or error}"
        ) from None


_SOURCE_FIELD = re.compile(r'field "(\w+)"')
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_SHOWN = 300


def _first_problem(error: ValidationError, overrides: dict[str, Any]) -> str:
    problem = error.errors()[0]
    place = [_shown(part) for part in problem["loc"]] or ["settings"]
    first = place[0]
    field = _field_of(first)
    message = problem["msg"].removeprefix("Value error, ")
    # Part of what is said of a registry is secret, and any part of it may be in the wrong place.
    given = "…" if field == "registries" else _shown(problem["input"])
    if field and not ({field, *variables_of(field)} & overrides.keys()):
        own = is_in_environment(field)
    else:
        own = first in overrides
    if (config := config_file()) and not own:
        if field:
            place[0] = key_of(field)
        where = ".".join(part if _BARE_KEY.fullmatch(part) else f'"{part}"' for part in place)
        where = f"{config}: {where}"
        equals = " = "
    else:
        where = ".".join([variables_of(field)[0] if field else first, *place[1:]])
        equals = "="
    if problem["type"] == "extra_forbidden":
        return f"{where}: there is no such setting; see `pronk settings`"
    return f"{where}{equals}{given}: {message}"


def _shown(value: object) -> str:
    """A value on one line of text, which it may not be."""
    text = str(value)
    if len(text) > _LONGEST_SHOWN:
        text = text[:_LONGEST_SHOWN] + "…"
    return "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)
