"""What clients send to the paths that change the library, checked and translated.

As in Ollama, what is empty counts as absent, and a registry's `username` and `password`, which its
first clients sent, are not read: credentials are the server's affair.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ....protocol.messages.changes import MAX_FILES, ModelMessage
from ...operations.library import Recipe
from .messages import lower
from .requests import MAX_MESSAGES, ModelRequest, Text, one_or_many

MAX_LICENSES = 64
MAX_PARAMETERS = 256
MAX_VALUES = 1024
"""In the list that one parameter is, such as `stop`."""
MAX_LABEL = 512
"""Characters of a file's name, and of everything else that is no text of its own."""

_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})", re.IGNORECASE)


def read_digest(value: object) -> str:
    """The 64 digits of `sha256:…`. Raises `ValueError` for what is no digest."""
    found = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if not found:
        raise ValueError("must be sha256: and 64 hexadecimal digits")
    return found[1].lower()


def _parameter(value: object) -> object:
    """A parameter's value; which of them means what is for the store to say."""
    values: list[object] = value if isinstance(value, list) else [value]
    if len(values) > MAX_VALUES:
        raise ValueError(f"at most {MAX_VALUES} values are taken; these are {len(values)}")
    if value is not None and not all(isinstance(each, bool | int | float | str) for each in values):
        raise ValueError("must be a number, a text, true or false, or a list of those")
    return value


def _left_behind(value: object) -> object:
    if value:
        raise ValueError(
            "is not read any more: send what the Modelfile says in the fields `from`, `files`, "
            "`template`, `system`, `parameters` and so on, as `pronk create` does"
        )
    return None


_Name = Annotated[str, Field(min_length=1, max_length=MAX_LABEL)]
_Word = Annotated[Text, Field(max_length=MAX_LABEL)]
_Digest = Annotated[str, BeforeValidator(read_digest)]
_Files = Annotated[dict[_Name, _Digest], Field(max_length=MAX_FILES)] | None
_Value = Annotated[Any, BeforeValidator(_parameter)]
_LeftBehind = Annotated[None, BeforeValidator(_left_behind)]


class _Streamed(ModelRequest):
    """What is answered with lines that say how far it is."""

    stream: bool | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer comes line by line, as it does unless refused."""
        return self.stream is not False


class TransferRequest(_Streamed):
    """`POST /api/pull` and `POST /api/push`."""

    insecure: bool | None = None


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    role: Annotated[Literal["system", "user", "assistant"], BeforeValidator(lower)]
    content: Text = ""


class CreateRequest(_Streamed):
    """`POST /api/create`."""

    source: Annotated[Text, Field(alias="from")] = ""
    files: _Files = None
    adapters: _Files = None
    template: Text = ""
    system: Text = ""
    license: Annotated[
        list[str],
        BeforeValidator(one_or_many),
        Field(max_length=MAX_LICENSES, default_factory=list[str]),
    ]
    parameters: Annotated[dict[_Name, _Value], Field(max_length=MAX_PARAMETERS)] | None = None
    messages: Annotated[list[_Message], Field(max_length=MAX_MESSAGES)] | None = None
    quantize: _Word = ""
    quantization: _Word = ""
    """What Ollama's first clients said for `quantize`."""
    renderer: _Word = ""
    parser: _Word = ""
    requires: _Word = ""
    modelfile: _LeftBehind = None
    path: _LeftBehind = None

    def recipe(self) -> Recipe:
        """The request as operations understand it."""
        return Recipe(
            from_model=self.source or None,
            files=self.files or {},
            adapters=self.adapters or {},
            template=self.template or None,
            system=self.system or None,
            license=tuple(text for text in self.license if text),
            parameters=self.parameters or {},  # None among them takes one away
            messages=tuple(
                ModelMessage(message.role, message.content) for message in self.messages or ()
            ),
            quantize=self.quantize or self.quantization or None,
            renderer=self.renderer or None,
            parser=self.parser or None,
            requires=self.requires or None,
        )


class CopyRequest(BaseModel):
    """`POST /api/copy`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    source: Annotated[str, Field(min_length=1)]
    destination: Annotated[str, Field(min_length=1)]


class DeleteRequest(ModelRequest):
    """`DELETE /api/delete`."""
