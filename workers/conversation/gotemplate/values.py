"""What a template is given and works with.

| Go | here |
|---|---|
| `string`, `bool`, `int`, `float64` | `str`, `bool`, `int`, `float` |
| `uint8`, which is what a string is made of | `Byte` |
| `[]any` | `list` |
| a slice of something else, where nil and empty are the same | `Slice` |
| `map[string]any` | `dict` |
| a map with methods, or of something else | `Map` |
| a struct, or a pointer to one | `Struct` |
| a nil interface, as a field or an element may hold | `None` |
| no value at all, which an evaluated nil becomes | `NO_VALUE` |

Nothing else is ever reached by a template. Types of the caller's own derive from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, overload


class NoValue:
    """The type of `NO_VALUE`."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "NO_VALUE"


NO_VALUE: Final = NoValue()


class Byte(int):
    """A number from 0 to 255."""

    __slots__ = ()


Methods = Mapping[str, Callable[[Any], Any]]
"""What may be called on a value, without arguments, by name. `String` also says how it prints."""


class Slice(list[Any]):
    """A typed slice."""

    __slots__ = ()
    go_type: ClassVar[str] = "[]string"
    methods: ClassVar[Methods] = {}

    def json_form(self) -> Any:
        """What stands for it in JSON: nothing, where it has no elements."""
        return list(self) or None


class Window(Sequence[Any]):
    """A part of a list, which shares its entries: what `slice` gives."""

    __slots__ = ("_all", "_capacity", "_end", "_start")

    def __init__(self, of: list[Any], start: int, end: int, capacity: int) -> None:
        """`capacity`: up to where a slice of this one may reach."""
        self._all = of
        self._start = start
        self._end = end
        self._capacity = capacity

    @classmethod
    def on(cls, value: list[Any] | Window) -> Window:
        """All of a list, or a window itself."""
        return value if isinstance(value, Window) else cls(value, 0, len(value), len(value))

    @property
    def whole(self) -> list[Any]:
        """The list that it is a part of, whose type it has."""
        return self._all

    @property
    def capacity(self) -> int:
        """How far a slice of it may reach, counted from its own beginning."""
        return self._capacity - self._start

    def part(self, start: int, end: int, capacity: int) -> Window:
        """A part of it, or of what is behind it up to its capacity."""
        begin = self._start
        return Window(self._all, begin + start, begin + end, begin + capacity)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Any]: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return self._all[self._start : self._end][place]
        return self._all[self._start + place]

    def __len__(self) -> int:
        return self._end - self._start

    def __iter__(self) -> Iterator[Any]:
        return islice(self._all, self._start, self._end)


LISTS: Final = (list, Window)
"""What is a slice in Go."""


class Map(dict[str, Any]):
    """A typed map, or one with methods."""

    __slots__ = ()
    go_type: ClassVar[str] = "map[string]interface {}"
    methods: ClassVar[Methods] = {}

    def zero(self) -> Any:
        """What a key stands for that is not there."""
        return None


class Struct:
    """A struct: its fields in their order. What is not among them is an error to name."""

    __slots__ = ("fields",)
    go_type: ClassVar[str] = "struct {}"
    is_pointer: ClassVar[bool] = False
    methods: ClassVar[Methods] = {}
    json_names: ClassVar[Mapping[str, str]] = {}
    """A field's name in JSON, where it is another."""
    json_omits: ClassVar[frozenset[str]] = frozenset()
    """Fields that are left out of JSON where they are empty."""

    def __init__(self, **fields: Any) -> None:
        self.fields: dict[str, Any] = fields


def methods_of(value: object) -> Methods:
    """What may be called on a value."""
    if isinstance(value, Window):
        value = value.whole
    return value.methods if isinstance(value, (Struct, Map, Slice)) else {}


def type_name(value: object) -> str:
    """What Go calls the type of a value."""
    match value:
        case str():
            return "string"
        case bool():
            return "bool"
        case Byte():
            return "uint8"
        case int():
            return "int"
        case float():
            return "float64"
        case Struct():
            return ("*" if value.is_pointer else "") + value.go_type
        case Slice() | Map():
            return value.go_type
        case Window():
            return type_name(value.whole)
        case list():
            return "[]interface {}"
        case dict():
            return "map[string]interface {}"
        case _:
            return "nil"
