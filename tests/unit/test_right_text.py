"""The measure by which other tests call a text right can tell right from wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.models import write_reciting_model
from support.recurrent import HYBRID, RECURRENT, RecurrentShape, write_recurrent_model
from support.right_text import assert_right, greedy_answer, score, sure_length

PROMPT = list(b"once a")


@pytest.fixture(scope="module")
def reciting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("right") / "reciting.gguf"
    write_reciting_model(path, ["\nabcdefgh"], poison="!")
    return path


def test_the_likeliest_tokens_are_right(reciting: Path) -> None:
    assert greedy_answer(reciting, PROMPT, 7) == list(b"bcdefgh")
    assert_right(reciting, PROMPT, list(b"bcdefgh"))
    assert score(reciting, PROMPT, list(b"bcdefgh")).below.tolist() == [0.0] * 7


def test_a_wrong_token_is_found_where_it_stands(reciting: Path) -> None:
    with pytest.raises(AssertionError, match=r"token 2 of 4 \(120\) lies 1[0-9]\.[0-9]+ dev"):
        assert_right(reciting, PROMPT, list(b"bcxy"))


def test_an_answer_to_another_prompt_is_wrong(reciting: Path) -> None:
    with pytest.raises(AssertionError, match="token 0 of 3"):
        assert_right(reciting, list(b"once b"), list(b"bcd"))


def test_what_is_no_number_is_not_right(reciting: Path) -> None:
    with pytest.raises(AssertionError, match="token 0 of 3"):
        assert_right(reciting, list(b"once! a"), list(b"bcd"))


@pytest.mark.parametrize("length", [1, 511, 512, 513, 1100])
def test_long_texts_are_scored_in_parts(reciting: Path, length: int) -> None:
    prompt = [*b"." * (length - 1), ord("a")]
    answer = list(b"bcdefgh")
    assert score(reciting, prompt, answer).below.tolist() == [0.0] * 7
    wrong = score(reciting, prompt, [*answer[:-1], ord("x")]).below
    assert np.flatnonzero(wrong).tolist() == [6]


def test_an_answer_is_sure_up_to_the_first_near_tie(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_recurrent_model(path)
    answer = greedy_answer(path, PROMPT, 32)
    margins = score(path, PROMPT, answer).margins
    tie = int(margins.argmin())
    assert tie > 0, "the test needs another model"
    assert sure_length(path, PROMPT, answer, epsilon=float(margins[tie])) == tie
    assert sure_length(path, PROMPT, answer, epsilon=0.0) == 32


@pytest.mark.parametrize("shape", [RECURRENT, HYBRID], ids=["recurrent", "hybrid"])
def test_recurrent_models_answer_by_what_stood_far_back(
    tmp_path: Path, shape: RecurrentShape
) -> None:
    path = tmp_path / "model.gguf"
    write_recurrent_model(path, shape)
    first, second = (list(b"%b lived happily ever after." % who) for who in (b"Anna", b"Otto"))
    answer = greedy_answer(path, first, 24)
    assert len(set(answer)) > 8
    assert_right(path, first, answer)
    with pytest.raises(AssertionError, match="deviations below the maximum"):
        assert_right(path, second, answer)


@pytest.mark.parametrize("length", [511, 512, 513, 1024, 1100])
def test_long_prompts_are_answered_alone(reciting: Path, length: int) -> None:
    assert greedy_answer(reciting, [*b"." * (length - 1), ord("a")], 5) == list(b"bcdef")
