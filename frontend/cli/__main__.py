"""Makes `python -m pronk.frontend.cli` the same as `pronk`, wherever the command is installed."""

from . import main

main()
