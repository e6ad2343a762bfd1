"""The settings and what they mean, in one typed class.

The docstring below each field is its documentation: `pronk settings` prints them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ..declared import DeclaredDevice, canonical, declared
from ..durations import parse_duration
from ..limits import NO_LIMITS, CallerClass, ModelLimits, canonical_limits, one_class_each
from ..messages.placement import CacheType, FlashAttention
from ..names import parse_name
from ..registries import RegistryAccess, canonical_registries
from ..state import StateDirectory
from ..tcp import join_tcp, split_tcp
from .kinds import (
    DEFAULT_PORT,
    Directory,
    Size,
    SizeOrNone,
    either,
    home,
    lower,
    split_host,
    switch,
)
from .sources import FileBehindVariables, config_file

MIB = 1024 * 1024

MOST_PARALLEL = 240
"""Requests that a model can be asked to answer at a time: llama.cpp knows 256 sequences, and some
of them keep what finished requests have computed."""


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
        f"127.0.0.1:{DEFAULT_PORT}", validation_alias=either("PRONK_HOST", "OLLAMA_HOST")
    )
    """Address and port to listen on, for example `0.0.0.0:11434`. There is no authentication yet:
    listen beyond loopback only in a network you trust. Falls back to OLLAMA_HOST."""

    models: Directory = Field(
        home() / ".pronk" / "models", validation_alias=either("PRONK_MODELS", "OLLAMA_MODELS")
    )
    """The model library, in Ollama's layout on disk: an existing Ollama directory works as it is.
    Falls back to OLLAMA_MODELS."""

    state: Directory = home() / ".pronk" / "state"
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
        0, validation_alias=either("PRONK_GPU_OVERHEAD", "OLLAMA_GPU_OVERHEAD")
    )
    """Bytes of memory on each GPU that no model may take. Falls back to OLLAMA_GPU_OVERHEAD."""

    threads: int = Field(os.cpu_count() or 1, ge=1, le=1024)
    """CPU threads of the engine in each worker that has a model."""

    num_parallel: int = Field(
        0,
        ge=0,
        le=MOST_PARALLEL,
        validation_alias=either("PRONK_NUM_PARALLEL", "OLLAMA_NUM_PARALLEL"),
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

    flash_attention: Annotated[FlashAttention, BeforeValidator(switch)] = Field(
        FlashAttention.AUTO,
        validation_alias=either("PRONK_FLASH_ATTENTION", "OLLAMA_FLASH_ATTENTION"),
    )
    """`on`, `off`, or `auto` for where model and device can: attention in blocks, which takes less
    memory. Falls back to OLLAMA_FLASH_ATTENTION, whose 1 and 0 are understood."""

    kv_cache_type: Annotated[CacheType, BeforeValidator(lower)] = Field(
        CacheType.F16,
        validation_alias=either("PRONK_KV_CACHE_TYPE", "OLLAMA_KV_CACHE_TYPE"),
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
        300.0, validation_alias=either("PRONK_KEEP_ALIVE", "OLLAMA_KEEP_ALIVE")
    )
    """How long a model stays loaded after its last request: seconds or `5m`, `1h30m`; negative
    for ever; 0 unloads at once. A request's `keep_alive` wins. Falls back to OLLAMA_KEEP_ALIVE."""

    context_length: int = Field(
        4096,
        ge=8,
        le=2**24,
        validation_alias=either("PRONK_CONTEXT_LENGTH", "OLLAMA_CONTEXT_LENGTH"),
    )
    """Context in tokens that a model is loaded with when the request names none; never more than
    the model was trained for. Falls back to OLLAMA_CONTEXT_LENGTH."""

    max_queue: int = Field(
        512, ge=1, le=1_000_000, validation_alias=either("PRONK_MAX_QUEUE", "OLLAMA_MAX_QUEUE")
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
        False, validation_alias=either("PRONK_SCHED_SPREAD", "OLLAMA_SCHED_SPREAD")
    )
    """Whether a model is spread over all GPUs even where one has room for it. Falls back to
    OLLAMA_SCHED_SPREAD."""

    load_timeout: float = Field(
        300.0, gt=0, validation_alias=either("PRONK_LOAD_TIMEOUT", "OLLAMA_LOAD_TIMEOUT")
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

    origins: str = Field("", validation_alias=either("PRONK_ORIGINS", "OLLAMA_ORIGINS"))
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
        return self.model_limits.get(parse_name(model).canonical, NO_LIMITS)

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
    def file_source(cls, config: Path) -> FileBehindVariables:
        """What reads the file."""
        return FileBehindVariables(cls, config)
