"""The images of one request, from its body to the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.errors import Code, PronkError
from ...protocol.messages.generation import GenerateBody
from ..conversation.fitting import Tokenizer
from ..conversation.markers import Markers, SeeingTokenizer
from .pictures import Picture, Pictures
from .rows import image_of

if TYPE_CHECKING:  # a blank worker imports this, and takes hold of no device
    from .sight import Layout, Sight


class Views:
    """What a request shows to the model. Without images there is nothing in it."""

    def __init__(
        self,
        body: GenerateBody,
        sight: Sight | None,
        batch: int,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """Looks at every image of a request, for a model with this `sight` that computes at most
        `batch` rows at once. `go_on` is called before each image, and raises where nobody waits
        for the answer any more.

        Raises `PronkError` (INVALID_REQUEST) where one cannot be read, or the model is blind.
        """
        self._sight, self._batch, self._go_on = sight, batch, go_on
        self._markers = Markers()
        self.body = self._markers.with_markers(body)
        """The request with markers in place of images."""
        images = self._markers.images
        if images and sight is None:
            raise PronkError(Code.INVALID_REQUEST, "the model does not support images")
        self._layouts: dict[str, Layout] = {}
        for marker, image in images.items():
            assert sight
            self._go_on()
            self._layouts[marker] = sight.layout(image)

    def tokenizer(self, tokenizer: Tokenizer) -> Tokenizer:
        """`tokenizer`, which finds the images again."""
        numbers = {marker: layout.numbers for marker, layout in self._layouts.items()}
        return SeeingTokenizer.of(tokenizer, self._markers, numbers)

    def pictures(self, prompt: list[int]) -> Pictures | None:
        """The images that are in the prompt, encoded; None where there is none.

        Raises `PronkError`.
        """
        if self._sight is None or not self._layouts:
            return None
        wanted = {image_of(number)[0] for number in prompt if number < 0}
        found: dict[int, Picture] = {}
        for marker, layout in reversed(self._layouts.items()):  # the last one is still open
            if wanted.intersection(layout.keys).difference(found):
                self._go_on()
                found |= self._sight.pictures(self._markers.images[marker], layout)
        largest = max((len(each.numbers) for each in found.values() if each.at_once), default=0)
        if largest > self._batch:
            raise PronkError(
                Code.INVALID_REQUEST,
                f"images: one takes {largest} tokens, which have to be computed at once, and the "
                f"model computes {self._batch}; make it smaller",
            )
        return Pictures(prompt, found) if found else None
