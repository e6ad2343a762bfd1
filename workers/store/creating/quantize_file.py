"""A program that quantizes one GGUF file with llama.cpp, from its standard input to another
descriptor, and says in lines of JSON how far it is.

    {"size": 1234}     bytes that the result will have, about; before anything is written
    {"done": 1234}     bytes of the source that are done
    {"quantized": true}, or {"refused": "why"}

It runs in a process of its own, which may die of the file, and which holds nothing but it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from typing import Any

from ...visibility import choose_devices
from ..looking.confinement import confine

MEMORY = 8 * 1024**3
"""Bytes beside the file's, which is mapped: for one tensor in full, and what becomes of it."""
_BUFFER = 1024**3
"""Bytes of a tensor's rows that are held at the same time."""

_SOURCE = re.compile(rb"size = +([0-9.]+) MiB")
_WHOLE = re.compile(rb"model size += +([0-9.]+) MiB")
_RESULT = re.compile(rb"quant size += +([0-9.]+) MiB")
_ERROR = 4
_MEBIBYTE = 1024 * 1024


class _Log:
    """Takes what llama.cpp writes: how far it is, and why it fails. Must never raise."""

    def __init__(self) -> None:
        self.whole = 0
        """Bytes of the source's tensors."""
        self.size = 0
        """Bytes of what becomes of them."""
        self.reason = ""
        self.telling = False
        self._done = 0

    def write(self, level: int, text: bytes) -> None:
        if level == _ERROR and not self.reason:
            self.reason = text.decode("utf-8", "replace").strip()
        if match := _WHOLE.search(text):
            self.whole = _bytes(match)
        elif match := _RESULT.search(text):
            self.size = _bytes(match)
        elif self.telling and (match := _SOURCE.match(text)):
            self._done += _bytes(match)
            say(done=self._done)


def _bytes(mebibytes: re.Match[bytes]) -> int:
    return int(float(mebibytes[1]) * _MEBIBYTE)


_answers = sys.stdout.fileno()


def say(**what: Any) -> None:
    """Tells the process that waits."""
    os.write(_answers, json.dumps(what).encode() + b"\n")


def _keep_answers_apart() -> int:
    """Has what llama.cpp may print go nowhere. Returns the descriptor that answers go to."""
    global _answers
    _answers = os.dup(_answers)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return _answers


def _main() -> None:
    output, level, threads, file_size = map(int, sys.argv[1:])
    answers = _keep_answers_apart()
    choose_devices([])
    os.nice(10)
    import llama_cpp

    c: Any = llama_cpp
    log = _Log()
    callback = c.llama_log_callback(lambda level, text, _: log.write(level, text))
    c.llama_log_set(callback, None)
    c.llama_backend_init()
    confine(
        memory=MEMORY + 2 * file_size,
        seconds=cpu_seconds(file_size),
        written=largest_result(file_size),
        keep=[output, answers],
    )
    os.environ["GGML_NO_BACKTRACE"] = "1"  # made by a debugger that would be started
    params = c.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.max_buf_size = level, threads, _BUFFER
    for dry in (True, False):
        params.dry_run, log.telling = dry, not dry
        failed = c.llama_model_quantize(
            b"/dev/fd/0", f"/dev/fd/{output}".encode(), ctypes.byref(params)
        )
        if failed:
            say(refused=log.reason or "llama.cpp gave no reason")
            return
        if dry:
            say(size=log.size + max(0, file_size - log.whole))
    say(quantized=True)


def cpu_seconds(file_size: int) -> int:
    """Seconds of computing that a file of so many bytes may take. The slowest levels do some
    megabytes in a second, on one core of today.
    """
    return 3600 + file_size // 250_000


def largest_result(file_size: int) -> int:
    """Bytes that can become of a file: weights of two bytes may become ones of four."""
    return 2 * file_size + 64 * _MEBIBYTE


if __name__ == "__main__":
    _main()
