"""Image files made of noise."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def picture(seed: int, width: int = 96, height: int = 64) -> bytes:
    """A PNG, another one for every seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
