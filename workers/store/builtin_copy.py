"""The built-in model as a model of the library, for whoever wants to call it something else, or to
make another one of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import Any

from ...protocol.errors import Code, PronkError
from .builtin import BuiltinModel
from .details import details_of
from .disk import clear_errors
from .gguf_facts import INFILL_TOKENS, facts_of
from .gguf_metadata import InvalidGGUF, read_header
from .layout import MEDIA_TYPE
from .writing import Hold, Writer

_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"


def stage_builtin(builtin: BuiltinModel, writer: Writer, hold: Hold) -> bytes:
    """Takes its file and its config into the library, and returns a manifest that names them, which
    is still to be committed. Blocking. Raises `PronkError`.
    """
    model = builtin.model()
    if model is None or model.weights is None or model.blob is None:
        raise PronkError(
            Code.NOT_FOUND, "this installation lacks the file of model 'demo'; install Pronk again"
        )
    hold.add(model.blob)
    try:
        facts = facts_of(read_header(model.weights, look_for=INFILL_TOKENS))
    except InvalidGGUF as error:
        raise PronkError(Code.LOAD_FAILED, f"model 'demo' is not a valid GGUF: {error}") from None
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
    details = details_of(model, facts)
    config = json.dumps(
        {
            "model_format": details.format,
            "model_family": details.family,
            "model_families": details.families,
            "model_type": details.parameter_size,
            "file_type": details.quantization_level,
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{model.blob}"]},
        }
    ).encode()
    digest = writer.keep(config)
    hold.add(digest)
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST_TYPE,
        "config": _part(_CONFIG_TYPE, digest, len(config)),
        "layers": [_part(f"{MEDIA_TYPE}model", model.blob, model.size)],
    }
    return json.dumps(manifest).encode()


def _part(media_type: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}
