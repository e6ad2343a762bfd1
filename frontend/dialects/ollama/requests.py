"""What clients send to Ollama's paths, checked and translated.

Unknown fields are ignored, as in Ollama, and null is the same as absence.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from ....protocol.durations import parse_duration
from ....protocol.errors import Code, PronkError
from ....protocol.messages.generation import Constraint, Kind, Think
from ...operations.offload import NO_WISH, Offload
from ...operations.request import GenerationRequest
from .formats import read_format
from .messages import Images, Message, Text, Tools, read_think
from .options import Options, log_ignored

MAX_MESSAGES = 16_384
MAX_TOP_LOGPROBS = 20

_Model = TypeVar("_Model", bound=BaseModel)

_KINDS = {
    "string_type": "must be a text",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    **dict.fromkeys(("dict_type", "model_type"), "must be an object"),
    **dict.fromkeys(("string_too_short", "too_short"), "must not be empty"),
}
"""What pydantic says in words of Python, in those of JSON."""


def _duration(value: object) -> object:
    return None if value is None else parse_duration(value)


def one_or_many(value: object) -> object:
    """One text or a list of them; no text at all is an empty list, as in Ollama."""
    match value:
        case None | "":
            return []
        case str():
            return [value]
        case list():
            return value  # pyright: ignore[reportUnknownVariableType]
        case _:
            raise ValueError("must be a text or a list of texts")


def _top_logprobs(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_TOP_LOGPROBS:
        raise ValueError(f"must be an integer from 0 to {MAX_TOP_LOGPROBS}")
    return value


KeepAlive = Annotated[float | None, BeforeValidator(_duration)]
"""A stay in seconds, from a number or from text such as `5m`."""
_Token = Annotated[int, Field(ge=0, lt=2**31)]


class ModelRequest(BaseModel):
    """What all requests have that name a model."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    model: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _legacy_name(cls, value: Any) -> Any:
        """Ollama's first clients said `name`."""
        if isinstance(value, dict) and value.get("model") in (None, ""):
            return {**value, "model": value.get("name") or ""}
        return value


class ShowRequest(ModelRequest):
    """`POST /api/show`."""

    verbose: bool | None = None


class _Generation(ModelRequest):
    """What chat and generate have in common."""

    stream: bool | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None
    truncate: bool | None = None
    shift: bool | None = None
    format: Annotated[Constraint | None, BeforeValidator(read_format)] = None
    think: Annotated[Think, BeforeValidator(read_think)] = None
    reasoning_budget: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, BeforeValidator(_top_logprobs)] | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes line by line, as it does unless refused."""
        return self.stream is not False

    @property
    def unloads(self) -> bool:
        """Whether a request without a prompt ends the model's stay instead of beginning it."""
        return self.keep_alive == 0

    @property
    def num_ctx(self) -> int | None:
        """The context that is asked for, in tokens."""
        return self.options.context_length if self.options else None

    @property
    def offload(self) -> Offload:
        """What is wanted of the GPUs."""
        return self.options.offload if self.options else NO_WISH

    def _common(self) -> dict[str, Any]:
        options = self.options or Options()
        return {
            "model": self.model,
            "options": options.sampling(),
            "seed": options.seed,
            "context_length": options.context_length,
            "offload": options.offload,
            "keep_alive": self.keep_alive,
            "truncate": self.truncate is not False,
            "shift": self.shift is not False,
            # As in Ollama, top_logprobs alone asks for nothing.
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
            "constraint": self.format,
            "think": self.think,
            "reasoning_budget": self.reasoning_budget,
        }


class ChatRequest(_Generation):
    """`POST /api/chat`."""

    messages: Annotated[list[Message], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Tools = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer, so that only the model's stay is meant."""
        return not self.messages

    def generation(self) -> GenerationRequest:
        """The request as operations understand it."""
        messages = self.messages or []
        needs = {
            "tools": bool(self.tools),
            "thinking": bool(self.think),
            "vision": any(message.images for message in messages),
        }
        return GenerationRequest(
            kind=Kind.CHAT,
            messages=tuple(message.message() for message in messages),
            tools=tuple(self.tools or ()),
            needs=tuple(name for name, needed in needs.items() if needed),
            **self._common(),
        )


class GenerateRequest(_Generation):
    """`POST /api/generate`."""

    prompt: Text = ""
    suffix: Text = ""
    system: Text = ""
    template: Text = ""
    raw: bool | None = None
    context: list[_Token] | None = None
    images: Images = None

    @model_validator(mode="after")
    def _raw_stands_alone(self) -> Self:
        if self.raw and (self.template or self.system or self.context):
            raise ValueError("raw mode does not support template, system, or context")
        return self

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to answer, so that only the model's stay is meant."""
        return not (self.prompt or self.suffix or self.images)

    def generation(self) -> GenerationRequest:
        """The request as operations understand it."""
        needs = {
            # A template may know how to ask a model that names no tokens for it.
            "insert": bool(self.suffix and not self.template),
            "thinking": bool(self.think),
            "vision": bool(self.images),
        }
        return GenerationRequest(
            kind=Kind.COMPLETION,
            prompt=self.prompt,
            system=self.system or None,
            suffix=self.suffix,
            template=self.template or None,
            raw=bool(self.raw),
            context=tuple(self.context or ()),
            return_context=not self.raw,
            images=tuple(self.images or ()),
            needs=tuple(name for name, needed in needs.items() if needed),
            **self._common(),
        )


def parse(kind: type[_Model], fields: dict[str, object]) -> _Model:
    """A request of this kind. Raises `PronkError` with one sentence about the first mistake."""
    log_ignored(fields.get("options"))
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise PronkError(Code.INVALID_REQUEST, _sentence(error)) from None


def _sentence(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    path = _path(problem["loc"])
    if problem["type"] == "missing" or (path == "model" and problem["input"] == ""):
        return f"{path} is required"
    if problem["type"] == "too_long" and (bound := problem.get("ctx")):
        of_what = "characters " if isinstance(problem["input"], str) else ""
        most, got = bound["max_length"], bound["actual_length"]
        return f"{path}: at most {most} {of_what}are taken; got {got}"
    reason = _KINDS.get(problem["type"]) or problem["msg"].removeprefix("Value error, ").replace(
        "Input should be", "must be"
    )
    if not path:
        return reason
    return f"{path}: {reason}; got {_short(problem['input'])}"


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        if step == "[key]":  # pydantic's mark for a key that is wrong, behind that key
            continue
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def _short(value: object) -> str:
    """What was sent, in JSON, as far as it helps to find the place."""
    match value:
        case dict():
            return "an object"
        case [str() | int() | float()] as values:
            return f"[{_short(values[0])}]"
        case list():
            return "an array"
        case str():
            return orjson.dumps(value if len(value) <= 40 else value[:40] + "…").decode()
        case _:
            return orjson.dumps(value).decode()
