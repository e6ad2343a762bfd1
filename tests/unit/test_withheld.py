"""What a process may not know never comes into its memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pronk.protocol.errors import PronkError
from pronk.protocol.settings import load_settings
from pronk.protocol.withheld import advice, load_open_settings, without_registries

SECRET = "hunter2-0123456789"
TABLE = f'[registry."a.test"]\nusername = "ann"\npassword = "{SECRET}"\n'


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("PRONK_", "OLLAMA_")):
            monkeypatch.delenv(name)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "pronk.toml"
    path.write_text(f"workers = 5\n{TABLE}")
    path.chmod(0o600)
    monkeypatch.setenv("PRONK_CONFIG", str(path))
    return path


DOCUMENTS = {
    "a table": f"workers = 1\n{TABLE}\n[model.demo]\nmax_replicas = 2\n",
    "tables first": f"{TABLE}{TABLE.replace('a.test', 'b.test')}[model.demo]\nmax_replicas = 2\n",
    "no end of line": TABLE.rstrip(),
    "spaces": f'workers = 1\n  [ registry . "a.test" ]  # mine\n  token = "{SECRET}"\n',
    "quoted": f'["registry"."a.test"]\ntoken = "{SECRET}"\n["model".demo]\nmax_replicas = 2\n',
    "in single quotes": f"['registry'.'a.test']\ntoken = '{SECRET}'\n",
    "the other name": f'[registries."a.test"]\ntoken = "{SECRET}"\n',
    "all of them": f'[registry]\n"a.test" = {{ token = "{SECRET}" }}\n[model.demo]\nk = 1\n',
    "inline": f'registry = {{ "a.test" = {{ token = "{SECRET}" }} }}\nworkers = 2\n',
    "dotted": f'registry."a.test".token = "{SECRET}"\nworkers = 2\n',
    "the variable's name": f'PRONK_REGISTRIES = {{ "a.test" = {{ token = "{SECRET}" }} }}\n',
    "lists over lines": (
        '[registry."a.test"]\nstorage = [\n  "x",\n  # [model.no]\n  "[y]",\n]\n'
        f'token = "{SECRET}"\n[model.demo]\nlist = [\n[1, 2],\n]\nmax = 1\n'
    ),
    "texts over lines": (
        f'[registry."a.test"]\ntoken = """\n[model.no]\n{SECRET}\\"""\n"""\n'
        f"password = '''\n[model.no]\n{SECRET}'''\n[model.demo]\ntext = '''\n[registry]\n'''\n"
    ),
    "comments": f'workers = 1 # "\n[registry."a.test"]\n# {SECRET}\ntoken = "{SECRET}" # \'\n',
    "other tables' keys": f'[model.demo]\nregistry = "kept"\n{TABLE}[class.a]\nregistry = 1\n',
    "lines of Windows": TABLE.replace("\n", "\r\n") + "[model.demo]\r\nmax = 1\r\n",
    "nothing": "",
}


@pytest.mark.parametrize("text", DOCUMENTS.values(), ids=DOCUMENTS)
def test_tables_of_registries_are_cut_out_and_all_else_stays(text: str) -> None:
    open_text = without_registries(text.encode()).decode()
    assert SECRET not in open_text
    names = {"registry", "registries", "PRONK_REGISTRIES"}
    whole = tomllib.loads(text)
    assert tomllib.loads(open_text) == {k: v for k, v in whole.items() if k not in names}
    assert open_text.count("\n") == text.count("\n")


def test_what_is_no_toml_is_told_with_its_line(config: Path) -> None:
    config.write_text(f"{TABLE}[model.demo]\nmax_replicas = = 2\n")
    with pytest.raises(PronkError, match="line 5"):
        load_open_settings()


def test_another_way_of_writing_the_name_is_dropped_as_well(config: Path) -> None:
    config.write_text(f'["regis\\u0074ry"."a.test"]\ntoken = "{SECRET}"\n')
    assert load_settings().registries["a.test"].token
    assert not load_open_settings().registries


def test_the_variable_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONK_REGISTRIES", f'{{"a.test": {{"token": "{SECRET}"}}}}')
    assert load_settings().registries
    assert not load_open_settings().registries


def test_all_else_is_the_same(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRONK_NUM_BATCH", "64")
    whole, some = load_settings(), load_open_settings()
    assert some.workers == 5
    assert whole.model_dump(exclude={"registries"}) == some.model_dump(exclude={"registries"})
    config.write_text("wokers = 5\n")
    with pytest.raises(PronkError, match="there is no such setting"):
        load_open_settings()


LOOK = """
import sys
from pathlib import Path
from pronk.protocol.{module} import {load}
settings = {load}()
assert settings.workers == 5
wanted = bytes(byte ^ 1 for byte in bytes.fromhex(sys.argv[1]))
first, rest = wanted[:1], wanted[1:]
found = 0
with open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights = line.split()[:2]
        if not rights.startswith("rw") or line.endswith("[vvar]"):
            continue
        start, end = (int(number, 16) for number in place.split("-"))
        memory.seek(start)
        try:
            content = memory.read(end - start)
        except OSError:
            continue
        at = content.find(rest)
        while at >= 0:
            found += content[at - 1 : at] == first
            at = content.find(rest, at + 1)
print(found)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("module", "load", "there"),
    [("settings", "load_settings", True), ("withheld", "load_open_settings", False)],
)
def test_nothing_of_it_lies_in_the_memory(
    config: Path, module: str, load: str, there: bool
) -> None:
    masked = bytes(byte ^ 1 for byte in SECRET.encode()).hex()
    program = LOOK.format(module=module, load=load)
    looked = subprocess.run(
        [sys.executable, "-c", program, masked], capture_output=True, text=True, check=True
    )
    # What looks for it has it itself: once in all, and cut into two.
    assert (int(looked.stdout) > 1) is there


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True), (0o644, True)]
)
def test_a_file_that_others_can_read_is_told(config: Path, mode: int, warned: bool) -> None:
    config.chmod(mode)
    said = advice(load_settings())
    assert bool(said) is warned
    assert not said or ("chmod 600" in said and SECRET not in said)


def test_a_file_without_secrets_may_be_read_by_everybody(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.chmod(0o644)
    config.write_text('[registry."a.test"]\nstorage = ["b.test"]\n')
    assert advice(load_settings()) is None
    config.write_text(TABLE)
    monkeypatch.setenv("PRONK_REGISTRIES", "{}")
    assert advice(load_settings()) is None
    monkeypatch.delenv("PRONK_CONFIG")
    assert advice(load_settings()) is None
