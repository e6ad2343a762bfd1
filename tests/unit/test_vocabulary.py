"""Tokenizing: in several threads at once, and whatever the text."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pronk.workers.inference.llama import Model, Vocabulary
from pronk.workers.inference.segments import LONGEST, PORTION, portions, survivable
from pronk.workers.store.demo import WEIGHTS
from support.models import write_reciting_model

PROSE = "The quick brown fox, 42 dogs and a naïve Ünïcode poem: 雪が降る。\n" * 400


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Model(WEIGHTS).vocabulary


def test_texts_come_back_from_their_tokens(vocabulary: Vocabulary) -> None:
    for text in (PROSE, "", "\0\0a\0", "\r\n\t  x", "<|im_start", "😀" * 5000, "a" * 100_000):
        tokens = vocabulary.tokenize(text)
        assert b"".join(map(vocabulary.piece, tokens)).decode() == text


def test_control_tokens_count_where_they_may(vocabulary: Vocabulary) -> None:
    text = vocabulary.eos_text
    assert len(vocabulary.tokenize(text)) == 1
    assert vocabulary.ends_generation(vocabulary.tokenize(text)[0])
    spelled = vocabulary.tokenize(text, special=False)
    assert b"".join(map(vocabulary.piece, spelled)).decode() == text


def test_half_of_a_surrogate_pair_is_replaced(vocabulary: Vocabulary) -> None:
    assert vocabulary.tokenize("a\ud800b") == vocabulary.tokenize("a?b")


def test_the_longest_piece_is_that_of_a_token(vocabulary: Vocabulary) -> None:
    pieces = [vocabulary.piece(token) for token in range(vocabulary.size)]
    assert vocabulary.longest_piece >= max(map(len, pieces)) > 1


def test_threads_do_not_disturb_each_other(vocabulary: Vocabulary) -> None:
    texts = [PROSE[start:] for start in range(32)]
    expected = [vocabulary.tokenize(text) for text in texts]
    fresh = Model(WEIGHTS).vocabulary

    def both(text: str) -> tuple[list[int], str]:
        tokens = fresh.tokenize(text)
        return tokens, b"".join(map(fresh.piece, tokens)).decode()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(both, texts)) == list(zip(expected, texts, strict=True))


def test_a_text_of_control_tokens_is_read_in_the_time_of_its_length(vocabulary: Vocabulary) -> None:
    """In one piece, two hundred thousand of them take llama.cpp a minute."""
    text = vocabulary.eos_text
    assert vocabulary.tokenize(text * 200_000) == vocabulary.tokenize(text) * 200_000


def test_long_chats_have_the_tokens_of_their_messages(vocabulary: Vocabulary) -> None:
    turns = [f"<|im_start|>user\nmessage {i}, and\n\n words<|im_end|>\n" for i in range(3000)]
    expected = [token for turn in turns for token in vocabulary.tokenize(turn)]
    assert vocabulary.tokenize("".join(turns)) == expected


@pytest.mark.parametrize("tokenizer", ["gpt-4o", "deepseek-llm", "tekken"])
def test_no_text_overflows_the_stack(tokenizer: str, tmp_path: Path) -> None:
    """In a process of its own: the one that fails this test is gone."""
    write_reciting_model(tmp_path / "model.gguf", ["ab"], tokenizer=tokenizer)
    script = """
import sys
from pathlib import Path
from pronk.workers.inference.llama import Model
vocabulary = Model(Path(sys.argv[1])).vocabulary
for character in ("a", "A", "7", " ", "!", "\\n", "\\u3000", " \\u3000", "é", "漢", "a1", "\\0"):
    text = character * 60_000
    tokens = vocabulary.tokenize(text)
    assert b"".join(map(vocabulary.piece, tokens)).decode() == text
"""
    path = str(tmp_path / "model.gguf")
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


# --- parts


def test_ordinary_text_is_one_part() -> None:
    assert survivable(PROSE.encode() * 50) == [PROSE.encode() * 50]


def test_portions_begin_with_control_tokens_or_lines() -> None:
    plain, control = b"x y " * PORTION, re.compile(rb"<e>")
    assert portions(plain, control, lines=True) == [plain]
    assert portions(plain, None, lines=False) == [plain]
    text = plain + b"<e>" + plain
    assert portions(text, control, lines=False) == [plain, b"<e>" + plain]
    lines = b"word\n" * PORTION
    assert portions(lines, control, lines=False) == [lines]
    parts = portions(lines, control, lines=True)
    assert b"".join(parts) == lines
    assert all(part.startswith(b"word") and len(part) <= PORTION for part in parts)
    parts = portions(b"<e>" * PORTION, control, lines=True)
    assert b"".join(parts) == b"<e>" * PORTION
    assert all(part.startswith(b"<e>") and len(part) <= PORTION for part in parts)


def test_a_cut_is_made_where_it_changes_least() -> None:
    run = b"x" * LONGEST
    line = run[10:] + "\u3000\n".encode()
    for parts in (
        [run, b"y"],
        [line, "\u3000".encode() + run[10:]],
        [run[10:], b"<|im_end|>" + run[10:], b"x" * 10],
        ["é".encode() * (LONGEST // 2)] * 2,
    ):
        assert survivable(b"".join(parts)) == parts


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", " ", "\n", "é", "漢", "<", "a b", "\u3000"]), st.integers(1, 9000)
        ),
        max_size=5,
    )
)
def test_parts_are_the_text_in_whole_characters(runs: list[tuple[str, int]]) -> None:
    text = "".join(character * count for character, count in runs)
    assert "".join(part.decode() for part in survivable(text.encode())) == text
