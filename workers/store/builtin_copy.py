"""The built-in model as a model of the library, for whoever wants to call it something else, or to
make another one of it.
"""

from __future__ import annotations

import hashlib
import shutil

from ...protocol.errors import Code, PronkError
from .builtin import BuiltinModel
from .creating.manifest import Blob, config_bytes, manifest_bytes
from .details import details_of
from .disk import clear_errors
from .gguf_facts import INFILL_TOKENS, facts_of
from .gguf_metadata import InvalidGGUF, read_header
from .layout import Config, Layer, StoredModel
from .writing import Hold, Writer


def stage_builtin(builtin: BuiltinModel, writer: Writer, hold: Hold) -> bytes:
    """Takes its file and its config into the library, and returns a manifest that names them, which
    is still to be committed. Blocking. Raises `PronkError`.
    """
    model, weights = stage_weights(builtin, writer, hold)
    try:
        assert model.weights
        facts = facts_of(read_header(model.weights, look_for=INFILL_TOKENS))
    except InvalidGGUF as error:
        raise PronkError(Code.LOAD_FAILED, f"model 'demo' is not a valid GGUF: {error}") from None
    details = details_of(model, facts)
    described = Config(
        format=details.format,
        family=details.family,
        families=tuple(details.families),
        parameter_size=details.parameter_size,
        quantization=details.quantization_level,
    )
    config = config_bytes(described, [weights])
    digest = writer.keep(config)
    hold.add(digest)
    return manifest_bytes(Blob(digest, len(config)), [weights])


def stage_weights(builtin: BuiltinModel, writer: Writer, hold: Hold) -> tuple[StoredModel, Layer]:
    """Takes its file alone into the library, where nothing names it yet. Blocking. Raises
    `PronkError`.
    """
    model = builtin.model()
    if model is None or model.weights is None or model.blob is None:
        raise PronkError(
            Code.NOT_FOUND, "this installation lacks the file of model 'demo'; install Pronk again"
        )
    hold.add(model.blob)
    if writer.find(model.blob) is None:
        writer.require_room(model.size)
        scratch = writer.scratch()
        try:
            with clear_errors():
                copy = scratch / "weights"
                shutil.copyfile(model.weights, copy)
                with copy.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != model.blob:
                        raise PronkError(
                            Code.UNAVAILABLE, "model 'demo' was being installed; try again"
                        )
            writer.adopt(copy, model.blob)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return model, Layer("model", model.blob, model.size)
