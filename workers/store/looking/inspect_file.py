"""A program that looks at one file, its standard input, and says in a line of JSON what it is.

    {"facts": {…}}     what there is to know of a file to make a model of it, or
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
from .gguf_check import check_file

SECONDS = 60


def _main() -> None:
    confine(memory=int(sys.argv[1]), seconds=SECONDS, written=0)
    try:
        with FileIO(sys.stdin.fileno(), closefd=False) as file:
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
