"""Arguments as Python writes them: `(a="x", b=[1, None])`. Nothing of it is ever run."""

from __future__ import annotations

import ast
import math
import re
import warnings
from typing import Any

from .values import NotAValue

_LONGEST = 1 << 20
_WORDS = {"true": True, "false": False, "null": None}


def read_call(text: str) -> dict[str, Any]:
    """The arguments in brackets. Raises `NotAValue`."""
    if len(text) > _LONGEST:
        raise NotAValue("too long")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that mean nothing
            tree = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args:
            raise NotAValue("an argument without a name")
        return {_key(each): _value(each.value) for each in tree.keywords}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise NotAValue("no call") from error


def _key(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise NotAValue("an argument without a name")
    return keyword.arg


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | bool() | int() | None):
            return node.value
        case ast.Constant(value=float() as number) if math.isfinite(number):
            return number
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_value(key) if key else None for key in keys]
            if not all(isinstance(name, str) for name in names):
                raise NotAValue("a key that is no text")
            return dict(zip(names, map(_value, values), strict=True))
        case _:
            raise NotAValue("no plain value")


class Brackets:
    """Finds the bracket that closes the one at a position, in Python's syntax."""

    _NEXT = re.compile(r"[\"'()\[\]{}\\]")

    def __init__(self, position: int) -> None:
        self._position = position
        self._depth = 0
        self._quote = ""

    def end(self, text: str) -> int | None:
        """Where the bracket is closed; None while that is not to be seen."""
        while found := self._NEXT.search(text, self._position):
            character = found[0]
            self._position = found.end()
            if character == "\\":
                if found.end() >= len(text):
                    self._position = found.start()
                    return None
                self._position += 1
            elif self._quote:
                if character == self._quote:
                    self._quote = ""
            elif character in "\"'":
                self._quote = character
            elif character in "([{":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth == 0:
                    return found.end()
        self._position = len(text)
        return None
