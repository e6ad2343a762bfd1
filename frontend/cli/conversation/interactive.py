"""The loop of a conversation."""

from __future__ import annotations

import os

from ....protocol.errors import PronkError
from ..terminal import say, tell
from .commands import Commands
from .output import Output
from .pictures import taken_out
from .reading import Reader, default_history
from .session import Session

QUOTES = '"""'
PROMPT, MORE = ">>> ", "... "
HINT = "Send a message (/? for help)"
HOW_TO_LEAVE = "Use Ctrl + d or /bye to exit."


def talk(session: Session, reader: Reader | None = None) -> None:
    """Reads lines and answers them, until the person leaves.

    Ctrl-C ends an answer, or what was begun to be written. An error ends neither.
    """
    if reader is None:
        reader = Reader(default_history())
        reader.remembers = os.environ.get("OLLAMA_NOHISTORY", "").lower() in ("", "0", "false")
    commands = Commands(session, reader)
    repeat(session)
    say(HINT)
    while not commands.ended:
        try:
            text = _read(reader)
        except EOFError:
            say()
            return
        except KeyboardInterrupt:
            say(f"\n{HOW_TO_LEAVE}")
            continue
        try:
            if text.startswith("/") and not _names_picture(session, text):
                commands.do(text)
            elif text.strip():
                session.say(text)
        except PronkError as error:
            tell(f"Error: {error.message}")
        except KeyboardInterrupt:
            say()


def _names_picture(session: Session, line: str) -> bool:
    """Whether a line that begins like a command begins with the path of a picture instead."""
    return session.sees and not taken_out(line)[0].startswith("/")


def repeat(session: Session) -> None:
    """Prints the messages with which the model begins each conversation."""
    for message in session.preset:
        if message["role"] == "user":
            say(f"{PROMPT}{message['content']}")
        elif message["role"] == "assistant":
            output = Output(session.wraps)
            output.text(message["content"])
            output.close()


def _read(reader: Reader) -> str:
    """A line, or what stands between triple quotes: alone, or behind `/set system`."""
    line = reader.read(PROMPT)
    begin, quotes, rest = line.partition(QUOTES)
    if not quotes or (begin and not begin.startswith("/set system ")):
        return line
    pieces = [rest]
    while not pieces[-1].endswith(QUOTES):
        pieces.append(reader.read(MORE))
    return begin + "\n".join(pieces)[: -len(QUOTES)]
