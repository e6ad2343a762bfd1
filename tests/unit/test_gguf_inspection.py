"""What is refused of GGUF files before anything is made of them, and that nothing else happens."""

from __future__ import annotations

import random
import struct
from io import FileIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store import demo
from pronk.workers.store.gguf_metadata import InvalidGGUF
from pronk.workers.store.looking.gguf_check import FileFacts, check_file
from pronk.workers.store.looking.inspection import inspect
from support.gguf_files import (
    F16,
    F32,
    LLAMA,
    Q8_0,
    gguf_bytes,
    pair,
    small_gguf,
    tensor,
    text,
)


def checked(path: Path) -> FileFacts:
    with FileIO(path) as file:
        return check_file(file)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refusal(path: Path, data: bytes) -> str:
    written(path, data)
    with pytest.raises(InvalidGGUF) as caught:
        checked(path)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_a_whole_file_tells_what_it_is(path: Path) -> None:
    assert checked(demo.WEIGHTS) == FileFacts("model", "llama", "Q8_0", "3.48M", False, 3_700_256)
    assert checked(small_gguf(path)) == FileFacts("model", "llama", "F16", "576", True, 1280)


@pytest.mark.parametrize(
    ("architecture", "metadata", "kind"),
    [
        ("llama", {}, "model"),
        ("llama", {"general.type": "model", "llama.block_count": 2}, "model"),
        ("llama", {"general.type": "adapter"}, "adapter"),
        ("clip", {}, "projector"),
        ("clip", {"general.type": "mmproj"}, "projector"),
        ("llama", {"general.type": "projector"}, "projector"),
        ("mllama", {"mllama.vision.block_count": 32}, "projector"),
        ("gemma3", {"gemma3.vision.block_count": 27, "gemma3.block_count": 34}, "model"),
    ],
)
def test_weights_projectors_and_adapters_are_told_apart(
    path: Path, architecture: str, metadata: dict[str, str | int], kind: str
) -> None:
    facts = checked(small_gguf(path, architecture, metadata=metadata))
    assert (facts.kind, facts.architecture) == (kind, architecture)


def test_the_quantization_of_a_file_that_does_not_say_is_that_of_its_weights(path: Path) -> None:
    data = gguf_bytes(tensor("a", (64, 8), Q8_0), tensor("b", (64,), F32, 544), data=544 + 256)
    path.write_bytes(data)
    assert (checked(path).quantization, checked(path).full) == ("Q8_0", False)


HUGE = 2**64 - 1
BEYOND = "behind the end of the file"


@pytest.mark.parametrize(
    ("tensors", "data", "reason"),
    [
        # The heap behind a buffer that was made for the file (CVE-2026-7482).
        pytest.param([tensor(shape=(1 << 20,))], 128, BEYOND, id="larger than the file"),
        pytest.param([tensor(offset=1 << 20)], 128, BEYOND, id="offset behind the file"),
        pytest.param([tensor(shape=(33,))], 128, BEYOND, id="one element too many"),
        pytest.param([tensor(offset=HUGE - 31)], 128, BEYOND, id="offset wraps around 64 bits"),
        pytest.param([tensor(shape=(1 << 62,))], 128, BEYOND, id="bytes wrap around 64 bits"),
        pytest.param([tensor()], 0, BEYOND, id="no data at all"),
        pytest.param([tensor()], 127, BEYOND, id="a byte is missing"),
        pytest.param(
            [tensor(shape=(1 << 32, 1 << 32))], 128, "counted", id="elements wrap around 64 bits"
        ),
        pytest.param([tensor(shape=(HUGE,))], 128, "counted", id="negative dimension"),
        pytest.param([tensor(shape=(0, 8))], 128, "dimension", id="dimension of 0"),
        pytest.param([tensor(shape=(0, HUGE))], 128, "dimension", id="0 hides what is huge"),
        pytest.param([tensor(shape=(1,) * 5)], 128, "5 dimensions", id="five dimensions"),
        pytest.param([tensor(kind=0x7FFF)], 128, "does not know", id="unknown type"),
        pytest.param([tensor(kind=4)], 128, "does not know", id="type that was removed"),
        pytest.param([tensor(shape=(33,), kind=Q8_0)], 128, "rows", id="half a block"),
        pytest.param([tensor(shape=(), kind=Q8_0)], 128, "rows", id="one number in a block"),
        pytest.param([tensor(offset=4)], 256, "multiple of 32", id="not aligned"),
        pytest.param(
            [tensor("a"), tensor("b", offset=64)], 256, "1 and 2 overlap", id="overlap by half"
        ),
        pytest.param([tensor("a"), tensor("b")], 128, "overlap", id="two in one place"),
        pytest.param(
            [tensor("a", (64,)), tensor("c", offset=256), tensor("b", (8,), F16, 64)],
            384,
            "1 and 3 overlap",
            id="one within another",
        ),
        pytest.param([tensor("a"), tensor("a", offset=128)], 256, "name", id="a name twice"),
        pytest.param([tensor("")], 128, "name", id="empty name"),
        pytest.param([tensor("n" * 64)], 128, "longer than 63", id="long name"),
        pytest.param([tensor(b"\xff" * 70)], 128, "longer than 63", id="long name, no UTF-8"),
    ],
)
def test_a_tensor_that_is_not_as_the_file_says_is_refused(
    path: Path, tensors: list[bytes], data: int, reason: str
) -> None:
    assert reason in refusal(path, gguf_bytes(*tensors, data=data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        # The family of CVE-2024-39720: a header that ends, or that claims what cannot be.
        pytest.param(b"GGUF", "ends within its header", id="nothing but the magic"),
        pytest.param(struct.pack("<4sIQ", b"GGUF", 3, 1), "ends within its header", id="cut"),
        pytest.param(struct.pack("<4sIQQ", b"GGUF", 3, HUGE, 0), "tensors", id="tensors"),
        pytest.param(struct.pack("<4sIQQ", b"GGUF", 3, 0, HUGE), "entries", id="keys"),
        pytest.param(struct.pack("<4sIQQ", b"GGUF", 3, 1 << 16, 0), "header", id="many tensors"),
        pytest.param(
            gguf_bytes(pairs=[text("k") + struct.pack("<IQ", 8, HUGE)]), "header", id="long text"
        ),
        pytest.param(
            gguf_bytes(pairs=[text("k") + struct.pack("<IIQ", 9, 8, HUGE)]), "header", id="array"
        ),
        pytest.param(
            gguf_bytes(pairs=[text("k") + struct.pack("<IIQ", 9, 9, 1)]), "array", id="nested"
        ),
        pytest.param(
            gguf_bytes(pairs=[struct.pack("<Q", 1 << 40)]), "name of", id="key of a terabyte"
        ),
        pytest.param(gguf_bytes(tensor(), pairs=[LLAMA, LLAMA]), "twice", id="a key twice"),
        # CVE-2025-0317: a division by the alignment.
        pytest.param(
            gguf_bytes(tensor(), pairs=[LLAMA, pair("general.alignment", 0)], data=128),
            "alignment",
            id="alignment of 0",
        ),
        pytest.param(
            gguf_bytes(tensor(), pairs=[LLAMA, pair("general.alignment", 48)], data=128),
            "alignment",
            id="alignment of 48",
        ),
        pytest.param(
            gguf_bytes(tensor(), pairs=[LLAMA, pair("general.alignment", 1 << 31)], data=128),
            BEYOND,
            id="alignment of 2 GiB",
        ),
        pytest.param(gguf_bytes(tensor(), pairs=[], data=128), "architecture", id="no name"),
        pytest.param(
            gguf_bytes(tensor(), pairs=[pair("general.architecture", "../x")], data=128),
            "architecture",
            id="a path for an architecture",
        ),
        pytest.param(
            gguf_bytes(tensor(), pairs=[pair("general.architecture", 7)], data=128),
            "architecture",
            id="a number for an architecture",
        ),
        pytest.param(gguf_bytes(), "no weights", id="a vocabulary alone"),
        pytest.param(
            gguf_bytes(tensor(), pairs=[LLAMA, pair("split.count", 3)], data=128),
            "llama-gguf-split --merge",
            id="a part of three",
        ),
    ],
)
def test_a_header_that_cannot_be_is_refused(path: Path, data: bytes, reason: str) -> None:
    assert reason in refusal(path, data)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (struct.pack("<Q", 60) + b'{"__metadata__":{"format":"pt"}}', "a safetensors file"),
        (b"PK\x03\x04" + bytes(60), "a PyTorch checkpoint"),
        (b"\x80\x02}q\x00" + bytes(60), "a Python pickle"),
        (b"tjgg" + bytes(60), "in the format before GGUF"),
        (b'{"architectures": ["LlamaForCausalLM"]}', "no GGUF file"),
        (b"", "no GGUF file"),
        (b"GG", "no GGUF file"),
    ],
)
def test_other_files_are_named_with_what_to_do(path: Path, data: bytes, kind: str) -> None:
    reason = refusal(path, data)
    assert kind in reason
    assert "convert_hf_to_gguf.py" in reason


def facts_or_refusal(path: Path) -> FileFacts | None:
    try:
        return checked(path)
    except InvalidGGUF as error:
        assert str(path) not in str(error)  # noqa: PT017
        return None


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_mutated_header_is_refused_cleanly_or_harmless(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    base = tmp_path_factory.getbasetemp()
    whole = base / "inspected.gguf"
    if not whole.exists():
        small_gguf(whole, metadata={"general.name": "x", "llama.block_count": 1})
    data = bytearray(whole.read_bytes())
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(400)
        data[at : at + 8] = chance.choice(
            [b"\xff" * 8, bytes(8), chance.randbytes(1), chance.randbytes(8), b"", b"\x7f" * 3]
        )
    path = base / "inspected-mutant.gguf"
    path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    facts = facts_or_refusal(path)
    # Nothing that passes has more data than the file.
    assert facts is None or facts.data <= path.stat().st_size


@settings(max_examples=300, deadline=None)
@given(
    tensors=st.lists(
        st.tuples(
            st.lists(st.sampled_from([0, 1, 32, 33, 256, 2**32, 2**63, HUGE]), max_size=5),
            st.sampled_from([0, 1, 2, 8, 12, 30, 39, 99]),
            st.sampled_from([0, 4, 32, 64, 128, 1024, 2**63, HUGE - 31, HUGE]),
        ),
        max_size=4,
    ),
    data=st.integers(0, 2048),
)
def test_no_tensor_that_passes_lies_outside_the_file_or_in_another(
    tensors: list[tuple[list[int], int, int]], data: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "inspected-tensors.gguf"
    entries = [tensor(f"t{n}", *entry) for n, entry in enumerate(tensors)]
    path.write_bytes(gguf_bytes(*entries, data=data))
    facts = facts_or_refusal(path)
    assert facts is None or 0 < facts.data <= data


async def test_a_process_of_its_own_gives_the_same_facts(path: Path) -> None:
    assert await inspect(demo.WEIGHTS, "x") == checked(demo.WEIGHTS)
    written(path, gguf_bytes(tensor(shape=(1 << 20,)), data=128))
    with pytest.raises(PronkError) as caught:
        await inspect(path, "file 'evil.gguf'")
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.message.startswith("file 'evil.gguf' cannot be used: its tensor 1 of 1")
    assert str(path) not in caught.value.message


async def test_as_many_tensors_as_there_may_be_fit_in_the_memory_that_there_is(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = (tensor(f"{n:063}", (1,), F32, 32 * n) for n in range(100_000))
    written(path, gguf_bytes(*entries, data=32 * 100_000))
    assert (await inspect(path, "x")).data == 400_000
    monkeypatch.setattr("pronk.workers.store.looking.inspection._MEMORY", 16 * 1024**2)
    with pytest.raises(PronkError, match="too much memory"):
        await inspect(path, "x")
