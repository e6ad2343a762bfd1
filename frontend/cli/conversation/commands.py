"""The lines of a conversation that begin with a slash."""

from __future__ import annotations

import re
from collections.abc import Callable

from ....protocol.errors import Code, PronkError
from .. import showing
from ..parameters import Value, add_parameter, is_list, names
from ..terminal import say
from .reading import Reader
from .run import THINK_LEVELS, read_format
from .session import Session

HELP = """\
Available Commands:
  /set            Set session variables
  /show           Show model information
  /load <model>   Load another model
  /save <model>   Save the current session as a model
  /clear          Forget what was said so far
  /bye            Exit
  /?, /help       Help for a command
  /? shortcuts    Help for keyboard shortcuts

Use \"\"\" to begin a multi-line message, and \"\"\" to end it.
"""

SET_HELP = """\
Available Commands:
  /set parameter <name> <value>  Set a parameter; without a name, list them
  /set system <text>             Set the system message
  /set format json               Have answers in JSON; or a JSON schema
  /set noformat                  Have answers in any form
  /set verbose                   Show how long answers take
  /set quiet                     Do not show it
  /set wordwrap                  Keep words whole at the end of a line
  /set nowordwrap                Break lines where the terminal does
  /set history                   Keep what you write for later
  /set nohistory                 Do not keep it
  /set think                     Have the model think; or max, high, medium, low
  /set nothink                   Have it answer at once
"""

SHOW_HELP = """\
Available Commands:
  /show info         Show what there is to know about the model
  /show license      Show its license
  /show modelfile    Show its Modelfile
  /show parameters   Show its parameters, and those of this session
  /show system       Show the system message
  /show template     Show its template
"""

SHORTCUTS = """\
Available keyboard shortcuts:
  Ctrl + a            Move to the beginning of the line
  Ctrl + e            Move to the end of the line
  Alt + b             Move back one word
  Alt + f             Move forward one word
  Ctrl + k            Delete to the end of the line
  Ctrl + u            Delete to the beginning of the line
  Ctrl + w            Delete the word before the cursor
  Ctrl + r            Search in what you wrote before
  Ctrl + l            Clear the screen
  Ctrl + c            Stop the answer
  Ctrl + d            Exit
"""

_WORDS = re.compile(r'"[^"]*"|\S+')
"""Those in quotes may have blanks in them."""

_HELPS = {"set": SET_HELP, "show": SHOW_HELP, "shortcuts": SHORTCUTS}


class Commands:
    """What can be said to the command itself instead of to the model."""

    def __init__(self, session: Session, reader: Reader) -> None:
        self._session = session
        self._reader = reader
        self.ended = False
        """Whether the person has left."""

    def do(self, line: str) -> None:
        """Carries out one line. Raises `PronkError` with what was wrong."""
        name, _, rest = line[1:].partition(" ")
        known: dict[str, Callable[[str], None]] = {
            "set": self._set,
            "show": self._show,
            "load": self._load,
            "save": self._save,
            "clear": self._clear,
            "bye": self._leave,
            "exit": self._leave,
            "?": self._help,
            "help": self._help,
        }
        if command := known.get(name):
            command(rest.strip())
        else:
            say(f"Unknown command '/{name}'. Type /? for help")

    def _help(self, about: str) -> None:
        say(_HELPS.get(about.removeprefix("/"), HELP))

    def _leave(self, _: str) -> None:
        self.ended = True

    def _clear(self, _: str) -> None:
        self._session.messages = []
        say("Cleared session context")

    def _load(self, name: str) -> None:
        if not name:
            say("Usage:\n  /load <model>")
            return
        session = self._session
        before = session.model, session.preset, session.sees
        try:
            say(f"Loading model '{name}'")
            self._session.model = name
            self._session.fetch()
            self._session.load()
        except (PronkError, KeyboardInterrupt):
            session.model, session.preset, session.sees = before
            raise
        self._session.messages, self._session.system = [], None

    def _save(self, name: str) -> None:
        if not name:
            say("Usage:\n  /save <model>")
            return
        self._session.save(name)
        say(f"Created new model '{name}'")

    def _set(self, text: str) -> None:
        what, _, value = text.partition(" ")
        session = self._session
        match what:
            case "parameter":
                self._set_parameter(value.strip())
            case "system" if value:
                session.system = _unquoted(value)
                say("Set system message.")
            case "format" if value:
                session.format = read_format(value)
                say("Set format to 'json' mode." if session.format == "json" else "Set format.")
            case "noformat":
                session.format = None
                say("Disabled format.")
            case "verbose" | "quiet":
                session.verbose = what == "verbose"
                say(f"Set '{what}' mode.")
            case "wordwrap" | "nowordwrap":
                session.wraps = what == "wordwrap"
                say(f"Set '{what}' mode.")
            case "history" | "nohistory":
                self._reader.remembers = what == "history"
                say(f"Set '{what}' mode.")
            case "think" if value in ("", *THINK_LEVELS):
                session.think = value or True
                say("Set 'think' mode." if not value else f"Set 'think' mode to '{value}'.")
            case "nothink":
                session.think = False
                say("Set 'nothink' mode.")
            case _:
                say(SET_HELP)

    def _set_parameter(self, text: str) -> None:
        name, _, value = text.partition(" ")
        if not name:
            say("Available Parameters:\n" + "\n".join(f"  {each}" for each in names()))
            return
        values: dict[str, Value] = {}
        try:
            for each in (_WORDS.findall(value) or [""]) if is_list(name) else [value]:
                if not each:
                    raise ValueError("has no value")
                add_parameter(values, name, _unquoted(each))
        except ValueError as error:
            raise PronkError(Code.INVALID_REQUEST, f"parameter {name[:40]} {error}") from None
        self._session.options |= values
        say(f"Set parameter '{name}' to '{value}'")

    def _show(self, part: str) -> None:
        if part != "info" and part not in showing.PARTS:
            say(SHOW_HELP)
            return
        shown = showing.fetch(self._session.api, self._session.model)
        if part == "info":
            say(showing.sections(shown), end="")
            return
        text = showing.part_of(shown, part)
        if part == "system" and self._session.system:
            text = self._session.system
        if part == "parameters" and self._session.options:
            own = [f"{name:<30} {value}" for name, value in self._session.options.items()]
            text = "\n".join([*([f"{text}\n"] if text else []), "Set in this session:", *own])
        say(text or f"This model has no {part}.")


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text.startswith('"') and text.endswith('"')
    return text[1:-1] if quoted else text
