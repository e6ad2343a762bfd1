"""A program that looks at one file, its standard input, and says in a line of JSON what it is.

    {"facts": {…}}     what there is to know of a file to make a model of it, or
    {"gguf": true}     asked with `stored`, whether the file is a GGUF file that may be kept, or
    {"refused": "why"}

It runs in a process of its own, which may die of the file, and which holds nothing but the file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from io import FileIO

from ..gguf_metadata import InvalidGGUF
from .confinement import confine
from .gguf_check import check_file, check_stored

SECONDS = 60
STORED = "stored"
"""Asks whether a file may be kept, and not what can be made of it."""


def _main() -> None:
    confine(memory=int(sys.argv[1]), seconds=SECONDS, written=0)
    try:
        with FileIO(sys.stdin.fileno(), closefd=False) as file:
            if STORED in sys.argv[2:]:
                said = {"gguf": check_stored(file)}
            else:
                said = {"facts": asdict(check_file(file))}
    except InvalidGGUF as error:
        said = {"refused": str(error)}
    except MemoryError:
        said = {"refused": "its header takes too much memory"}
    except OSError as error:
        said = {"refused": f"it cannot be read ({error.strerror})"}
    print(json.dumps(said))


if __name__ == "__main__":
    _main()
