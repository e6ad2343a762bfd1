"""An engine whose model sees, and what llama.cpp's own helper makes of the same prompt."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp

from pronk.workers.inference.image_files import decode_image
from support.engines import Bench, Run
from support.vision_models import VisionModel

m: Any = mtmd_cpp
c: Any = llama_cpp

CLOSE = 2e-4
"""By which logits may differ that were computed in other shapes."""

TEXT = "A long enough text before all else, so that it is worth keeping: "


class Seer:
    """An engine whose model sees, and every row of logits that it chose a token from."""

    def __init__(self, model: VisionModel, **plan: Any) -> None:
        plan.setdefault("length", 2048)
        self.bench = Bench(model.weights, projectors=[model.projector], **plan)
        self.sight = self.bench.preparation.sight
        self.logits: dict[tuple[str, int], list[np.ndarray]] = {}
        engine = self.bench.engine
        choose = engine._choose

        def watched(sequence: Any, row: int, step: Any) -> None:
            seen = self.logits.setdefault(sequence.key, [])
            seen.append(engine.context.logits(row).copy())
            choose(sequence, row, step)

        engine._choose = watched

    def start(self, prompt: str, *images: bytes, **changes: Any) -> Run:
        options = {"temperature": 0, "num_predict": changes.pop("num_predict", 4)}
        return self.bench.start(prompt, images=list(images), options=options, **changes)

    def finish(self, *runs: Run) -> None:
        while not all(run.left for run in runs):
            self.bench.step()
        assert [run.failure for run in runs] == [None] * len(runs)

    def ask(self, prompt: str, *images: bytes, **changes: Any) -> Run:
        run = self.start(prompt, *images, **changes)
        self.finish(run)
        return run

    def first(self, run: Run) -> np.ndarray:
        """The logits behind the prompt."""
        return self.logits[run.prepared.sequence.key][0]


def helper(model: VisionModel, prompt: str, *images: bytes) -> np.ndarray:
    """The logits behind a prompt, with an `[img]` for each image, by llama.cpp's helper."""
    files = llama_cpp.llama_model_default_params()
    weights = c.llama_model_load_from_file(str(model.weights).encode(), files)
    params = c.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads = 1024, 512, 512, 1
    context = c.llama_init_from_model(weights, params)
    eyes_params = m.mtmd_context_params_default()
    eyes_params.use_gpu, eyes_params.n_threads = False, 1
    eyes = m.mtmd_init_from_file(str(model.projector).encode(), weights, eyes_params)
    text = prompt.replace("[img]", m.mtmd_default_marker().decode()).encode()
    bitmaps = []
    for image in images:
        pixels = decode_image(image)
        height, width, _ = pixels.shape
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmaps.append(m.mtmd_bitmap_init(width, height, data))
    chunks = m.mtmd_input_chunks_init()
    given = m.mtmd_input_text(text, len(text), False, True)
    array = (m.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
    assert m.mtmd_tokenize(eyes, chunks, ctypes.byref(given), array, len(bitmaps)) == 0
    end = llama_cpp.llama_pos()
    assert m.mtmd_helper_eval_chunks(eyes, context, chunks, 0, 0, 512, True, ctypes.byref(end)) == 0
    size = c.llama_vocab_n_tokens(c.llama_model_get_vocab(weights))
    logits = np.ctypeslib.as_array(c.llama_get_logits_ith(context, -1), (size,)).copy()
    m.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        m.mtmd_bitmap_free(bitmap)
    m.mtmd_free(eyes)
    c.llama_free(context)
    c.llama_model_free(weights)
    return logits


def apart(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(left - right).max())
