"""A process that looks at one template, with little memory and time, and says what it found.

Templates come from anybody. Standard input has one object: `order`, and the limits `memory` in
bytes and `seconds` of computing. Standard output gets the answer of `check_template`.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys

from .check import check_template


def main() -> None:
    """Reads one order, and writes what came of it."""
    said = json.load(sys.stdin)
    limits = {
        resource.RLIMIT_AS: said["memory"],
        resource.RLIMIT_CPU: said["seconds"],
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        with contextlib.suppress(ValueError, OSError):  # macOS knows no limit to address space
            resource.setrlimit(kind, (limit, limit))
    json.dump(check_template(said["order"]), sys.stdout)


if __name__ == "__main__":
    main()
