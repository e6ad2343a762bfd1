"""Go's text/template, as far as Ollama's chat templates use it.

Templates come from anybody. What one can reach is the data that it is given, and functions of data;
source, nesting, steps, and everything that it writes or builds are bounded, so that it may be
rendered in a process that has other work.
"""

from .errors import GoTemplateError
from .running import Limits, Run
from .template import Template

__all__ = ["GoTemplateError", "Limits", "Run", "Template"]
