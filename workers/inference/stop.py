"""Stop texts: where an answer ends although the model would go on."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.errors import Code, PronkError

MAX_STOP_CHARACTERS = 16 * 1024
"""Bound on all stop texts of one request together: each character costs a node of the trie."""


class StopMatcher:
    """Finds the first stop text in a stream, however the stream is cut into pieces.

    An Aho-Corasick automaton: its depth is the length of the longest end of the text so far that
    a stop text begins with, which is exactly what must be held back. The match that completes first
    wins; of several that complete together, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises `PronkError` when the stop texts are over `MAX_STOP_CHARACTERS` together."""
        stops = [stop for stop in stops if stop]
        if sum(map(len, stops)) > MAX_STOP_CHARACTERS:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"stop: all texts together may have {MAX_STOP_CHARACTERS} characters; send fewer",
            )
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self._depth = [0]
        self._match = [0]
        """Length of the longest stop text that ends at a node, 0 for none."""
        for stop in stops:
            self._insert(stop)
        self._link()
        self._active = bool(stops)
        self._node = 0
        self._held = ""
        self.matched = False

    def _insert(self, stop: str) -> None:
        node = 0
        for character in stop:
            child = self._children[node].get(character)
            if child is None:
                child = len(self._children)
                self._children[node][character] = child
                self._children.append({})
                self._fallback.append(0)
                self._depth.append(self._depth[node] + 1)
                self._match.append(0)
            node = child
        self._match[node] = len(stop)

    def _link(self) -> None:
        """Sets each node's fallback: the node of its longest end that is also a beginning."""
        queue = list(self._children[0].values())
        for node in queue:
            for character, child in self._children[node].items():
                self._fallback[child] = self._next(self._fallback[node], character)
                self._match[child] = self._match[child] or self._match[self._fallback[child]]
                queue.append(child)

    def _next(self, node: int, character: str) -> int:
        while True:
            child = self._children[node].get(character)
            if child is not None:
                return child
            if node == 0:
                return 0
            node = self._fallback[node]

    def push(self, text: str) -> str:
        """The text that may be shown now. After a match, `matched` is true and nothing follows."""
        if not self._active:
            return text
        if self.matched:
            return ""
        node = self._node
        for place, character in enumerate(text):
            node = self._next(node, character)
            if length := self._match[node]:
                self.matched = True
                seen = self._held + text[: place + 1]
                self._held = ""
                return seen[: len(seen) - length]
        self._node = node
        seen = self._held + text
        cut = len(seen) - self._depth[node]
        self._held = seen[cut:]
        return seen[:cut]

    def finish(self) -> str:
        """What was held back for a stop text that did not come."""
        held, self._held = self._held, ""
        self._node = 0
        return held
