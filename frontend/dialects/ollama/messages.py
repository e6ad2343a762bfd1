"""What a conversation consists of in Ollama's requests: messages, calls, tools, images.

As in Ollama a call's arguments are an object; as in OpenAI's API they may be its JSON text. The
place of a call in its list is its index, whatever the request says.
"""

from __future__ import annotations

import binascii
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from ....protocol.messages.fields import MAX_IMAGE, MAX_IMAGES, MAX_TOOLS, only_json
from ....protocol.messages.generation import ChatMessage, ToolCall

_LEVELS = ("low", "medium", "high", "max")


def lower(value: object) -> object:
    """A word in small letters: roles are written as clients like."""
    return value.lower() if isinstance(value, str) else value


def _empty_for_null(value: object) -> object:
    return "" if value is None else value


def _arguments(value: object) -> dict[str, Any]:
    if isinstance(value, str) and value:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise ValueError("must be an object, or the JSON text of one") from None
    if value is None or value == "":
        return {}
    if not isinstance(value, dict):
        raise ValueError("must be an object, or the JSON text of one")
    return only_json(value)


def _image(value: object) -> bytes:
    """The bytes of an image: base64, or a data: URL with it."""
    if not isinstance(value, str):
        raise ValueError("must be base64 text")
    if value[:5].lower() == "data:":
        head, _, value = value.partition(",")
        if not head.lower().endswith(";base64"):
            raise ValueError("a data: URL must be in base64")
    if len(value) > MAX_IMAGE // 3 * 4 + 4:
        raise ValueError(f"an image may have {MAX_IMAGE} bytes")
    if "\n" in value or "\r" in value:
        value = value.replace("\n", "").replace("\r", "")
    try:
        image = binascii.a2b_base64(value, strict_mode=True)
    except ValueError:  # what is no ASCII, too
        raise ValueError("is not base64") from None
    if not image:
        raise ValueError("the image is empty")
    return image


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as it was sent, with its type."""
    if tool.get("type") not in (None, "", "function"):
        raise ValueError('its type must be "function"')
    function = tool.get("function")
    if not isinstance(function, dict):
        raise ValueError("its function must be an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("its function.name must be a text that is not empty")
    if not isinstance(function.get("description"), str | None):
        raise ValueError("its function.description must be a text")
    if not isinstance(function.get("parameters"), dict | None):
        raise ValueError("its function.parameters must be an object: a JSON schema")
    return only_json({**tool, "type": "function"})


def read_think(value: object) -> object:
    """Whether to think, or how much. Raises `ValueError` for anything else."""
    if value is None or isinstance(value, bool) or value in _LEVELS:
        return value
    raise ValueError('must be true, false, "low", "medium", "high" or "max"')


Text = Annotated[str, BeforeValidator(_empty_for_null)]
"""A text; null is an empty one."""

Images = (
    Annotated[list[Annotated[bytes, BeforeValidator(_image)]], Field(max_length=MAX_IMAGES)] | None
)
"""Images in base64, as their bytes."""

Tools = (
    Annotated[list[Annotated[dict[str, Any], AfterValidator(_tool)]], Field(max_length=MAX_TOOLS)]
    | None
)
"""Functions that the model may call, as JSON has them."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Called(_Part):
    name: Annotated[str, Field(min_length=1)]
    arguments: Annotated[dict[str, Any], BeforeValidator(_arguments)] = {}


class _Call(_Part):
    id: Text = ""
    function: _Called | None = None
    """Without one, the call means nothing, and is left out."""


class Message(_Part):
    """One message of a history."""

    role: Annotated[
        Literal["system", "user", "assistant", "tool"],
        BeforeValidator(lower),
    ]
    content: Text = ""
    images: Images = None
    thinking: Text = ""
    tool_calls: list[_Call] | None = None
    tool_name: Text = ""
    tool_call_id: Text = ""

    def message(self) -> ChatMessage:
        """The message as operations understand it."""
        return ChatMessage(
            self.role,
            self.content,
            self.thinking,
            [
                ToolCall(call.function.name, call.function.arguments, call.id)
                for call in self.tool_calls or ()
                if call.function
            ],
            self.tool_name,
            self.tool_call_id,
            self.images or [],
        )
