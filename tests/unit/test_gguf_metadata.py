from __future__ import annotations

import math
import os
import random
import struct
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pronk.workers.store.gguf_facts import INFILL_TOKENS, HeaderFacts, facts_of, human_number
from pronk.workers.store.gguf_metadata import Header, InvalidGGUF, Tensor, read_header
from support.gguf_files import write_out

STRING, ARRAY, U32 = 8, 9, 4


def write_gguf(
    path: Path, *, vocabulary: int = 40, architecture: str = "llama", more: Sequence[str] = ()
) -> Path:
    """A whole GGUF file with two small tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny")
    writer.add_context_length(2048)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_languages(["en", "de"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*(f"token{i}" for i in range(vocabulary)), *more])
    writer.add_token_scores([float(i) / 8 for i in range(vocabulary)])
    writer.add_token_types([1] * vocabulary)
    writer.add_token_merges([f"a{i} b{i}" for i in range(vocabulary)])
    writer.add_chat_template("{{ messages }}")
    matrix = gguf.quants.quantize(np.zeros((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", matrix, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", np.ones(64, np.float32))
    write_out(writer)
    return path


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def header_bytes(*pairs: bytes, tensors: bytes = b"", count: int = 0, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, count, len(pairs)) + b"".join(pairs) + tensors


def read_bytes(path: Path, data: bytes, *, verbose: bool = False) -> Header:
    path.write_bytes(data)
    return read_header(path, verbose=verbose)


def refusal(path: Path, data: bytes) -> str:
    with pytest.raises(InvalidGGUF) as caught:
        read_bytes(path, data)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def test_a_header_tells_what_the_model_is(path: Path) -> None:
    header = read_header(write_gguf(path))
    assert facts_of(header) == HeaderFacts("llama", "Q8_0", "320", 2048, False, False, False, "")
    assert header.version == 3
    assert header.metadata["general.name"] == "Tiny"
    assert header.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5
    assert header.metadata["tokenizer.chat_template"] == "{{ messages }}"


def test_long_arrays_and_tensors_come_only_when_asked_for(path: Path) -> None:
    write_gguf(path)
    brief, verbose = read_header(path), read_header(path, verbose=True)
    assert brief.metadata["general.languages"] == ["en", "de"]
    assert brief.metadata["tokenizer.ggml.tokens"] is None
    assert brief.metadata["tokenizer.ggml.scores"] is None
    assert brief.tensors == []
    assert verbose.metadata["tokenizer.ggml.tokens"][39] == "token39"
    assert verbose.metadata["tokenizer.ggml.scores"][:3] == [0.0, 0.125, 0.25]
    assert verbose.tensors == [
        Tensor("token_embd.weight", "Q8_0", [64, 4], 0, 272, 32),
        Tensor("output_norm.weight", "F32", [64], 288, 256, 1),
    ]
    assert brief.metadata.keys() == verbose.metadata.keys()


@pytest.mark.parametrize("vocabulary", [3, 60_000])
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize(
    ("more", "infills"),
    [
        (["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"], True),
        (["<PRE>", "x", "<SUF>", "<MID>", "y"], True),
        (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], True),
        (["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffiy|>"], False),
        (["<PRE>", "<|fim_suffix|>", "<fim-middle>"], False),
    ],
)
def test_tokens_for_a_gap_are_found_among_all_others(
    path: Path, vocabulary: int, verbose: bool, more: list[str], infills: bool
) -> None:
    write_gguf(path, vocabulary=vocabulary, more=more)
    header = read_header(path, verbose=verbose, look_for=INFILL_TOKENS)
    assert facts_of(header).infills is infills
    assert header.metadata["tokenizer.chat_template"] == "{{ messages }}"
    assert header.noted == INFILL_TOKENS.intersection(more)


@pytest.mark.parametrize(
    "names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")]
)
def test_a_file_may_name_its_tokens_for_a_gap(path: Path, names: tuple[str, ...]) -> None:
    pairs = [text(f"tokenizer.ggml.{name}_token_id") + struct.pack("<II", U32, 7) for name in names]
    assert facts_of(read_bytes(path, header_bytes(*pairs))).infills
    assert not facts_of(read_bytes(path, header_bytes(*pairs[:2]))).infills


def test_it_reads_what_the_gguf_package_reads(path: Path) -> None:
    write_gguf(path)
    theirs = gguf.GGUFReader(path)
    ours = read_header(path, verbose=True)
    for key, value in ours.metadata.items():
        expected = theirs.fields[key].contents()
        assert value == (pytest.approx(expected) if isinstance(value, float) else expected)
    assert ours.parameter_count == sum(int(tensor.n_elements) for tensor in theirs.tensors)


def test_version_2_is_read_and_others_are_named(path: Path) -> None:
    pair = text("general.architecture") + struct.pack("<I", STRING) + text("llama")
    assert read_bytes(path, header_bytes(pair, version=2)).version == 2
    assert "version 1" in refusal(path, header_bytes(pair, version=1))
    assert "version 4" in refusal(path, header_bytes(pair, version=4))
    assert "big-endian" in refusal(path, struct.pack(">4sIQQ", b"GGUF", 3, 0, 0))


def test_a_file_that_was_cut_off_misses_bytes(path: Path) -> None:
    write_gguf(path)
    whole = path.read_bytes()
    assert read_bytes(path, whole[:-100]).missing_bytes > 0
    assert "ends within its header" in refusal(path, whole[:200])


@pytest.mark.parametrize("data", [b"", b"GG", b"GGML" + bytes(40), b"\0" * 4096, b"PK\x03\x04zip"])
def test_another_kind_of_file_is_refused(path: Path, data: bytes) -> None:
    refusal(path, data)


def test_a_missing_file_a_directory_and_a_fifo_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("missing", "", "fifo"):
        with pytest.raises(InvalidGGUF) as caught:
            read_header(tmp_path / name)
        assert str(tmp_path) not in str(caught.value)


HUGE = 2**64 - 1


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<4sIQQ", b"GGUF", 3, 0, HUGE),
        struct.pack("<4sIQQ", b"GGUF", 3, HUGE, 0),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 10_000),
        struct.pack("<4sIQQ", b"GGUF", 3, 100_000, 0),
        header_bytes(struct.pack("<Q", HUGE)),
        header_bytes(text("k") + struct.pack("<I", 77)),
        header_bytes(text("k") + struct.pack("<IQ", STRING, HUGE)),
        header_bytes(text("k") + struct.pack("<IIQ", ARRAY, U32, HUGE)),
        header_bytes(text("k") + struct.pack("<IIQ", ARRAY, 12, 2**61)),
        header_bytes(text("k") + struct.pack("<IIQ", ARRAY, STRING, HUGE)),
        header_bytes(text("k") + struct.pack("<IIQQ", ARRAY, STRING, 6, HUGE) + bytes(100)),
        header_bytes(text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1)),
        header_bytes(text("k") + struct.pack("<IIQ", ARRAY, 99, 0)),
        header_bytes(*[text("k") + struct.pack("<II", U32, 1)] * 2),
        header_bytes(tensors=text("t") + struct.pack("<I", 5) + bytes(100), count=1),
        header_bytes(tensors=text("t") + struct.pack("<I", HUGE % 2**32), count=1),
        header_bytes(tensors=text("t") + struct.pack("<IQQIQ", 2, HUGE, HUGE, 0, 0), count=1),
        header_bytes(text("general.alignment") + struct.pack("<II", U32, 0)),
        header_bytes(text("general.alignment") + struct.pack("<II", U32, 33)),
        header_bytes(text("general.alignment") + struct.pack("<I", STRING) + text("x")),
    ],
)
@pytest.mark.parametrize("verbose", [False, True])
def test_counts_that_cannot_be_true_are_refused_at_once(
    path: Path, data: bytes, verbose: bool
) -> None:
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidGGUF):
            read_header(path, verbose=verbose)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024**2
    finally:
        tracemalloc.stop()


def test_a_huge_sparse_file_costs_no_memory(path: Path) -> None:
    # Zeros are empty texts: as many of them as may be looked at, in a file that takes no disk.
    for count, verdict in ((500_000, None), (2**37, "longer than 64 MiB")):
        path.write_bytes(header_bytes(text("k") + struct.pack("<IIQ", ARRAY, STRING, count)))
        os.truncate(path, 2**40)
        tracemalloc.start()
        try:
            assert read_header(path).metadata == {"k": None}
        except InvalidGGUF as error:
            assert verdict
            assert verdict in str(error)  # noqa: PT017
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 8 * 1024**2


def test_what_does_not_fit_the_budget_is_left_out_and_the_rest_still_read(path: Path) -> None:
    long_text = text("long") + struct.pack("<I", STRING) + text("x" * 2**21)
    long_list = text("list") + struct.pack("<IIQ", ARRAY, STRING, 6) + text("y" * 2**22) * 6
    numbers = text("numbers") + struct.pack("<IIQ", ARRAY, 0, 2**25) + bytes(2**25)
    last = text("last") + struct.pack("<II", U32, 7)
    header = read_bytes(path, header_bytes(long_text, long_list, numbers, last), verbose=True)
    assert header.metadata == {"long": None, "list": None, "numbers": None, "last": 7}


def test_values_are_such_that_json_can_carry_them(path: Path) -> None:
    pairs = [
        text("nan") + struct.pack("<If", 6, math.nan),
        text("inf") + struct.pack("<Id", 12, -math.inf),
        text("most") + struct.pack("<If", 6, 3.4028234e38),
        text("bad") + struct.pack("<I", STRING) + text(b"a\xff\xfeb"),
        text(b"k\xff") + struct.pack("<I?", 7, True),
        text("u64") + struct.pack("<IQ", 10, 2**64 - 1),
        text("i64") + struct.pack("<Iq", 11, -(2**63)),
        text("floats") + struct.pack("<IIQ2f", ARRAY, 6, 2, math.nan, 0.1),
    ]
    metadata = read_bytes(path, header_bytes(*pairs)).metadata
    assert metadata["nan"] is None
    assert metadata["inf"] is None
    assert metadata["bad"] == "a\ufffd\ufffdb"
    assert metadata["k\ufffd"] is True
    assert metadata["u64"] == 2**64 - 1
    assert metadata["floats"] == [None, 0.1]
    assert struct.pack("<f", metadata["most"]) == struct.pack("<f", 3.4028234e38)
    orjson.dumps(metadata)


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_keeps_its_value_and_is_short(
    tmp_path_factory: pytest.TempPathFactory, value: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "float.gguf"
    shown = read_bytes(path, header_bytes(text("f") + struct.pack("<If", 6, value))).metadata["f"]
    assert struct.pack("<f", shown) == struct.pack("<f", value)
    assert float(f"{shown:.9g}") == shown


@pytest.mark.parametrize("value", [0.1, 1e-05, 1e-06, 0.95, 10000.0, 500000.0, 1e9, -2.5])
def test_a_float_of_four_bytes_is_shown_as_it_was_written(path: Path, value: float) -> None:
    pair = text("f") + struct.pack("<If", 6, value)
    assert read_bytes(path, header_bytes(pair)).metadata["f"] == value


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=400), prefix=st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0"]))
def test_random_bytes_only_ever_give_the_readers_own_error(
    path: Path, data: bytes, prefix: bytes
) -> None:
    path.write_bytes(prefix + data)
    try:
        orjson.dumps(facts_of(read_header(path, verbose=True)))
    except InvalidGGUF as error:
        assert str(path) not in str(error)  # noqa: PT017


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_mutated_header_only_ever_gives_the_readers_own_error(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = random.Random(seed)
    base = tmp_path_factory.getbasetemp()
    whole = base / "whole.gguf"
    if not whole.exists():
        write_gguf(whole)
    data = bytearray(whole.read_bytes())
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(2000)
        data[at : at + 8] = chance.choice(
            [b"\xff" * 8, bytes(8), chance.randbytes(1), chance.randbytes(8), b""]
        )
    path = base / "mutated.gguf"
    path.write_bytes(data[: chance.choice([len(data), chance.randrange(len(data))])])
    try:
        header = read_header(path, verbose=chance.random() < 0.5)
    except InvalidGGUF:
        return
    orjson.dumps(header.metadata)
    orjson.dumps(facts_of(header))


def test_a_large_vocabulary_is_read_many_times_faster_than_by_the_package(
    path: Path,
) -> None:
    # 8 k tokens: the package's reader needs half a second for them already.
    write_gguf(path, vocabulary=8_000)
    started = time.thread_time()
    read_header(path)
    ours = time.thread_time() - started
    started = time.thread_time()
    gguf.GGUFReader(path)
    assert ours * 5 < time.thread_time() - started


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0"),
        (999, "999"),
        (1_234, "1K"),
        (134_515_008, "134.52M"),
        (8_000_000_000, "8B"),
        (8_030_261_312, "8.0B"),
        (671_026_419_200, "671.0B"),
    ],
)
def test_numbers_of_parameters_are_written_as_ollama_does(count: int, shown: str) -> None:
    assert human_number(count) == shown


def test_encoders_embed(path: Path) -> None:
    assert facts_of(read_header(write_gguf(path, architecture="bert"))).embeds
    pooled = header_bytes(
        text("general.architecture") + struct.pack("<I", STRING) + text("qwen3"),
        text("qwen3.pooling_type") + struct.pack("<II", U32, 3),
    )
    assert facts_of(read_bytes(path, pooled)).embeds


@pytest.mark.parametrize("value", [struct.pack("<I", STRING) + text("x"), struct.pack("<I?", 7, 1)])
def test_metadata_of_the_wrong_type_counts_as_not_there(path: Path, value: bytes) -> None:
    keys = ("general.architecture", "general.file_type", "llama.context_length")
    facts = facts_of(read_bytes(path, header_bytes(*[text(key) + value for key in keys])))
    assert (facts.quantization, facts.context_length) == ("unknown", 0)
