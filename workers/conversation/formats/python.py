"""Arguments as Python writes them: `(a="x", b=[1, None])`. Nothing of it is ever run."""

from __future__ import annotations

import ast
import math
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
