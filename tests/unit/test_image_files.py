"""Whatever is sent as an image becomes pixels or a reason, and never takes more than it may."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pronk.workers.inference import image_files
from pronk.workers.inference.image_files import FORMATS, LARGEST, BadImage, decode_image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def saved(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def close(pixel: Any, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(np.asarray(pixel, int) - colour).max() < 40)


def png(width: int, height: int, *, depth: int = 8, kind: int = 2, data: bytes = b"") -> bytes:
    """A PNG whose header says what it likes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    packed = zlib.compress(data, 1)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_read(format: str):
    image = Image.new("RGB", (40, 30), RED)
    image.paste(BLUE, (0, 0, 10, 30))
    pixels = decode_image(saved(image, format))
    assert pixels.shape == (30, 40, 3)
    assert pixels.dtype == np.uint8
    assert close(pixels[15, 3], BLUE)
    assert close(pixels[15, 30], RED)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "I;16"])
def test_every_kind_of_pixel_is_read(mode: str):
    if mode == "I;16":
        image = Image.fromarray(np.full((4, 4), 0x8000, np.uint16))
    else:
        image = Image.new("RGB", (4, 4), (128, 128, 128)).convert(mode)
    format = "JPEG" if mode == "CMYK" else "PNG"
    pixels = decode_image(saved(image, format))
    assert pixels.shape == (4, 4, 3)
    assert mode == "1" or close(pixels[1, 1], (128, 128, 128))


@pytest.mark.parametrize("mode", ["RGBA", "PA", "LA"])
def test_what_is_transparent_is_white(mode: str):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 2, 4))
    if mode == "PA":
        image = image.convert("RGB").quantize(2)
        file = saved(image, transparency=image.getpixel((0, 0)))
        assert decode_image(file)[0, 0].tolist() == list(WHITE)
        return
    pixels = decode_image(saved(image.convert(mode)))
    assert pixels[0, 0].tolist() == list(WHITE)
    assert pixels[0, 3].tolist() == [0, 0, 0]


def test_an_image_is_turned_as_its_camera_was_held():
    image = Image.new("RGB", (40, 20), GREEN)
    image.paste(RED, (0, 0, 20, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera stood on its right side
    pixels = decode_image(saved(image, "JPEG", exif=exif))
    assert pixels.shape == (40, 20, 3)
    assert close(pixels[5, 10], RED)
    assert close(pixels[35, 10], GREEN)


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_of_moving_images_the_first_one_counts(format: str):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    file = saved(frames[0], format, save_all=True, append_images=frames[1:])
    assert close(decode_image(file)[4, 4], RED)


def test_one_pixel_is_an_image():
    assert decode_image(saved(Image.new("RGB", (1, 1), RED))).tolist() == [[list(RED)]]


def test_a_large_image_becomes_smaller():
    for format in ("JPEG", "PNG"):
        pixels = decode_image(saved(Image.new("L", (2 * LARGEST + 10, 64), 77), format))
        assert max(pixels.shape) <= LARGEST
        assert close(pixels[5, 5], (77, 77, 77))


@pytest.mark.parametrize("mode", ["1", "P", "PA", "L", "RGB", "RGBA"])
def test_thin_lines_are_still_seen_where_an_image_becomes_smaller(mode: str):
    lines = np.full((64, 2 * LARGEST), 255, np.uint8)
    lines[:, 1::8] = 0  # pixels that a half of the size would leave out
    image = Image.fromarray(lines)
    file = saved(image.quantize(2) if mode in ("P", "PA") else image.convert(mode))
    if mode == "PA":
        file = saved(image.quantize(2), transparency=bytes([255, 255]))
    pixels = decode_image(file)
    assert pixels.shape == (32, LARGEST, 3)
    assert pixels[16].min(axis=1)[:8].min() < 200


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "none of JPEG, PNG"),
        (b"GIF89a", "damaged"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "none of JPEG"),
        (saved(Image.new("RGB", (4, 4)), "TIFF"), "none of JPEG"),
        (saved(Image.new("RGB", (64, 64), RED))[:90], "damaged or incomplete"),
        (saved(Image.effect_noise((64, 64), 90), "JPEG")[:900], "damaged or incomplete"),
        (png(2**16, 2**16), "more than 64 Mi pixels"),
        (png(2**31 - 1, 2**31 - 1), "more than 64 Mi pixels"),
        (png(0, 4), "."),
        (png(4000, 4000), "damaged or incomplete"),
        (saved(Image.new("L", (1000, 2))), "200 times as long"),
        (saved(Image.new("L", (2, 1000))), "200 times as long"),
    ],
)
def test_what_is_no_good_is_refused_with_a_reason(file: bytes, reason: str):
    with pytest.raises(BadImage, match=reason):
        decode_image(file)


def test_the_size_in_the_header_counts_before_any_pixel(monkeypatch: pytest.MonkeyPatch):
    loaded: list[object] = []
    monkeypatch.setattr(Image.Image, "load", lambda self: loaded.append(self))
    bomb = png(60_000, 60_000, kind=0, data=bytes(2**24))
    assert len(bomb) < 2**17
    with pytest.raises(BadImage, match="more than 64 Mi pixels"):
        decode_image(bomb)
    assert not loaded


def test_a_gif_whose_frame_is_larger_than_it_says_is_refused():
    gif = bytearray(saved(Image.new("P", (8, 8)), "GIF"))
    at = gif.index(b"\x2c", 13)
    struct.pack_into("<HH", gif, at + 5, 65_535, 65_535)
    with pytest.raises(BadImage):
        decode_image(bytes(gif))


def test_a_jpeg_of_very_many_scans_is_refused():
    jpeg = saved(Image.effect_noise((64, 64), 90), "JPEG", progressive=True)
    start = jpeg.index(image_files._SCAN)
    end = jpeg.index(b"\xff", start + 2)
    many = jpeg[:end] + jpeg[start:end] * 1000 + jpeg[end:]
    with pytest.raises(BadImage, match="too many scans"):
        decode_image(many)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FORMATS), st.data())
def test_a_damaged_file_is_pixels_or_a_reason(format: str, data: st.DataObject):
    file = bytearray(saved(NOISE, format))
    for _ in range(data.draw(st.integers(1, 8))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = decode_image(bytes(file[: data.draw(st.integers(0, len(file)))]))
    except BadImage:
        return
    assert pixels.ndim == 3
    assert max(pixels.shape) <= LARGEST
