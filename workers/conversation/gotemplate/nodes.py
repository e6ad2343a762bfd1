"""What a template is made of, once it was read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# --- operands: what gives a value


@dataclass(frozen=True, slots=True)
class Dot:
    """`.`, the value that the surrounding block is about."""


@dataclass(frozen=True, slots=True)
class Nil:
    """`nil`, which is good as an argument only."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A string, number or truth value."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Field:
    """`.A.B`: fields of dot."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """`$x.A.B`: a variable, or fields of one."""

    name: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """`(…).A.B`: fields of what a pipeline or function gives."""

    operand: Operand
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Command:
    """An operand with its arguments."""

    line: int
    operand: Operand
    arguments: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each of which gets the value of the one before as its last argument."""

    line: int
    commands: tuple[Command, ...]
    variables: tuple[str, ...] = ()
    """What the value is kept in; two for a range's index and element."""
    assigns: bool = False
    """Whether the variables are there already."""


Operand = Dot | Nil | Constant | Field | Variable | Chain | Function | Pipeline


# --- statements: what writes


@dataclass(frozen=True, slots=True)
class Text:
    """Text to be written as it is."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline whose value is written, unless it goes into a variable."""

    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class Branch:
    """`if`, `with` or `range`, and what is done otherwise."""

    word: str
    parts: tuple[tuple[Pipeline, Block], ...]
    """Conditions and bodies, those of each `else if` too. A range has one."""
    otherwise: Block | None


@dataclass(frozen=True, slots=True)
class Call:
    """Another template, rendered in place with the pipeline's value as its dot."""

    line: int
    name: str
    pipeline: Pipeline | None


@dataclass(frozen=True, slots=True)
class Leave:
    """`break` or `continue`."""

    word: str


Statement = Text | Action | Branch | Call | Leave


@dataclass(frozen=True, slots=True)
class Block:
    """Statements, one after the other."""

    statements: tuple[Statement, ...] = field(default=())

    @property
    def is_blank(self) -> bool:
        """Whether it writes nothing but space."""
        return all(isinstance(s, Text) and not s.text.strip() for s in self.statements)


def names_in(node: Operand | Command | Statement | Block | None) -> Iterator[str]:
    """The names of all fields, and of all variables with their dollar, that a node mentions."""
    match node:
        case Field(names):
            yield from names
        case Variable(name, fields):
            yield name
            yield from fields
        case Chain(operand, fields):
            yield from names_in(operand)
            yield from fields
        case Command(_, operand, arguments):
            yield from names_in(operand)
            for argument in arguments:
                yield from names_in(argument)
        case Pipeline():
            for command in node.commands:
                yield from names_in(command)
        case Action(pipeline) | Call(_, _, pipeline):
            yield from names_in(pipeline)
        case Branch(_, parts, otherwise):
            for pipeline, body in parts:
                yield from names_in(pipeline)
                yield from names_in(body)
            yield from names_in(otherwise)
        case Block(statements):
            for statement in statements:
                yield from names_in(statement)
        case _:
            pass
