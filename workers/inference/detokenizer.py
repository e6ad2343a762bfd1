"""From token pieces to text, without ever splitting a character."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Decodes the bytes of one answer as they come.

    A token may end in the middle of a UTF-8 sequence: those bytes wait for the next one. Bytes that
    can no longer become a character turn into U+FFFD as soon as that is certain.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: bytes) -> str:
        """The text that is certain after `piece`."""
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What is left at the end of the answer: U+FFFD for a character that never completed."""
        return self._decoder.decode(b"", True)
