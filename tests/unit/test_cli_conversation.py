"""`pronk run` at a terminal: what is typed, what is shown, what the server is asked."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pronk.frontend.cli.api import Api
from pronk.frontend.cli.conversation.commands import HELP, SET_HELP, SHOW_HELP, Commands
from pronk.frontend.cli.conversation.reading import MAX_ENTRIES, Reader
from pronk.frontend.cli.conversation.session import Session
from pronk.protocol.errors import PronkError
from support.played_api import PULLED, PlayedApi, said
from support.terminal import CTRL_C, CTRL_D, Terminal, terminal

ASK = ">>> "


@pytest.fixture
def api(api: PlayedApi) -> PlayedApi:
    api.models["m"]["system"] = "Be brief."
    api.answer = said("Blue", ".")
    return api


@pytest.fixture
def session(api: PlayedApi) -> Session:
    return Session(Api(api.url), "m")


@pytest.fixture
def commands(session: Session) -> Commands:
    return Commands(session, Reader())


@pytest.fixture
def screen(api: PlayedApi, tmp_path: Path) -> Iterator[Terminal]:
    """A conversation that has begun."""
    with terminal("run", "m", home=tmp_path, url=api.url, columns=40) as screen:
        screen.read_until(f"(/? for help)\n{ASK}")
        yield screen


def say(screen: Terminal, *lines: str) -> str:
    """Types lines, and reads until the next prompt."""
    for line in lines:
        screen.type(f"{line}\n")
    screen.read_until(lines[-1])
    return screen.read_until(ASK)


def test_a_conversation(api: PlayedApi, screen: Terminal) -> None:
    assert say(screen, "Why?").endswith("Blue.\n\n>>> ")
    say(screen, '"""two', 'lines"""')
    assert say(screen, "/set system Be kind.") == "\nSet system message.\n>>> "
    say(screen, "And?")
    screen.type("/bye\n")
    assert screen.wait() == 0
    answer = {"role": "assistant", "content": "Blue."}
    said_so_far = [
        {"role": "user", "content": "Why?"},
        answer,
        {"role": "user", "content": "two\nlines"},
        answer,
        {"role": "user", "content": "And?"},
    ]
    asked = [body["messages"] for body in api.bodies("/api/chat")]
    assert asked[0] == said_so_far[:1]
    assert asked[2] == [{"role": "system", "content": "Be kind."}, *said_so_far]


def test_ctrl_c_stops_the_answer_and_not_the_session(api: PlayedApi, screen: Terminal) -> None:
    never = threading.Event()
    api.answer = [*said("As far as")[:1], never]
    screen.type("Go\n")
    screen.read_until("As far as")
    screen.type(CTRL_C)
    screen.read_until(ASK)
    never.set()
    api.answer = said("Back.")
    assert "Back." in say(screen, "Again")
    assert [message["content"] for message in api.bodies("/api/chat")[-1]["messages"]] == [
        "Go",
        "As far as",
        "Again",
    ]
    screen.type("half a line")
    screen.read_until("half a line")
    screen.interrupt_until(f"Use Ctrl + d or /bye to exit.\n{ASK}")
    screen.type(CTRL_D)
    assert screen.wait() == 0
    assert "Traceback" not in screen.shown


def test_an_error_ends_no_session(api: PlayedApi, screen: Terminal) -> None:
    api.answer = [{"error": "the model is too large"}]
    assert "Error: the model is too large\n" in say(screen, "One")
    api.answer = said("Here.")
    assert "Here." in say(screen, "Two")
    (message,) = api.bodies("/api/chat")[-1]["messages"]
    assert message["content"] == "Two", "what failed was not said"


def test_words_are_whole_and_commands_for_the_terminal_gone(
    api: PlayedApi, screen: Terminal
) -> None:
    words = "Sunlight contains all colours and the air scatters blue light "
    api.answer = said(*[words[i : i + 4] for i in range(0, len(words), 4)], "\x1b]0;evil\x07end")
    shown = say(screen, "Why?")
    assert "\x1b]0;" not in screen.raw
    assert "]0;evilend" in shown
    assert "all colours and the a\x1b[1D\x1b[K\r\nair scatters" in screen.raw


def test_what_was_written_is_there_next_time(
    api: PlayedApi, screen: Terminal, tmp_path: Path
) -> None:
    say(screen, "first words")
    say(screen, "/set nohistory")
    say(screen, "secret words")
    screen.type(CTRL_D)
    assert screen.wait() == 0
    history = tmp_path / ".pronk" / "history"
    assert history.read_text() == "first words\n/set nohistory\n"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700
    with terminal("run", "m", home=tmp_path, url=api.url) as again:
        again.read_until(ASK)
        again.type("\x1b[A\x1b[A\n")
        again.read_until("Blue.")
        assert api.bodies("/api/chat")[-1]["messages"][0]["content"] == "first words"


def test_messages_of_the_model_are_shown(api: PlayedApi, tmp_path: Path) -> None:
    api.models["m"]["messages"] = [
        {"role": "system", "content": "hidden"},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Hi there."},
    ]
    with terminal("run", "m", home=tmp_path, url=api.url, term="dumb") as screen:
        shown = screen.read_until("for help)")
        assert "\n>>> Hello?\nHi there.\n" in f"\n{shown}"
        assert "hidden" not in shown
        assert "\x1b" not in screen.raw.replace("\x1b[?2004h", ""), "but what readline itself says"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_of_another_encoding_shows_what_it_can(
    api: PlayedApi, tmp_path: Path, encoding: str
) -> None:
    api.answer = said("a llama: ", "🦙 漢", " end")
    with terminal("run", "m", home=tmp_path, url=api.url, PYTHONIOENCODING=encoding) as screen:
        screen.read_until(ASK)
        screen.type("größer?\n")
        screen.read_until("a llama: ? ? end")
        screen.type("/bye\n")
        assert screen.wait() == 0
        assert "Traceback" not in screen.shown
    assert api.bodies("/api/chat")[0]["messages"][0]["content"].startswith("gr")


def test_ctrl_c_before_it_has_begun_ends_it(api: PlayedApi, tmp_path: Path) -> None:
    api.pull = [PULLED[0], threading.Event()]
    with terminal("run", "new", home=tmp_path, url=api.url) as screen:
        screen.read_until("pulling manifest")
        screen.type(CTRL_C)
        assert screen.wait() == 130
        assert "Traceback" not in screen.shown


# The lines that begin with a slash


def test_settings_reach_the_server(api: PlayedApi, session: Session, commands: Commands) -> None:
    for line in (
        "/set parameter temperature 0.1",
        '/set parameter stop "a c" b',
        "/set parameter num_ctx 128",
        "/set format json",
        "/set think max",
    ):
        commands.do(line)
    session.say("Hi")
    (asked,) = api.bodies("/api/chat")
    assert asked["options"] == {"temperature": 0.1, "stop": ["a c", "b"], "num_ctx": 128}
    assert (asked["format"], asked["think"]) == ("json", "max")
    for line in ("/set noformat", "/set nothink"):
        commands.do(line)
    session.say("Hi")
    assert "format" not in api.bodies("/api/chat")[1]
    assert api.bodies("/api/chat")[1]["think"] is False


def test_switches(session: Session, commands: Commands, capsys: pytest.CaptureFixture) -> None:
    for line in ("/set verbose", "/set nowordwrap"):
        commands.do(line)
    assert (session.verbose, session.wraps) == (True, False)
    for line in ("/set quiet", "/set wordwrap"):
        commands.do(line)
    assert (session.verbose, session.wraps) == (False, True)
    assert capsys.readouterr().out.splitlines() == [
        "Set 'verbose' mode.",
        "Set 'nowordwrap' mode.",
        "Set 'quiet' mode.",
        "Set 'wordwrap' mode.",
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/set parameter temperature hot", "parameter temperature must be a number"),
        ("/set parameter temprature 1", "parameter temprature is no parameter"),
        ("/set parameter top_k", "parameter top_k has no value"),
        ("/set parameter stop", "parameter stop has no value"),
        ("/set format xml", "a format is `json`"),
        ("/load nowhere", "the registry has no such model"),
        ("/save bad", "no room"),
    ],
)
def test_mistakes_are_told(
    api: PlayedApi, session: Session, commands: Commands, line: str, told: str
) -> None:
    api.pull = [{"error": "the registry has no such model"}]
    api.create = [{"error": "no room"}]
    with pytest.raises(PronkError, match=told):
        commands.do(line)
    assert session.model == "m"
    assert session.options == {}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/?", HELP),
        ("/help", HELP),
        ("/? set", SET_HELP),
        ("/help /show", SHOW_HELP),
        ("/set", SET_HELP),
        ("/set nonsense", SET_HELP),
        ("/show", SHOW_HELP),
        ("/load", "Usage:\n  /load <model>"),
        ("/save", "Usage:\n  /save <model>"),
        ("/nonsense x", "Unknown command '/nonsense'. Type /? for help"),
        ("/show system", "Be brief."),
        ("/show license", "This model has no license."),
        ("/show info", "  Capabilities\n    completion"),
    ],
)
def test_help_and_what_is_known(
    commands: Commands, capsys: pytest.CaptureFixture, line: str, shown: str
) -> None:
    commands.do(line)
    assert shown in capsys.readouterr().out


def test_every_parameter_is_listed(commands: Commands, capsys: pytest.CaptureFixture) -> None:
    commands.do("/set parameter")
    assert {"  temperature", "  stop", "  num_ctx"} <= set(capsys.readouterr().out.splitlines())


def test_what_was_set_is_shown(
    commands: Commands, session: Session, capsys: pytest.CaptureFixture
) -> None:
    commands.do("/set system Be kind.")
    commands.do("/set parameter top_k 3")
    capsys.readouterr()
    commands.do("/show system")
    assert capsys.readouterr().out == "Be kind.\n"
    commands.do("/show parameters")
    assert capsys.readouterr().out.split() == ["Set", "in", "this", "session:", "top_k", "3"]


def test_clear_forgets_what_was_said(api: PlayedApi, session: Session, commands: Commands) -> None:
    session.say("One")
    commands.do("/clear")
    session.say("Two")
    assert len(api.bodies("/api/chat")[1]["messages"]) == 1


def test_a_session_is_saved_as_a_model(
    api: PlayedApi, session: Session, commands: Commands
) -> None:
    session.preset = [{"role": "user", "content": "Zero"}]
    commands.do("/set system Be kind.")
    commands.do("/set parameter top_k 3")
    session.say("One")
    commands.do("/save mine")
    assert api.bodies("/api/create") == [
        {
            "model": "mine",
            "from": "m",
            "stream": True,
            "parameters": {"top_k": 3},
            "system": "Be kind.",
            "messages": [
                {"role": "user", "content": "Zero"},
                {"role": "user", "content": "One"},
                {"role": "assistant", "content": "Blue."},
            ],
        }
    ]


def test_another_model_is_loaded_and_begins_anew(
    api: PlayedApi, session: Session, commands: Commands
) -> None:
    api.models["n"] = {"capabilities": ["completion"]}
    commands.do("/set system Be kind.")
    session.say("One")
    commands.do("/load n")
    assert (session.model, session.messages, session.system) == ("n", [], None)
    assert api.bodies("/api/generate")[-1]["model"] == "n"


# The history


def test_a_long_history_is_cut(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text("".join(f"line {i} {'x' * 200}\n" for i in range(10_000)))
    Reader(file)
    kept = file.read_text().splitlines()
    assert len(kept) == MAX_ENTRIES
    assert kept[-1].startswith("line 9999 ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["history"]


@pytest.mark.parametrize("kind", ["directory", "bytes", "forbidden"])
def test_a_history_that_cannot_be_kept_is_done_without(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "history"
    if kind == "directory":
        file.mkdir()
    elif kind == "bytes":
        file.write_bytes(b"\xff\xfe\0\n" * 10)
    else:
        (tmp_path / "plain").write_text("")
        file = tmp_path / "plain" / "history"
    monkeypatch.setattr("builtins.input", lambda *_: "a line")
    assert Reader(file).read(ASK) == "a line"
