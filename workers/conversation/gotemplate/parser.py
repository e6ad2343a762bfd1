"""From tokens to a tree, by the grammar of Go's text/template."""

from __future__ import annotations

from collections.abc import Collection

from . import literals
from .errors import Fault, GoTemplateError
from .lexer import Kind, Token, tokens
from .nodes import (
    Action,
    Block,
    Branch,
    Call,
    Chain,
    Command,
    Constant,
    Dot,
    Field,
    Function,
    Leave,
    Nil,
    Operand,
    Pipeline,
    Statement,
    Text,
    Variable,
)
from .running import MAX_VARIABLES

MAX_SOURCE = 64 * 1024
"""Characters of a template."""
MAX_NESTING = 60
"""Blocks within blocks, and parentheses within parentheses."""

MAIN = ""
"""The name of the template that is rendered."""

_STARTS = frozenset(
    (
        *(Kind.DOT, Kind.NIL, Kind.BOOL, Kind.FIELD, Kind.VARIABLE, Kind.IDENTIFIER),
        *(Kind.STRING, Kind.CHARACTER, Kind.NUMBER, Kind.OPEN),
    )
)
"""What an operand begins with."""
_NOT_CALLABLE = (Dot, Nil, Constant)


def read(source: str, functions: Collection[str]) -> dict[str, Block]:
    """The templates of a source by name: `MAIN`, and what it defines.

    Raises `GoTemplateError`, also where a function is not among `functions`.
    """
    if len(source) > MAX_SOURCE:
        raise GoTemplateError(1, f"it has more than {MAX_SOURCE} characters")
    return _Parser(source, functions).run()


class _Parser:
    def __init__(self, source: str, functions: Collection[str]) -> None:
        self._tokens = tokens(source)
        self._at = 0
        self._functions = functions
        self._templates: dict[str, Block] = {}
        self._variables = ["$"]
        self._ranges = 0
        """Ranges around here, within one template."""
        self._depth = 0

    def run(self) -> dict[str, Block]:
        statements: list[Statement] = []
        while self._peek().kind is not Kind.END:
            if self._is_definition():
                self._definition()
            else:
                word = self._statement(statements)
                if word:
                    raise self._error(f"{{{{{word}}}}} stands outside of any block")
        self._add(MAIN, Block(tuple(statements)))
        return self._templates

    # --- tokens

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _peek_word(self) -> Token:
        """The next token that is no space."""
        while self._tokens[self._at].kind is Kind.SPACE:
            self._at += 1
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind is not Kind.END:
            self._at += 1
        return token

    def _next_word(self) -> Token:
        self._peek_word()
        return self._next()

    def _expect(self, kind: Kind, where: str) -> Token:
        token = self._next_word()
        if token.kind is not kind:
            raise self._unexpected(token, where)
        return token

    def _error(self, reason: str, token: Token | None = None) -> GoTemplateError:
        return GoTemplateError((token or self._tokens[max(self._at - 1, 0)]).line, reason)

    def _unexpected(self, token: Token, where: str) -> GoTemplateError:
        what = "the end" if token.kind is Kind.END else token.text[:20]
        return self._error(f"{what} is not expected in {where}", token)

    # --- blocks

    def _is_definition(self) -> bool:
        if self._peek().kind is not Kind.LEFT:
            return False
        place = self._at + 1
        while self._tokens[place].kind is Kind.SPACE:
            place += 1
        token = self._tokens[place]
        return token.kind is Kind.KEYWORD and token.text == "define"

    def _definition(self) -> None:
        self._next()
        self._next_word()
        name = self._template_name("define")
        self._expect(Kind.RIGHT, "define")
        self._separate(name)

    def _separate(self, name: str) -> None:
        """The body of a template of its own, which sees no variable from around it."""
        kept = self._variables, self._ranges
        self._variables, self._ranges = ["$"], 0
        self._enter()
        body, word = self._body()
        self._depth -= 1
        if word != "end":
            raise self._error(f"{{{{else}}}} is not expected in template {name!r}")
        self._variables, self._ranges = kept
        self._add(name, body)

    def _add(self, name: str, body: Block) -> None:
        known = self._templates.get(name)
        if known is None or known.is_blank:
            self._templates[name] = body
        elif not body.is_blank:
            raise self._error(
                f"template {name!r} is defined twice" if name else "it has two main parts"
            )

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._error(f"it is nested more than {MAX_NESTING} times")

    def _body(self) -> tuple[Block, str]:
        """Statements up to `end` or `else`, and which of these it was."""
        statements: list[Statement] = []
        while self._peek_word().kind is not Kind.END:
            word = self._statement(statements)
            if word:
                return Block(tuple(statements)), word
        raise self._error("an {{end}} is missing", self._peek())

    def _statement(self, statements: list[Statement]) -> str:
        """Adds one statement, or returns `end` or `else` where that was it."""
        token = self._next_word()
        if token.kind is Kind.TEXT:
            statements.append(Text(token.line, token.text))
            return ""
        if token.kind is not Kind.LEFT:
            raise self._unexpected(token, "a template")
        token = self._peek_word()
        if token.kind is not Kind.KEYWORD:
            statements.append(Action(self._pipeline("an action", Kind.RIGHT)))
            return ""
        self._next()
        match token.text:
            case "end":
                self._expect(Kind.RIGHT, "end")
                return "end"
            case "else":
                following = self._peek_word()
                if following.kind is not Kind.KEYWORD or following.text not in ("if", "with"):
                    self._expect(Kind.RIGHT, "else")
                return "else"
            case "if" | "with" | "range":
                statements.append(self._branch(token.text))
            case "block" | "template":
                statements.append(self._call(token))
            case "break" | "continue":
                self._expect(Kind.RIGHT, token.text)
                if not self._ranges:
                    raise self._error(f"{{{{{token.text}}}}} stands outside of any range", token)
                statements.append(Leave(token.text))
            case _:
                raise self._unexpected(token, "a block")
        return ""

    def _branch(self, word: str) -> Branch:
        """A branch, its first keyword read already."""
        before = len(self._variables)
        parts: list[tuple[Pipeline, Block]] = []
        otherwise: Block | None = None
        self._enter()
        while True:
            pipeline = self._pipeline(word, Kind.RIGHT)
            self._ranges += word == "range"
            body, ended = self._body()
            self._ranges -= word == "range"
            parts.append((pipeline, body))
            if ended == "end":
                break
            following = self._peek_word()
            if following.kind is Kind.KEYWORD and self._tokens[self._at - 1].kind is not Kind.RIGHT:
                if following.text != word:
                    raise self._unexpected(following, "else")
                self._next()
                continue
            otherwise, ended = self._body()
            if ended != "end":
                raise self._error("an {{else}} follows an {{else}}")
            break
        self._depth -= 1
        del self._variables[before:]
        return Branch(word, tuple(parts), otherwise)

    def _call(self, token: Token) -> Call:
        name = self._template_name(token.text)
        if token.text == "template":
            if self._peek_word().kind is Kind.RIGHT:
                self._next()
                return Call(token.line, name, None)
            return Call(token.line, name, self._pipeline("template", Kind.RIGHT))
        pipeline = self._pipeline("block", Kind.RIGHT)
        self._separate(name)
        return Call(token.line, name, pipeline)

    def _template_name(self, where: str) -> str:
        return self._unquoted(self._expect(Kind.STRING, where))

    def _unquoted(self, token: Token) -> str:
        try:
            return literals.unquoted(token.text)
        except Fault as fault:
            raise self._error(str(fault), token) from None

    # --- pipelines

    def _pipeline(self, where: str, end: Kind) -> Pipeline:
        line = self._peek_word().line
        variables, assigns = self._declarations(where)
        commands: list[Command] = []
        while True:
            token = self._peek_word()
            if token.kind is end:
                self._next()
                break
            if token.kind not in _STARTS:
                raise self._unexpected(token, where)
            command = self._command()
            if commands and isinstance(command.operand, _NOT_CALLABLE):
                raise self._error("a value that is no function stands behind |", token)
            commands.append(command)
        if not commands:
            raise self._error(f"{where} has no value")
        return Pipeline(line, tuple(commands), tuple(variables), assigns)

    def _declarations(self, where: str) -> tuple[list[str], bool]:
        variables: list[str] = []
        while self._peek_word().kind is Kind.VARIABLE:
            begun = self._at
            name = self._next().text
            token = self._peek_word()
            if token.kind in (Kind.ASSIGN, Kind.DECLARE):
                self._next()
                variables.append(name)
                self._declare(name)
                return variables, token.kind is Kind.ASSIGN
            if token.kind is not Kind.COMMA:
                self._at = begun
                break
            self._next()
            variables.append(name)
            self._declare(name)
            following = self._peek_word().kind
            if where != "range" or len(variables) > 1:
                raise self._error(f"{where} takes fewer variables", token)
            if following not in (Kind.VARIABLE, Kind.RIGHT, Kind.CLOSE):
                raise self._error("range gives values to variables only", token)
        return variables, False

    def _declare(self, name: str) -> None:
        if name not in self._variables:
            self._variables.append(name)
        if len(self._variables) > MAX_VARIABLES:
            raise self._error(f"it has more than {MAX_VARIABLES} variables")

    def _command(self) -> Command:
        token = self._peek_word()
        operands: list[Operand] = []
        while True:
            operand = self._operand()
            if operand is not None:
                operands.append(operand)
            following = self._next()
            if following.kind is Kind.SPACE:
                continue
            if following.kind in (Kind.RIGHT, Kind.CLOSE):
                self._at -= 1
            elif following.kind is not Kind.PIPE:
                raise self._unexpected(following, "a command")
            break
        if not operands:
            raise self._error("a command is empty", token)
        return Command(token.line, operands[0], tuple(operands[1:]))

    def _operand(self) -> Operand | None:
        token = self._peek_word()
        operand = self._term()
        if operand is None:
            return None
        fields: list[str] = []
        while self._peek().kind is Kind.FIELD:
            fields.append(self._next().text)
        if not fields:
            return operand
        match operand:
            case Field(names):
                return Field((*names, *fields))
            case Variable(name, before):
                return Variable(name, (*before, *fields))
            case Pipeline() | Function():
                return Chain(operand, tuple(fields))
            case _:
                raise self._error(f"{token.text[:20]} has no fields", token)

    def _term(self) -> Operand | None:
        token = self._peek_word()
        if token.kind not in _STARTS:
            return None
        self._next()
        match token.kind:
            case Kind.IDENTIFIER:
                if token.text not in self._functions:
                    raise self._error(f"there is no function {token.text[:40]}", token)
                return Function(token.text)
            case Kind.DOT:
                return Dot()
            case Kind.NIL:
                return Nil()
            case Kind.BOOL:
                return Constant(token.text == "true")
            case Kind.VARIABLE:
                if token.text not in self._variables:
                    raise self._error(f"there is no variable {token.text[:40]} here", token)
                return Variable(token.text)
            case Kind.FIELD:
                return Field((token.text,))
            case Kind.STRING:
                return Constant(self._unquoted(token))
            case Kind.OPEN:
                self._enter()
                pipeline = self._pipeline("parentheses", Kind.CLOSE)
                self._depth -= 1
                return pipeline
            case _:
                read = literals.character if token.kind is Kind.CHARACTER else literals.number
                try:
                    return Constant(read(token.text))
                except Fault as fault:
                    raise self._error(str(fault), token) from None
