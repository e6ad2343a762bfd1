"""From an image file that anybody may have sent to its pixels.

Pillow reads it: it tells a file's size from its header before it takes memory for the pixels, knows
the formats that people have, and has been attacked and mended for decades. What llama.cpp brings
along (stb_image) has none of that, says itself that it is not meant for hostile files, and a worker
that it takes down takes others' requests along.

Importing this module sets Pillow's own bounds for the whole process.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
"""Those that are read, however the file is named. Of moving images the first one counts."""

MAX_PIXELS = 2**26
"""Width times height of an image, by its header."""

LARGEST = 4096
"""Pixels of the longer side that are handed on: no model sees as many, and it bounds the memory."""

MOST_LOPSIDED = 200
"""Times that one side may be as long as the other."""

_MOST_SCANS = 200
"""Times that a JPEG may go over its pixels; 10 are usual. Each takes time, and hardly any bytes."""

_SCAN = b"\xff\xda"

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

Image.MAX_IMAGE_PIXELS = MAX_PIXELS
warnings.simplefilter("error", Image.DecompressionBombWarning)


class BadImage(Exception):
    """An image that is not read, with the reason for whoever sent it."""


def decode_image(data: bytes) -> Pixels:
    """The pixels of an image file: height × width × (red, green, blue), at most `LARGEST` a side.

    Turned as its camera was held; what is transparent is white. Raises `BadImage`.
    """
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check(image, data)
            image.draft("RGB", (LARGEST, LARGEST))  # a JPEG can be read at a part of its size
            image.load()
            pixels = np.asarray(_visible(image))
    except BadImage:
        raise
    except Image.UnidentifiedImageError:
        raise BadImage(f"it is none of {', '.join(FORMATS)}, or damaged") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadImage(_TOO_LARGE) from None
    except MemoryError:
        raise BadImage("there is not enough memory to read it; make it smaller") from None
    except Exception:  # a decoder that meets a damaged file raises whatever it likes
        raise BadImage("it is damaged or incomplete") from None
    if pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise BadImage("it has no pixels")
    return np.ascontiguousarray(pixels, np.uint8)


_TOO_LARGE = f"it has more than {MAX_PIXELS // 2**20} Mi pixels; make it smaller"


def _check(image: Image.Image, data: bytes) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise BadImage("it has no pixels")
    if width * height > MAX_PIXELS:
        raise BadImage(_TOO_LARGE)
    if max(width, height) > MOST_LOPSIDED * min(width, height):
        raise BadImage(f"one of its sides is more than {MOST_LOPSIDED} times as long as the other")
    if image.format in ("JPEG", "MPO") and data.count(_SCAN) > _MOST_SCANS:
        raise BadImage("it is a JPEG of too many scans; save it anew")


def _visible(image: Image.Image) -> Image.Image:
    """The image as a person sees it on white, not larger than need be."""
    if max(image.size) > LARGEST:
        image = _blendable(image)
        image.thumbnail((LARGEST, LARGEST))
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # else the brighter half would all be white
        deep = np.asarray(image).astype(np.uint16)
        image = Image.fromarray((deep >> 8).astype(np.uint8))
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        ground = Image.new("RGBA", seen.size, "white")
        return Image.alpha_composite(ground, seen).convert("RGB")
    return image.convert("RGB")


def _blendable(image: Image.Image) -> Image.Image:
    """The image with pixels between which there is a middle. Without one, what makes it smaller
    would only leave pixels out, and with them the thin lines of scanned pages.
    """
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image.convert("L") if image.mode == "1" else image
