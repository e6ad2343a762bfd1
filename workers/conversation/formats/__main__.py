"""A process that looks at one template, with little memory and time, and says what it found.

Templates come from anybody. Standard input has one object: `order`, and the limits `memory` in
bytes and `seconds` of computing. Standard output gets the answer of `check_template`.
"""

from __future__ import annotations

from ..confinement import main
from .check import check_template

if __name__ == "__main__":
    main(check_template)
