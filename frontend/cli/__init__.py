"""The `pronk` command: serve, demo, and what an operator asks for.

`pronk serve` checks the settings (`checks`), renders the processes' description (`rendering`) and
becomes supervisord (`supervisord`), beside which a `listener` watches over start and failure and
says the few things that belong on a `console`.
"""

from __future__ import annotations


def main() -> None:
    """Runs the command that the arguments name."""
    from .app import app

    app()
