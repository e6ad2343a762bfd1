"""How a model sees: its projector, which turns images into rows of numbers for the model.

The projector is llama.cpp's `mtmd`, with weights and a compute buffer of its own. It shares nothing
with the model's context and computes beside it, in the thread that prepares the request: streams
go on while an image is encoded. One image at a time is decoded and encoded, which bounds the memory
for pixels.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import mtmd_cpp

from ...protocol.errors import Code, PronkError
from .image_files import BadImage, decode_image
from .llama import Model, native_log, take_log
from .pictures import Picture
from .rows import MAX_ROWS, image_rows

_m: Any = mtmd_cpp  # its stubs describe what ctypes takes only in part

MOST_KEPT = 256 * 2**20
"""Bytes of encoded images that are kept for the next turn of their conversations."""

_MOST_LAYOUTS = 4096

_TEXT, _IMAGE = 0, 1
"""`mtmd_input_chunk_type`"""

_DIMENSIONS = 4
"""Of a position, where a model has positions in several dimensions."""

_m.mtmd_log_set(take_log, None)
_m.mtmd_helper_log_set(take_log, None)


class Blind(Exception):
    """A projector is for something else than images."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands in a prompt for an image: tokens of the model's own, and rows."""

    numbers: list[int]
    keys: tuple[int, ...]
    """Of the images that it is for the model: some models are shown parts of it."""


class Sight:
    """A model's projector. All methods may be called by any thread."""

    def __init__(self, model: Model, path: Path, threads: int, *, device: int | None) -> None:
        """Loads the projector beside its model, onto a device of ggml's or, without one, onto the
        processors.

        Raises `PronkError` (LOAD_FAILED) with llama.cpp's reason, `Blind` where it is a projector
        for something else than images.
        """
        can = _m.mtmd_get_cap_from_file(str(path).encode())
        if can.inp_audio and not can.inp_vision:
            raise Blind
        params = _m.mtmd_context_params_default()
        params.use_gpu = device is not None
        params.device = device
        params.n_threads = threads
        params.print_timings = False
        params.warmup = True  # so that the buffer for computing is there, and is told of
        native_log.forget_errors()
        self._handle = _m.mtmd_init_from_file(str(path).encode(), model.handle, params)
        if not self._handle:
            reason = native_log.reason(str(path), path.name)
            raise PronkError(Code.LOAD_FAILED, f"its projector: {reason}")
        self._width = model.row_width
        self._dimensions = _DIMENSIONS if _m.mtmd_decode_use_mrope(self._handle) else 1
        self._lock = threading.Lock()
        self._layouts: OrderedDict[bytes, Layout] = OrderedDict()
        self._encoded: OrderedDict[int, Picture] = OrderedDict()
        self._kept = 0
        self._open: tuple[bytes, _Chunks] | None = None
        self.encoded = 0
        """Images encoded so far."""
        self.opened = 0
        """Images decoded so far."""

    def layout(self, image: bytes) -> Layout:
        """What stands in a prompt for an image file.

        Raises `PronkError` (INVALID_REQUEST) where it is no image that can be read.
        """
        name = _name(image)
        with self._lock:
            layout = self._layouts.get(name)
            if layout is None:
                layout = self._laid_out(name, self._opened(name, image))
            self._layouts[name] = layout
            self._layouts.move_to_end(name)
            if len(self._layouts) > _MOST_LAYOUTS:
                self._layouts.popitem(last=False)
            return layout

    def pictures(self, image: bytes, layout: Layout) -> dict[int, Picture]:
        """The encoded image, by the keys of its layout. What is not kept of it is encoded now.

        Raises `PronkError` (INTERNAL) where that fails.
        """
        with self._lock:
            found = {key: self._encoded[key] for key in layout.keys if key in self._encoded}
            if len(found) < len(layout.keys):
                chunks = self._opened(_name(image), image)
                for key, chunk in zip(layout.keys, chunks.images, strict=True):
                    if key not in found:
                        found[key] = self._encode(chunk)
                self._close_image()
            for key, picture in found.items():
                self._keep(key, picture)
            return found

    def close(self) -> None:
        """Gives the memory back. The model must still be there."""
        self._close_image()
        _m.mtmd_free(self._handle)

    def _opened(self, name: bytes, image: bytes) -> _Chunks:
        """The image, cut as the model wants it. The last one stays open: most are encoded next."""
        if self._open is None or self._open[0] != name:
            self._close_image()
            self.opened += 1
            self._open = name, _Chunks(self._handle, image)
        return self._open[1]

    def _close_image(self) -> None:
        if self._open:
            self._open[1].close()
            self._open = None

    def _laid_out(self, name: bytes, chunks: _Chunks) -> Layout:
        numbers: list[int] = []
        keys: list[int] = []
        for chunk in chunks.all:
            count = int(_m.mtmd_input_chunk_get_n_tokens(chunk))
            if _m.mtmd_input_chunk_get_type(chunk) == _TEXT:
                size = ctypes.c_size_t()
                tokens = _m.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(size))
                numbers += tokens[:count]
            else:
                if count > MAX_ROWS:
                    raise _refused("the model would need too many tokens for it")
                keys.append(_key(name, len(keys)))
                numbers += image_rows(keys[-1], count)
        return Layout(numbers, tuple(keys))

    def _encode(self, chunk: Any) -> Picture:
        rows = int(_m.mtmd_input_chunk_get_n_tokens(chunk))
        output = None
        if _m.mtmd_encode_chunk(self._handle, chunk) == 0:
            output = _m.mtmd_get_output_embd(self._handle)
        if not output:
            raise PronkError(
                Code.INTERNAL, "the model could not read an image; see the server's log"
            )
        numbers = np.ctypeslib.as_array(output, (rows, self._width)).copy()
        self.encoded += 1
        places = self._positions(chunk, rows, 0)
        return Picture(
            numbers,
            places,
            self._positions(chunk, rows, 1) - places,
            int(_m.mtmd_input_chunk_get_n_pos(chunk)),
            bool(_m.mtmd_decode_use_non_causal(self._handle, chunk)),
        )

    def _positions(self, chunk: Any, rows: int, start: int) -> np.ndarray[Any, Any]:
        """Those of an image that begins at position `start`, a line for each dimension."""
        if self._dimensions == 1:
            return np.arange(start, start + rows, dtype=np.int32)[np.newaxis]
        out = (_m.mtmd_decoder_pos * rows)()
        image = _m.mtmd_input_chunk_get_tokens_image(chunk)
        _m.mtmd_helper_image_get_decoder_pos(image, start, out)
        told = np.frombuffer(out, np.uint32).reshape(rows, _DIMENSIONS).astype(np.int32)
        return told[:, [0, 2, 1, 3]].T  # llama.cpp takes the line before the column

    def _keep(self, key: int, picture: Picture) -> None:
        if key not in self._encoded:
            self._kept += picture.numbers.nbytes
        self._encoded[key] = picture
        self._encoded.move_to_end(key)
        while self._kept > MOST_KEPT:
            _, forgotten = self._encoded.popitem(last=False)
            self._kept -= forgotten.numbers.nbytes


class _Chunks:
    """An image, decoded and cut as its model wants it, until it is closed."""

    def __init__(self, handle: Any, image: bytes) -> None:
        """Raises `PronkError` (INVALID_REQUEST) where the image cannot be read."""
        try:
            pixels = decode_image(image)
        except BadImage as bad:
            raise _refused(str(bad)) from None
        height, width, _ = pixels.shape
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = _m.mtmd_bitmap_init(width, height, data)
        self._chunks = _m.mtmd_input_chunks_init()
        try:
            marker = _m.mtmd_get_marker(handle)
            text = _m.mtmd_input_text(marker, len(marker), False, True)
            bitmaps = (_m.mtmd_bitmap_p_ctypes * 1)(bitmap)
            if _m.mtmd_tokenize(handle, self._chunks, ctypes.byref(text), bitmaps, 1) != 0:
                self.close()
                raise _refused("the model cannot take an image of its size")
        finally:
            _m.mtmd_bitmap_free(bitmap)
        count = _m.mtmd_input_chunks_size(self._chunks)
        self.all = [_m.mtmd_input_chunks_get(self._chunks, index) for index in range(count)]

    @property
    def images(self) -> list[Any]:
        return [chunk for chunk in self.all if _m.mtmd_input_chunk_get_type(chunk) == _IMAGE]

    def close(self) -> None:
        """Gives the memory back."""
        _m.mtmd_input_chunks_free(self._chunks)


def _name(image: bytes) -> bytes:
    return blake2b(image, digest_size=32).digest()


def _key(name: bytes, part: int) -> int:
    """The same for the same part of the same file alone."""
    digest = blake2b(name + part.to_bytes(4), digest_size=8).digest()
    return int.from_bytes(digest)


def _refused(reason: str) -> PronkError:
    return PronkError(Code.INVALID_REQUEST, f"images: {reason}")
