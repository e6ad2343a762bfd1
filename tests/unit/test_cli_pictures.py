"""Pictures that prompts name by their files, and how they reach the server."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from pronk.frontend.cli.conversation import pictures
from pronk.frontend.cli.conversation.pictures import taken_out
from pronk.protocol.errors import PronkError
from support.cli import Pronk, error
from support.played_api import PlayedApi, said
from support.terminal import terminal

RED, BLUE = b"red pixels", b"blue pixels"


@pytest.fixture
def album(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "red.png").write_bytes(RED)
    (tmp_path / "my blue.JPeG").write_bytes(BLUE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("prompt", "text", "found"),
    [
        ("what is in ./red.png?", "what is in ?", [RED]),
        ("./red.png", "", [RED]),
        ("{album}/red.png and ~/red.png", "and", [RED, RED]),
        ("compare ./red.png with ./my blue.JPeG, please", "compare  with , please", [RED, BLUE]),
        ("compare ./my\\ blue.JPeG", "compare", [BLUE]),
        ("""'./my blue.JPeG' "./red.png" which?""", "which?", [BLUE, RED]),
        ("the same ./red.png ./red.png", "the same", [RED]),
        ("this:./red.png (./my blue.JPeG)", "this: ()", [RED, BLUE]),
        ("and/../red.png", "and/../red.png", []),
        ("red.png has no path", "red.png has no path", []),
        ("nothing in ./green.png", "nothing in ./green.png", []),
        ("'./red.png is half quoted", "'./red.png is half quoted", []),
        ("https://example.org/red.png", "https://example.org/red.png", []),
        ("./ on one line\nred.png on another", "./ on one line\nred.png on another", []),
        ("\0 /\0.png ~nobody-here/a.png " + "/x" * 5000 + ".png", None, []),
    ],
)
def test_files_of_pictures_are_found(
    album: Path, prompt: str, text: str | None, found: list[bytes]
) -> None:
    prompt = prompt.format(album=album)
    left, taken = taken_out(prompt)
    assert left == (prompt if text is None else text)
    assert list(taken.values()) == found


def test_a_long_prompt_is_not_searched_for_ever(
    album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(pictures, "_file", lambda name: tried.append(name))
    assert taken_out("/a.png " * 3000)[1] == {}
    assert len(tried) <= 2 * pictures._MOST_TRIES


def test_a_picture_that_is_too_large_is_told(album: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_IMAGE", 5)
    with pytest.raises(PronkError, match=r"\./red\.png: a picture may have"):
        taken_out("./red.png")


def sent(body: dict) -> list[bytes]:
    return [base64.b64decode(image) for image in body.get("images") or []]


def test_run_shows_pictures_to_a_model_that_sees(api: PlayedApi, pronk: Pronk, album: Path) -> None:
    api.models["m"]["capabilities"] = ["completion", "vision"]
    api.answer = said("A llama.")
    result = pronk("run", "m", "what is in ./red.png?", stdin="Say of ./red.png:\n")
    assert result.stdout == "A llama.\n"
    assert result.stderr == "Added image './red.png'\n"
    (body,) = api.bodies("/api/generate")
    assert sent(body) == [RED], "text that is piped names no files"
    assert body["prompt"] == "Say of ./red.png:\n what is in ?"


def test_to_others_a_path_is_text(api: PlayedApi, pronk: Pronk, album: Path) -> None:
    api.answer = said("No idea.")
    pronk("run", "m", "what is in ./red.png?")
    (body,) = api.bodies("/api/generate")
    assert (body["prompt"], sent(body)) == ("what is in ./red.png?", [])


@pytest.mark.skipif("os.geteuid() == 0", reason="root may read everything")
def test_a_picture_that_cannot_be_read_is_told(api: PlayedApi, pronk: Pronk, album: Path) -> None:
    api.models["m"]["capabilities"] = ["completion", "vision"]
    (album / "red.png").chmod(0)
    told = error(pronk("run", "m", "./red.png", status=1))
    assert told == "./red.png: Permission denied"


def test_a_conversation_with_pictures(api: PlayedApi, album: Path) -> None:
    api.models["m"]["capabilities"] = ["completion", "vision"]
    api.answer = said("Red.")
    with terminal("run", "m", home=album, url=api.url, columns=200) as screen:
        screen.read_until(">>> ")
        screen.type(f"{album}/red.png\n")  # begins like a command
        screen.read_until("Added image")
        screen.read_until("Red.\n\n>>> ")
        screen.type("And now?\n")
        screen.read_until("Red.\n\n>>> ")
        screen.type("/save mine\n")
        screen.read_until("Created new model")
        first, second = api.bodies("/api/chat")
        assert [sent(message) for message in first["messages"]] == [[RED]]
        assert [sent(message) for message in second["messages"]] == [[RED], [], []]
        (made,) = api.bodies("/api/create")
        assert all(message.keys() == {"role", "content"} for message in made["messages"])
