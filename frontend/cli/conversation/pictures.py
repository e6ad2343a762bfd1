"""Pictures that a prompt names by their files, as `what is in ./llama.png?` does."""

from __future__ import annotations

import re
from pathlib import Path

from ....protocol.errors import Code, PronkError
from ....protocol.messages.fields import MAX_IMAGE, MAX_IMAGES

_BEGINS = re.compile(r"""(?<![\w/~.\\"'])(?P<quote>["']?)(?=(?:~|\.{1,2})?/)""")
_ENDS = re.compile(r"\.(?:png|jpe?g|webp|gif|bmp)\b", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(.)")

_MOST_TRIES = 1000
"""Names of files that are looked for in one prompt."""


def taken_out(prompt: str) -> tuple[str, dict[str, bytes]]:
    """The prompt without the names of pictures, and what these files hold, by name.

    A name begins with `/`, `./`, `../` or `~/`, and ends with a format that is known. It may be in
    quotes, and blanks in it may be escaped, as a shell or a terminal into which a file is dropped
    writes them. What names no file stays where it is. Raises `PronkError` for a file that cannot be
    read or is too large.
    """
    pictures: dict[str, bytes] = {}
    kept: list[str] = []
    done = tries = 0
    for begin in _BEGINS.finditer(prompt):
        if begin.start() < done:
            continue
        first = begin.end()
        line_end = prompt.find("\n", first)
        for end in _ENDS.finditer(prompt, first, line_end if line_end >= 0 else len(prompt)):
            tries += 1
            if tries > _MOST_TRIES:
                break
            quote = begin["quote"]
            if quote and not prompt.startswith(quote, end.end()):
                continue
            name = prompt[first : end.end()]
            path = _file(name) or _file(_ESCAPED.sub(r"\1", name))
            if path is None:
                continue
            pictures[name] = _content(name, path)
            kept.append(prompt[done : begin.start()])
            done = end.end() + len(quote)
            break
    if len(pictures) > MAX_IMAGES:
        raise PronkError(Code.INVALID_REQUEST, f"at most {MAX_IMAGES} pictures are sent at a time")
    return "".join([*kept, prompt[done:]]).strip() if pictures else prompt, pictures


def _file(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a NUL
        return None


def _content(name: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_IMAGE + 1)
    except OSError as error:
        raise PronkError(Code.INVALID_REQUEST, f"{name}: {error.strerror}") from None
    if len(content) > MAX_IMAGE:
        raise PronkError(
            Code.TOO_LARGE, f"{name}: a picture may have {MAX_IMAGE // 2**20} MiB; make it smaller"
        )
    return content
