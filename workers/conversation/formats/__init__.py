"""How a model writes its answers: found out from its template, and read as they come."""

from .derive import derive
from .description import Calls, Format, Markers, Reasoning
from .parser import AnswerParser
from .said import Call, Content, Said, Thinking

__all__ = [
    "AnswerParser",
    "Call",
    "Calls",
    "Content",
    "Format",
    "Markers",
    "Reasoning",
    "Said",
    "Thinking",
    "derive",
]
