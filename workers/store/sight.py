"""Whether a model sees: it does by a projector that has a part for images."""

from __future__ import annotations

from .files import UNCHANGING, Damaged, Remembered
from .gguf_metadata import InvalidGGUF, read_header
from .layout import Layer, Library, StoredModel

_KEY = "clip.has_vision_encoder"


class Projectors:
    """What the projectors of a library are for, each file read once. For any thread."""

    def __init__(self, library: Library, most: int) -> None:
        """Remembers `most` files."""
        self._library = library
        self._known: Remembered[bool] = Remembered(most)

    def see(self, model: StoredModel) -> bool:
        """Whether one of the model's projectors is for images.

        One that cannot be read is for nothing; loading the model will say what is wrong with it.
        """
        return any(self._sees(layer) for layer in model.layers if layer.kind == "projector")

    def _sees(self, layer: Layer) -> bool:
        known = self._known.get(layer.digest, UNCHANGING)
        if known is None:
            try:
                header = read_header(self._library.part(layer))
            except (Damaged, InvalidGGUF):
                return False
            known = header.metadata.get(_KEY) is True
            self._known.keep(layer.digest, UNCHANGING, known)
        return known
