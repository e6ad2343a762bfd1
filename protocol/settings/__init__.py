"""Every setting of Pronk, in one typed class that each process reads for itself.

Values come from environment variables (`PRONK_…`), then from the TOML file that `PRONK_CONFIG`
names (same names in lower case, without the prefix, and tables for what has parts), then from the
defaults. Where Ollama has a variable for the same thing it is honoured when ours is not set.

`definition` is the class, `kinds` are the kinds of values in it, `sources` says where values come
from, and `loading` reads them and tells what is wrong.
"""

from .definition import DEFAULT_PORT, MIB, MOST_PARALLEL, Settings
from .loading import load_settings
from .sources import config_file

__all__ = [
    "DEFAULT_PORT",
    "MIB",
    "MOST_PARALLEL",
    "Settings",
    "config_file",
    "load_settings",
]
