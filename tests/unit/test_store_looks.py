"""Files and templates are looked at by processes that may die of them, once, and by the way."""

from __future__ import annotations

import asyncio
import random
import struct
import sys
import threading
from collections.abc import AsyncIterator, Callable
from io import FileIO
from pathlib import Path

import pytest

from pronk.protocol.errors import Code, PronkError
from pronk.workers.store import demo
from pronk.workers.store.files import stamp_of
from pronk.workers.store.gguf_metadata import InvalidGGUF
from pronk.workers.store.looking import looker as looker_module
from pronk.workers.store.looking import reading, throwaway
from pronk.workers.store.looking.finding import Lacking, LookAtFile, LookAtTemplate
from pronk.workers.store.looking.headers import Headers
from pronk.workers.store.looking.looker import Looker
from pronk.workers.store.looking.read_headers import Detail, said_of
from pronk.workers.store.looking.reading import read, read_one
from pronk.workers.store.looking.templates import Templates
from pronk.workers.store.looking.throwaway import descriptor_of
from support.calls import until
from support.gguf_files import LLAMA, STRING, gguf_bytes, small_gguf, tensor, text
from support.store import tiny_gguf

PATIENCE = 60.0
ARRAY = 9
SAYS = "{% for m in messages %}{{ m.content }}{% endfor %}"
FACTS = (
    '{"facts":{"architecture":"llama","quantization":"F16","parameter_size":"1B",'
    '"context_length":1,"embeds":false,"infills":false,"sees":false,"problem":""}}'
)
SHOWN = '{"metadata":{"a":1},"tensors":[],"omitted":[]}'


@pytest.fixture
def headers() -> Headers:
    return Headers()


@pytest.fixture
async def looker(headers: Headers) -> AsyncIterator[Looker]:
    looker = Looker(headers, Templates())
    yield looker
    looker.close()


def look_at(path: Path, detail: Detail = Detail.BRIEF) -> LookAtFile:
    return LookAtFile(path, stamp_of(path.stat()), detail)


def array(kind: int, count: int, content: bytes) -> bytes:
    return text("k") + struct.pack("<IIQ", ARRAY, kind, count) + content


Play = Callable[[str], None]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Has this script run in the program's place. Each of its runs is a line of the file `runs`."""

    def start(script: str) -> None:
        program = tmp_path / "program"
        program.write_text(
            f"#!{sys.executable}\nimport os, sys, time\n"
            f"print(len(sys.argv[6:]), file=open({str(tmp_path / 'runs')!r}, 'a'))\n{script}\n"
        )
        program.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(program))

    return start


def runs(tmp_path: Path) -> list[int]:
    """How many files each run was given."""
    return [int(line) for line in (tmp_path / "runs").read_text().split()]


# --- what the real program says


@pytest.mark.parametrize("detail", list(Detail))
async def test_a_process_says_what_this_one_would_say(
    headers: Headers, looker: Looker, tmp_path: Path, detail: Detail
) -> None:
    path = tiny_gguf(tmp_path / "tiny")
    look = look_at(path, detail)
    with pytest.raises(Lacking):
        headers.facts(path)
    await looker.take([look])
    own = Headers(path)
    assert headers.facts(path) == own.facts(path)
    if detail is not Detail.FACTS:
        verbose = detail is Detail.VERBOSE
        shown = headers.shown(path, verbose=verbose)
        assert shown == own.shown(path, verbose=verbose)
        assert bool(shown.tensors) is verbose
        assert shown.metadata["tokenizer.chat_template"] == "{{ messages }}"


async def test_a_file_that_changes_is_looked_at_again(
    headers: Headers, looker: Looker, tmp_path: Path
) -> None:
    path = tiny_gguf(tmp_path / "tiny", context=1)
    await looker.take([look_at(path)])
    assert headers.facts(path).context_length == 1
    tiny_gguf(path, context=2)
    with pytest.raises(Lacking):
        headers.facts(path)
    await looker.take([look_at(path)])
    assert headers.facts(path).context_length == 2


HEAVY = {
    "empty texts": lambda: gguf_bytes(pairs=[array(STRING, 2**23 - 8, bytes(2**26 - 64))]),
    "short texts": lambda: gguf_bytes(pairs=[array(STRING, 2**21 - 8, bytes(2**24 - 64))]),
    "zeros": lambda: gguf_bytes(
        pairs=[text(f"k{i}") + struct.pack("<I", STRING) + text(bytes(2**20)) for i in range(4)]
    ),
    "tensors": lambda: gguf_bytes(
        *[tensor(f"{i:06}" + "n" * 500, (32,)) for i in range(100_000)], pairs=[LLAMA]
    ),
    "keys": lambda: gguf_bytes(
        pairs=[text(f"{i:05}" + "\0" * 46) + struct.pack("<II", 4, i) for i in range(10_000)]
    ),
}


@pytest.mark.parametrize("case", HEAVY)
async def test_the_heaviest_headers_are_read_within_what_a_process_may_take(
    headers: Headers, tmp_path: Path, case: str
) -> None:
    """Time and memory: it is killed beyond the one, and dies beyond the other."""
    path = tmp_path / "heavy"
    path.write_bytes(HEAVY[case]())
    await read(headers, [look_at(path, Detail.VERBOSE)])
    headers.facts(path)
    headers.shown(path, verbose=True)


def test_what_would_be_too_long_to_be_said_is_left_out_by_name(tmp_path: Path) -> None:
    """The longest go, tensors like the others; a key may be called as they are."""
    longest = text("long") + struct.pack("<I", STRING) + text(b"\0" * 2**19)
    named = text("tensors") + struct.pack("<I", STRING) + text(b"x" * 2**20)
    names = [tensor(f"{i:06}" + "n" * 500, (32,)) for i in range(20_000)]
    path = tmp_path / "file"
    path.write_bytes(gguf_bytes(*names, pairs=[LLAMA, longest, named]))
    headers = Headers(path)
    assert headers.shown(path).omitted == []
    shown = headers.shown(path, verbose=True)
    assert shown.omitted == ["tensors"]
    assert shown.tensors == []
    assert len(shown.metadata["long"]) == 2**19
    assert len(shown.metadata["tensors"]) == 2**20


def test_whatever_a_mutated_file_makes_it_say_is_understood(tmp_path: Path) -> None:
    chance = random.Random(20261121)
    whole = bytearray(tiny_gguf(tmp_path / "tiny").read_bytes())
    path = tmp_path / "mutated"
    good = 0
    for _ in range(400):
        mutated = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(700)
            match chance.randrange(4):
                case 0:
                    mutated[at] = chance.randrange(256)
                case 1:
                    mutated[at : at + 8] = chance.choice(
                        [bytes(8), b"\xff" * 8, struct.pack("<Q", 2**63), struct.pack("<Q", 5)]
                    )
                case 2:
                    del mutated[at : at + chance.randint(1, 40)]
                case _:
                    mutated[at:at] = chance.randbytes(chance.randint(1, 40))
        path.write_bytes(mutated)
        headers = Headers()
        look = look_at(path, Detail.VERBOSE)
        with FileIO(path) as file:
            for line in said_of(file, Detail.VERBOSE):
                headers.take(look, line)
        try:
            headers.facts(path)
            headers.shown(path, verbose=True)
            good += 1
        except InvalidGGUF as error:
            assert str(error)  # noqa: PT017
    assert 20 < good < 380  # or it would show nothing


# --- programs that a file has made something else of


@pytest.mark.parametrize(
    "said",
    [
        "",
        "nonsense",
        "[1]",
        "{}",
        '{"facts":7}',
        FACTS.replace('"context_length":1', '"context_length":-1'),
        FACTS.replace('"context_length":1', '"context_length":1e30'),
        FACTS.replace('"llama"', '"' + "x" * 129 + '"'),
        FACTS.replace("false", "0", 1),
        FACTS.replace('"problem":""', f'"problem":"{"x" * 400}"'),
        '{"refused":7}',
        FACTS.removesuffix("}}"),
        '{"refused":"a"}\n{"refused":"b"}',
        "x" * 20_000_000,
    ],
)
async def test_what_makes_no_sense_is_a_file_that_is_of_no_use(
    play: Play, headers: Headers, tmp_path: Path, said: str
) -> None:
    file = tmp_path / "said"
    file.write_text(said + "\n")
    play(f"sys.stdout.write(open({str(file)!r}).read())")
    path = small_gguf(tmp_path / "file")
    await read_one(headers, look_at(path))
    with pytest.raises(InvalidGGUF) as caught:
        headers.facts(path)
    assert str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "shown",
    [
        "",
        SHOWN.removesuffix("}"),
        SHOWN.replace("1", "[[1]]"),
        SHOWN.replace("1", '{"b":1}'),
        SHOWN.replace('"tensors":[]', '"tensors":[7]'),
        SHOWN.replace('"tensors":[]', '"tensors":[{"name":"n","type":"t","shape":{}}]'),
        SHOWN.replace('"omitted":[]', '"omitted":[7]'),
    ],
)
async def test_facts_stay_where_nothing_else_that_is_said_makes_sense(
    play: Play, headers: Headers, tmp_path: Path, shown: str
) -> None:
    file = tmp_path / "said"
    file.write_text(f"{FACTS}\n{shown}\n" if shown else f"{FACTS}\n")
    play(f"sys.stdout.write(open({str(file)!r}).read())")
    path = small_gguf(tmp_path / "file")
    await read_one(headers, look_at(path))
    assert headers.facts(path).parameter_size == "1B"
    with pytest.raises(InvalidGGUF):
        headers.shown(path)


async def test_a_busy_host_is_not_held_against_a_file(
    play: Play, headers: Headers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play("time.sleep(3600)")
    monkeypatch.setattr(reading, "_WALL_SECONDS", 0.5)
    path = small_gguf(tmp_path / "file")
    with pytest.raises(PronkError) as caught:
        await read_one(headers, look_at(path))
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.retry_after
    with pytest.raises(Lacking):
        headers.facts(path)


async def test_a_host_without_room_for_a_process_is_not_held_against_a_file(
    headers: Headers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    path = small_gguf(tmp_path / "file")
    with pytest.raises(PronkError) as caught:
        await read_one(headers, look_at(path))
    assert caught.value.code is Code.UNAVAILABLE
    assert str(tmp_path) not in caught.value.message
    with pytest.raises(Lacking):
        headers.facts(path)


READS_ALL = f"""
for file in map(int, sys.argv[6:]):
    if os.pread(file, 3, 0) == b"BAD":
        os.kill(os.getpid(), 9)
    os.write(1, {FACTS.encode()!r} + b"\\n")
"""


async def test_one_process_reads_many_files_for_a_list_and_dies_of_its_own_alone(
    play: Play, headers: Headers, looker: Looker, tmp_path: Path
) -> None:
    play(READS_ALL)
    paths = [tmp_path / f"file{number}" for number in range(9)]
    for path in paths:
        path.write_bytes(b"BAD" if path.name == "file4" else b"good")
    paths.append(tmp_path / "gone")
    looks = [look_at(path, Detail.FACTS) for path in paths[:-1]]
    await looker.take([*looks, LookAtFile(paths[-1], (1, 1, 1, 1), Detail.FACTS)])
    assert runs(tmp_path) == [9, 1, 4]
    for path in paths[:4] + paths[5:9]:
        assert headers.facts(path).architecture == "llama"
    with pytest.raises(InvalidGGUF, match="made the process that read it fail"):
        headers.facts(paths[4])


async def test_who_lacks_the_same_waits_for_one_look(
    play: Play, headers: Headers, looker: Looker, tmp_path: Path
) -> None:
    play(f"print({FACTS!r}); print({SHOWN!r})")
    path = small_gguf(tmp_path / "file")
    await asyncio.gather(*(looker.take([look_at(path)]) for _ in range(20)))
    assert runs(tmp_path) == [1]
    assert headers.shown(path).metadata == {"a": 1}


async def test_who_goes_away_ends_nobody_elses_look(
    play: Play, headers: Headers, looker: Looker, tmp_path: Path
) -> None:
    play(
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\n"
        f"print({FACTS!r}); print({SHOWN!r})"
    )
    path = small_gguf(tmp_path / "file")
    first, second = (asyncio.create_task(looker.take([look_at(path)])) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    (tmp_path / "go").touch()
    async with asyncio.timeout(PATIENCE):
        await second
    assert headers.facts(path).parameter_size == "1B"


async def test_who_goes_away_while_a_file_is_opened_leaves_nothing_open(
    headers: Headers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open = threading.Event(), threading.Event()
    opened: list[int] = []
    path = small_gguf(tmp_path / "file")

    def slowly(path: Path) -> int:
        opening.set()
        assert may_open.wait(PATIENCE)
        opened.append(descriptor_of(path))
        return opened[0]

    def is_open() -> bool:
        try:
            return Path(f"/proc/self/fd/{opened[0]}").readlink() == path
        except FileNotFoundError:
            return False

    monkeypatch.setattr(throwaway, "descriptor_of", slowly)
    look = asyncio.create_task(read_one(headers, look_at(path)))
    await until(opening.is_set)
    look.cancel()
    await asyncio.wait([look])
    may_open.set()
    await until(lambda: opened and not is_open())


async def test_what_takes_longer_than_a_list_waits_is_done_all_the_same(
    play: Play, headers: Headers, looker: Looker, tmp_path: Path
) -> None:
    play(f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)\nprint({FACTS!r})")
    path = small_gguf(tmp_path / "file")
    look = look_at(path, Detail.FACTS)
    await looker.take([look], seconds=0.01)
    with pytest.raises(Lacking):
        headers.facts(path)
    (tmp_path / "go").touch()
    async with asyncio.timeout(PATIENCE):
        await looker.take([look])
    assert headers.facts(path).parameter_size == "1B"
    assert runs(tmp_path) == [1]


async def test_files_that_never_stay_the_same_end_in_an_answer(
    looker: Looker, tmp_path: Path
) -> None:
    async def ask(content: bool) -> None:
        raise Lacking(LookAtFile(tmp_path / "gone", (1, 1, 1, 1), Detail.BRIEF))

    with pytest.raises(PronkError, match="try again") as caught:
        await looker.answered(ask)
    assert caught.value.code is Code.UNAVAILABLE


def test_the_programs_own_file_is_read_without_a_process() -> None:
    headers = Headers(demo.WEIGHTS)
    assert headers.facts(demo.WEIGHTS).architecture == "llama"
    assert headers.shown(demo.WEIGHTS).metadata["general.architecture"] == "llama"


# --- templates


async def test_a_template_is_tried_once_for_all_who_ask(
    looker: Looker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def found_out(source: str) -> dict[str, object]:
        tried.append(source)
        return {"traits": {}}

    monkeypatch.setattr(looker_module, "found_out", found_out)
    answers = await asyncio.gather(*(looker.template(SAYS) for _ in range(5)))
    assert answers == [{"traits": {}}] * 5
    assert tried == [SAYS]


def test_what_would_be_too_much_to_remember_of_a_template_is_not() -> None:
    templates = Templates()
    templates.keep("source", {"format": "x" * 2**21})
    assert set(templates.known("source")) == {"broken"}
    with pytest.raises(Lacking) as caught:
        templates.known("another")
    assert caught.value.looks == (LookAtTemplate("another"),)


async def test_a_template_in_go_tells_whether_it_fills_gaps(looker: Looker) -> None:
    """By the process that tries it: nothing of it is read here."""
    fills = await looker.template("{{ .Prompt }}{{ .Suffix }}")
    assert fills["insert"] is True
    assert (await looker.template(SAYS))["insert"] is False
