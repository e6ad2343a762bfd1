"""Making a model: of another one, of uploaded files, and of what a request says beside them.

Nothing is written before all of it is known to be good, but blobs that nothing names yet; the
manifest comes last, at one instant. So a creation that fails, or is cancelled, changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ....protocol.errors import Code, PronkError
from ....protocol.messages.changes import CreateModel
from ....protocol.names import ModelName, parse_name
from ..builtin import NAME as BUILTIN
from ..builtin import BuiltinModel
from ..builtin_copy import stage_weights
from ..files import Damaged
from ..gguf_facts import UNKNOWN
from ..layout import Config, Layer, Library, StoredModel
from ..looking.inspection import inspect
from ..looking.looker import Looker
from ..modelfile import parameters_of
from ..report import REMOVED, Report
from ..writing import Hold, Writer
from .levels import parse_level
from .manifest import Blob, config_bytes, manifest_bytes
from .parts import Part, assembled, check_files, damaged, parts_of_files, parts_of_layers
from .quantization import digest_of, quantize
from .templates import check_template
from .texts import Texts, texts_of, with_texts

Pull = Callable[[ModelName, Report], Awaitable[None]]


async def create(
    order: CreateModel,
    *,
    library: Library,
    writer: Writer,
    pull: Pull,
    report: Report,
    looker: Looker,
    builtin: BuiltinModel | None = None,
    quantizing: asyncio.Lock | None = None,
) -> str | None:
    """Makes the model that `order` describes; one that has its name is replaced. Returns the digest
    of that one, if no other name stands for it.

    A model to make it of that is not there is pulled. Those that share a lock `quantizing` do so
    one after the other. Raises `PronkError`; can be cancelled.
    """
    name = parse_name(order.name)
    check_files(order)
    texts = texts_of(order)
    level = parse_level(order.quantize) if order.quantize else ""
    if texts.template:
        await check_template(texts.template, looker)
    with writer.hold() as hold:
        base: StoredModel | None = None
        inherited: list[Part] = []
        if order.from_model:
            base = await _base(parse_name(order.from_model), library, builtin, pull, report)
            layers = base.layers
            if builtin and not layers:
                _, weights = await asyncio.to_thread(stage_weights, builtin, writer, hold)
                layers = (weights,)
            inherited = await parts_of_layers(layers, base.name.display, library, writer, hold)
        files = await parts_of_files(order.files, writer, hold, report)
        adapters = await parts_of_files(order.adapters, writer, hold, report)
        parts = assembled(inherited, files, adapters)
        if level:
            turns = quantizing or asyncio.Lock()
            parts = [await _quantized(part, level, writer, hold, turns, report) for part in parts]
        config = _config(parts, texts, base.config if base else Config())
        statuses, manifest = await asyncio.to_thread(
            _written, parts, texts, config, library, writer, hold
        )
        for status in statuses:
            report(status)
        report("writing manifest")
        replaced = await asyncio.to_thread(writer.replace, name, manifest)
    if replaced.removed:
        report(REMOVED)
    report("success")
    return replaced.unnamed


async def _base(
    wanted: ModelName, library: Library, builtin: BuiltinModel | None, pull: Pull, report: Report
) -> StoredModel:
    model = await asyncio.to_thread(_find, wanted, library, builtin)
    if model is None:
        await pull(wanted, _without_success(report))
        model = await asyncio.to_thread(_find, wanted, library, builtin)
    if model is None:
        raise PronkError(Code.NOT_FOUND, f"model '{wanted.display}' not found")
    if model.weights is None:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"model '{model.name.display}' has no GGUF file, and this version of Pronk makes "
            "models of GGUF files only",
        )
    return model


def _find(wanted: ModelName, library: Library, builtin: BuiltinModel | None) -> StoredModel | None:
    try:
        if name := library.find(wanted):
            return library.load(name)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise damaged(wanted.display, error) from None
    return builtin.model() if builtin and wanted.key == BUILTIN.key else None


def _without_success(report: Report) -> Report:
    """A pull says so when it is done, but the creation that it is for is not."""

    def passed_on(
        status: str, digest: str = "", total: int | None = None, completed: int | None = None
    ) -> None:
        if status != "success":
            report(status, digest, total, completed)

    return passed_on


async def _quantized(
    part: Part, level: str, writer: Writer, hold: Hold, turns: asyncio.Lock, report: Report
) -> Part:
    """The part with its weights quantized, where it has weights that are not so already."""
    facts, source = part.facts, part.path
    if part.layer.kind != "model" or not facts or not source or facts.quantization == level:
        return part
    if not facts.full:
        raise PronkError(
            Code.INVALID_REQUEST,
            f"quantize: the model's weights are {facts.quantization} already; only models in F32, "
            "F16 or BF16 can be quantized",
        )
    size = part.layer.size

    def progress(done: int) -> None:
        status = f"quantizing {facts.quantization} model to {level}"
        report(status, f"sha256:{part.layer.digest}", size, min(done, size))

    progress(0)
    # Each takes all cores, and memory for whole tensors.
    async with turns, _scratch(writer) as directory:
        target = directory / "weights"
        await quantize(source, target, level, require_room=writer.require_room, progress=progress)
        quantized = await inspect(target, "what became of the model")
        digest = await digest_of(target)
        progress(size)
        hold.add(digest)
        length = (await asyncio.to_thread(target.stat)).st_size
        path = await asyncio.to_thread(writer.adopt, target, digest)
    return Part(Layer("model", digest, length), path, quantized, new=True)


def _config(parts: Sequence[Part], texts: Texts, base: Config) -> Config:
    """What the model is, as its files say, else as the model says that it was made of."""
    known = [part.facts for part in parts if part.facts]
    # As loaders do: what a layer is called counts, and of several weights the last ones.
    weights = next(
        part.facts for part in reversed(parts) if part.layer.kind == "model" and part.facts
    )
    quantization = weights.quantization
    return Config(
        format="gguf",
        family=weights.architecture,
        families=tuple(dict.fromkeys(facts.architecture for facts in (weights, *known))),
        parameter_size=weights.parameter_size,
        quantization=quantization if quantization != UNKNOWN else base.quantization,
        # What writes prompts in a template's place would do so in the place of this one, too.
        renderer=texts.renderer or ("" if texts.template else base.renderer),
        parser=texts.parser or base.parser,
        requires=texts.requires or base.requires,
    )


def _written(
    parts: Sequence[Part],
    texts: Texts,
    config: Config,
    library: Library,
    writer: Writer,
    hold: Hold,
) -> tuple[list[str], bytes]:
    """Takes in all small blobs. What is to be reported of each layer, and the manifest."""
    statuses = {part.layer.digest: _status(part.layer, part.new) for part in parts}

    def keep(kind: str, content: bytes) -> Layer:
        digest = hashlib.sha256(content).hexdigest()
        hold.add(digest)
        there = writer.find(digest) is not None
        if not there:
            writer.keep(content)
        layer = Layer(kind, digest, len(content))
        statuses.setdefault(digest, _status(layer, not there))
        return layer

    layers = [part.layer for part in parts]
    layers = with_texts(layers, texts, _parameters(layers, library), keep)
    named = {layer.digest for layer in layers}
    told = [status for digest, status in statuses.items() if digest in named]
    described = keep("config", config_bytes(config, layers))
    # What a model had that is made of itself, and has no more, goes with the one that is replaced.
    hold.keep_only({*named, described.digest})
    return told, manifest_bytes(Blob(described.digest, described.size), layers)


def _status(layer: Layer, new: bool) -> str:
    return f"{'creating new' if new else 'using existing'} layer sha256:{layer.digest}"


def _parameters(layers: Sequence[Layer], library: Library) -> dict[str, Any]:
    """Those of the model that another one is made of."""
    values: dict[str, Any] = {}
    for layer in layers:
        if layer.kind == "params":
            try:
                values |= parameters_of(library.text(layer))
            except Damaged as error:
                raise damaged(layer.origin, error) from None
    return values


@asynccontextmanager
async def _scratch(writer: Writer) -> AsyncIterator[Path]:
    """A directory of its own, and gone afterwards."""
    directory = await asyncio.to_thread(writer.scratch)
    try:
        yield directory
    finally:
        await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
