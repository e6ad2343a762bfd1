"""Reads the header of a GGUF file: its metadata, and what its tensors are; never a weight.

The `gguf` package has a reader, but it is neither quick nor bounded: it makes several numpy arrays
per array element, which took 9 s on a vocabulary of 152 k tokens where this one takes less than
0.1 s, and it believes every count it reads (the mistake behind CVE-2024-39720). Its tables of
types are used here. This reader goes through the file once, in a small window (a mapping would be
a SIGBUS when somebody truncates the file meanwhile), checks every count against what the file can
hold, and keeps large arrays only when they are asked for and fit in a budget. So every file,
however hostile, ends in a header or in `InvalidGGUF`, after a few seconds at most and in less than
256 MiB; those of a library are read in processes of their own all the same (`looking`).

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
import stat
import struct
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

MAX_HEADER_BYTES = 64 * 1024 * 1024
"""Most bytes of a file that are looked at: several times the largest vocabularies known."""
MAX_PAIRS = 10_000
MAX_TENSORS = 100_000
INLINE_ARRAY = 5
"""Arrays of up to so many elements are always kept."""
VERBOSE_BUDGET = 16 * 1024 * 1024
"""Bytes of the file that long arrays may take when they are asked for."""

CHAT_TEMPLATE = "tokenizer.chat_template"
"""The key of a model's own template, in Jinja."""

_KEY_BUDGET = 512 * 1024
"""Characters of all keys."""
_MAX_ELEMENTS = 2 * 1024 * 1024
"""Of all long arrays that are kept: each takes some microseconds, and many times its bytes."""
_STRING_BUDGET = 4 * 1024 * 1024
_MAX_STRING = 1024 * 1024
_MAX_NAME = 65_535
_MAX_DIMENSIONS = 4
_MAX_COUNT = 2**63 - 1
_DEFAULT_ALIGNMENT = 32
_WINDOW = 256 * 1024

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: _U32,
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.BOOL: struct.Struct("<?"),
    GGUFValueType.UINT64: _U64,
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
}


class InvalidGGUF(Exception):
    """The file is no GGUF file that can be used. The text completes "it is not …: <text>" and
    holds nothing of the file's own and no path.
    """


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a header says of one tensor."""

    name: str
    type: str
    shape: list[int]
    """Elements per dimension, the fastest first, as in the file."""
    offset: int
    """Where its data begins, in bytes behind `Header.data_start`."""
    size: int | None
    """Bytes of its data; None where its type is not known here."""
    block: int
    """Elements that its type stores together; 1 where it is not known."""


@dataclass(slots=True)
class Header:
    """The header of a GGUF file, in values that JSON and msgpack can carry."""

    version: int
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """By key, in the file's order. None stands for a long array or text that was not kept, and for
    NaN and infinities. Invalid UTF-8 is replaced."""
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    """Only when they were asked for."""
    parameter_count: int = 0
    """Elements of all tensors."""
    noted: set[str] = field(default_factory=set[str])
    """Those of the texts that were looked for which long arrays hold, kept or not."""
    missing_bytes: int = 0
    """Bytes of tensor data that the file should have behind its end: more than 0 when the file
    was cut off."""
    problem: str = ""
    """Why a tensor cannot be where the header says, as far as the types of tensors are known; empty
    where all can. Whoever believes such a header reads what is no part of the file."""
    alignment: int = _DEFAULT_ALIGNMENT
    """Bytes of which the place of each tensor's data is a multiple."""
    data_start: int = 0
    """Offset in the file at which the tensors' data begins."""
    file_size: int = 0


def read_header(
    path: Path,
    *,
    verbose: bool = False,
    tensors: bool = False,
    look_for: frozenset[str] = frozenset(),
) -> Header:
    """Reads the header of a file; `tensors` keeps their list, `verbose` long arrays, too.

    `look_for` are texts, such as tokens, whose presence in long arrays is noted.

    Raises `InvalidGGUF` for anything that is not a readable GGUF file of version 2 or 3.
    """
    try:
        # O_NONBLOCK: a FIFO in the file's place must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with FileIO(descriptor) as file:
            return read_open_header(
                file, tensors=tensors or verbose, arrays=verbose, look_for=look_for
            )
    except OSError as error:
        raise InvalidGGUF(f"it cannot be read ({error.strerror})") from None


def read_open_header(
    file: FileIO,
    *,
    tensors: bool = False,
    arrays: bool = False,
    look_for: frozenset[str] = frozenset(),
) -> Header:
    """The same for a file that is open, whatever was read of it before.

    Raises `InvalidGGUF`, and OSError where it cannot be read.
    """
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise InvalidGGUF("it is not a regular file")
    return _read(_Window(file, status.st_size), tensors, arrays, look_for)


def _read(
    window: _Window, keep_tensors: bool, keep_arrays: bool, look_for: frozenset[str]
) -> Header:
    if window.take(4) != b"GGUF":
        raise InvalidGGUF("it does not begin with 'GGUF'")
    version = window.u32()
    if version & 0xFFFF == 0 and version:
        raise InvalidGGUF("it is in big-endian byte order; only little-endian files are supported")
    if version not in (2, 3):
        raise InvalidGGUF(f"its version {version} is not supported; convert it to version 3")
    tensors, pairs = window.u64(), window.u64()
    if pairs > MAX_PAIRS:
        raise InvalidGGUF(f"it claims {pairs} metadata entries")
    if tensors > MAX_TENSORS:
        raise InvalidGGUF(f"it claims {tensors} tensors")
    header = Header(version, file_size=window.file_size)
    values = _Values(window, keep_arrays, look_for)
    keys = 0
    for _ in range(pairs):
        key = window.string(_MAX_NAME)
        keys += len(key)
        if keys > _KEY_BUDGET:
            raise InvalidGGUF(f"its metadata keys are longer than {_KEY_BUDGET // 1024} KiB")
        if key in header.metadata:
            raise InvalidGGUF("a metadata key occurs twice")
        header.metadata[key] = values.value(window.u32())
    header.noted = {text.decode() for text in values.noted}
    _read_tensors(window, tensors, header, keep_tensors)
    return header


def _read_tensors(window: _Window, count: int, header: Header, keep: bool) -> None:
    data_end, last = 0, 0
    for number in range(1, count + 1):
        name = window.string(_MAX_NAME)
        dimensions = window.u32()
        if dimensions > _MAX_DIMENSIONS:
            raise InvalidGGUF(f"a tensor has {dimensions} dimensions")
        shape = list(struct.unpack(f"<{dimensions}Q", window.take(8 * dimensions)))
        kind, offset = window.u32(), window.u64()
        elements = math.prod(shape)
        header.parameter_count += elements
        if header.parameter_count > _MAX_COUNT:
            raise InvalidGGUF("its tensors have more elements than can be counted")
        type_name, block, size = _tensor_type(kind, elements)
        if not header.problem and (problem := shape_problem(shape, block)):
            header.problem = f"its tensor {number} of {count} {problem}"
        if offset + (size or 0) > data_end:
            data_end, last = offset + (size or 0), number
        if keep:
            header.tensors.append(Tensor(name, type_name, shape, offset, size, block))
    alignment = header.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise InvalidGGUF("its alignment is not a power of two")
    header.alignment = alignment
    header.data_start = -(-window.position // alignment) * alignment
    if last:
        header.missing_bytes = max(0, header.data_start + data_end - window.file_size)
        if not header.problem and (problem := place_problem(header.missing_bytes)):
            header.problem = f"its tensor {last} of {count} {problem}"


def shape_problem(shape: list[int], block: int) -> str | None:
    """Why no tensor of a type whose blocks have so many elements has this shape."""
    if not all(0 < elements <= _MAX_COUNT for elements in shape):
        return "has a dimension of a size that cannot be"
    row = shape[0] if shape else 1
    if row % block:
        return f"has rows of {row} elements, which its type cannot have"
    return None


def place_problem(behind: int) -> str | None:
    """Why a tensor does not lie in a file that ends so many bytes before it does."""
    if behind <= 0:
        return None
    return f"ends {behind} bytes behind the end of the file: it was cut off, or made up"


def _tensor_type(kind: int, elements: int) -> tuple[str, int, int | None]:
    """A tensor type's name, its block's elements, and the bytes that so many elements take."""
    try:
        known = GGMLQuantizationType(kind)
    except ValueError:  # a newer one: the engine decides about it
        return f"type {kind}", 1, None
    block, size = GGML_QUANT_SIZES[known]
    return known.name, block, elements // block * size


class _Values:
    """Decodes metadata values within the budgets of one file."""

    def __init__(self, window: _Window, keep_arrays: bool, look_for: frozenset[str]) -> None:
        self._window = window
        self._look_for = frozenset(text.encode() for text in look_for)
        self.noted: set[bytes] = set()
        self._texts = _STRING_BUDGET
        self._arrays = VERBOSE_BUDGET if keep_arrays else 0
        self._elements = _MAX_ELEMENTS

    def value(self, kind: int) -> Any:
        """The next value, of type `kind`; None where it is too long to keep."""
        window = self._window
        if kind == GGUFValueType.STRING:
            return self._text()
        if kind == GGUFValueType.ARRAY:
            return self._array(window.u32(), window.u64())
        scalar = _SCALARS.get(kind)  # pyright: ignore[reportArgumentType]
        if scalar is None:
            raise InvalidGGUF(f"it has a metadata value of the unknown type {kind}")
        return _plain(kind, scalar.unpack(window.take(scalar.size)))[0]

    def _text(self) -> str | None:
        length = self._window.u64()
        if length > min(_MAX_STRING, self._texts):
            self._window.skip(length)
            return None
        self._texts -= length
        return self._window.take(length).decode("utf-8", "replace")

    def _array(self, kind: int, count: int) -> list[Any] | None:
        window = self._window
        if kind == GGUFValueType.STRING:
            return self._texts_array(count)
        scalar = _SCALARS.get(kind)  # pyright: ignore[reportArgumentType]
        if scalar is None:
            raise InvalidGGUF(f"it has a metadata array of the unsupported type {kind}")
        size = scalar.size * count
        if count > INLINE_ARRAY:
            if size > self._arrays or count > self._elements:
                window.skip(size)
                return None
            self._arrays -= size
            self._elements -= count
        elements = struct.unpack(f"<{count}{scalar.format[1:]}", window.take(size))
        return _plain(kind, elements)

    def _texts_array(self, count: int) -> list[str | None] | None:
        window = self._window
        if count <= INLINE_ARRAY:
            return [self._text() for _ in range(count)]
        start = window.position
        if 8 * count > self._arrays or count > self._elements:
            self._skip_strings(count)
            return None
        kept: list[str | None] = []
        for done in range(count):
            length = window.u64()
            if window.position - start + length > self._arrays:
                window.skip(length)
                self._skip_strings(count - done - 1)
                return None
            text = window.take(length)
            if text in self._look_for:
                self.noted.add(text)
            kept.append(text.decode("utf-8", "replace"))
        self._arrays -= window.position - start
        self._elements -= count
        return kept

    def _skip_strings(self, count: int) -> None:
        self.noted |= self._window.skip_strings(count, self._look_for)


def _plain(kind: int, values: tuple[Any, ...]) -> list[Any]:
    """Values as JSON can carry them: no NaN or infinity, and float32 in its shortest decimals."""
    if kind == GGUFValueType.FLOAT32:
        return [_shortest(value) for value in values]
    if kind == GGUFValueType.FLOAT64:
        return [value if math.isfinite(value) else None for value in values]
    return list(values)


_F32 = struct.Struct("<f")


def _shortest(value: float) -> float | None:
    """The float64 with the fewest digits that is the same float32: 1e-05, not 9.99999974e-06."""
    if not math.isfinite(value):
        return None
    if value.is_integer() and abs(value) < 2**24:
        return value
    for digits in range(6, 9):
        rounded = float(f"{value:.{digits}g}")
        # Rounding may leave the range of float32 at its upper end, which pack refuses.
        if abs(rounded) < 3.4e38 and _F32.unpack(_F32.pack(rounded))[0] == value:
            return rounded
    return float(f"{value:.9g}")


class _Window:
    """A file's first `MAX_HEADER_BYTES`, read once from front to back.

    Every method that advances raises `InvalidGGUF` when the file is not long enough.
    """

    def __init__(self, file: FileIO, file_size: int) -> None:
        self._file = file
        self.file_size = file_size
        self._limit = min(file_size, MAX_HEADER_BYTES)
        self._buffer = b""
        self._start = 0
        """Offset in the file at which the buffer begins."""
        self._at = 0
        """Offset in the buffer of what comes next; may lie behind its end."""

    @property
    def position(self) -> int:
        """Offset in the file of what comes next."""
        return self._start + self._at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        self._have(count)
        self._at += count
        return self._buffer[self._at - count : self._at]

    def u32(self) -> int:
        """The next unsigned 32-bit integer."""
        self._have(4)
        self._at += 4
        return _U32.unpack_from(self._buffer, self._at - 4)[0]

    def u64(self) -> int:
        """The next unsigned 64-bit integer."""
        self._have(8)
        self._at += 8
        return _U64.unpack_from(self._buffer, self._at - 8)[0]

    def string(self, longest: int) -> str:
        """The next string, which must not be longer than `longest` bytes."""
        length = self.u64()
        if length > longest:
            raise InvalidGGUF(f"it has a name of {length} bytes")
        return self.take(length).decode("utf-8", "replace")

    def skip(self, count: int) -> None:
        """Leaves out `count` bytes."""
        self._check(count)
        self._at += count

    def skip_strings(self, count: int, look_for: frozenset[bytes]) -> set[bytes]:
        """Leaves out `count` strings, each a length and so many bytes; returns those looked for."""
        self._check(8 * count)
        found: set[bytes] = set()
        lengths = {len(text) for text in look_for}
        length_at = _U64.unpack_from
        buffer, at = self._buffer, self._at
        last = len(buffer) - 8
        for _ in range(count):
            if at > last:
                self._at = at
                self._have(8)
                buffer, at = self._buffer, self._at
                last = len(buffer) - 8
            length = length_at(buffer, at)[0]
            at += 8
            if length in lengths:
                self._at = at
                text = self.take(length)
                if text in look_for:
                    found.add(text)
                buffer, at = self._buffer, self._at
                last = len(buffer) - 8
            else:
                at += length
        self._at = at
        self._check(0)
        return found

    def _check(self, count: int) -> None:
        if self.position + count <= self._limit:
            return
        if self._limit < self.file_size:
            raise InvalidGGUF(f"its header is longer than {MAX_HEADER_BYTES // 1024**2} MiB")
        raise InvalidGGUF("it ends within its header")

    def _have(self, count: int) -> None:
        if self._at + count <= len(self._buffer):
            return
        self._check(count)
        position = self.position
        self._file.seek(position)
        wanted = min(max(count, _WINDOW), self._limit - position)
        chunks: list[bytes] = []
        while wanted and (chunk := self._file.read(wanted)):
            chunks.append(chunk)
            wanted -= len(chunk)
        self._buffer, self._start, self._at = b"".join(chunks), position, 0
        if len(self._buffer) < count:
            raise InvalidGGUF("it ends within its header")
