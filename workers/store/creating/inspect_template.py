"""A program that reads one template, its standard input, and says in a line of JSON whether a model
can be run with it.

It runs in a process of its own, because a text of some 100 kB can overflow the stack of what reads
Jinja, and that is the end of the process.
"""

from __future__ import annotations

import json
import sys

from ....protocol.errors import PronkError
from ...conversation.choice import validate
from .confinement import confine

SECONDS = 10


def _main() -> None:
    confine(memory=int(sys.argv[1]), seconds=SECONDS, written=0)
    try:
        validate(sys.stdin.buffer.read().decode())
        said = {"good": True}
    except PronkError as error:
        said = {"refused": error.message}
    except MemoryError:
        said = {"refused": "template: it takes too much memory"}
    print(json.dumps(said))


if __name__ == "__main__":
    _main()
