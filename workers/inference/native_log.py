"""llama.cpp's log, which alone says why a load failed and how much memory was taken."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_log = logging.getLogger("llama.cpp")

# ggml_log_level: none, debug, info, warn, error, cont ("goes on with the line before")
_LEVELS = {2: logging.DEBUG, 3: logging.INFO, 4: logging.ERROR}
_CONTINUED = 5
_LONGEST_LINE = 4096

HOST = "CPU"
"""What buffers in the host's memory are counted under, however they are made."""

_BUFFER = re.compile(r"^(\w+): +(\S+) (?:([\w ]+) )?buffer size = +([\d.]+) MiB")
_MEMORY = re.compile(r"^llama_(kv_cache|memory_recurrent)\w*: size = +([\d.]+) MiB")
_PROJECTOR_DEVICE = re.compile(r"^clip_ctx: CLIP using (\S+) backend")
_PROJECTOR = re.compile(r"^load_hparams: model size: +([\d.]+) MiB")
_FUNCTION = re.compile(r"^(?:error loading model: |failed to apply lora adapter: |[\w:~]+: )+")
_GENERIC = re.compile(r"^failed to load model\b|^failed to create")
_PATH = re.compile(r"(?:/[^\s/'\"]+){2,}")


class NativeLog:
    """Takes what llama.cpp writes, passes it on to `logging`, and remembers what loading needs.

    What is called from C must never raise; llama.cpp's debug lines, thousands per load, are
    dropped unread.
    """

    def __init__(self) -> None:
        self._line = ""
        self._level = logging.DEBUG
        self._errors: deque[str] = deque(maxlen=16)
        self._buffers: dict[tuple[str, str, str], float] = {}
        """MiB by the function that tells of it, the device, and what it is for."""
        self._projector_device = HOST
        self._memories = {"KV": 0.0, "RS": 0.0}
        """MiB of caches and states in all, which a dry run tells of too."""

    def write(self, level: int, text: bytes) -> None:
        """One call of ggml's log callback: a line, or a part of one."""
        if level == _CONTINUED:
            self._line = (self._line + text.decode("utf-8", "replace"))[:_LONGEST_LINE]
        elif level in _LEVELS:
            self._end_line()
            self._level = _LEVELS[level]
            self._line = text.decode("utf-8", "replace")[:_LONGEST_LINE]
        if self._line.endswith("\n"):
            self._end_line()

    def _end_line(self) -> None:
        line, self._line = self._line.strip(), ""
        if not line.strip("."):
            return
        _log.log(self._level, "%s", line)
        if self._level == logging.ERROR:
            self._errors.append(line)
        elif match := _BUFFER.match(line):
            self._count_buffer(match)
        elif match := _MEMORY.match(line):
            self._memories["KV" if match[1] == "kv_cache" else "RS"] += float(match[2])
        elif match := _PROJECTOR_DEVICE.match(line):
            self._projector_device = match[1]
        elif match := _PROJECTOR.match(line):
            self._buffers["projector", self._projector_device, "model"] = float(match[1])

    def _count_buffer(self, match: re.Match[str]) -> None:
        source, device, kind, mebibytes = match.groups()
        key = (source, device, kind)
        # A compute buffer is reserved anew when its graph grows; others add to what is there.
        before = 0.0 if kind == "compute" else self._buffers.get(key, 0.0)
        self._buffers[key] = before + float(mebibytes)

    @property
    def allocated(self) -> int:
        """Bytes of all buffers that llama.cpp reported: weights, KV cache, compute, output."""
        return self._bytes(self._buffers.values())

    def buffers(self, kind: str) -> int:
        """Bytes of one kind of buffer on all devices: `KV`, or `RS` for recurrent states."""
        return self._bytes(size for (_, _, of), size in self._buffers.items() if of == kind)

    def remembered(self, kind: str) -> int:
        """Bytes of `KV` or `RS` in all, even where none of them were allocated."""
        return max(self.buffers(kind), self._bytes([self._memories[kind]]))

    def on_devices(self, *kinds: str) -> dict[str, int]:
        """Bytes of buffers by device, of some kinds or of all; pinned ones count as the host's."""
        devices: dict[str, float] = {}
        for (_, device, kind), size in self._buffers.items():
            if not kinds or kind in kinds:
                name = HOST if device.startswith("CPU") or "_Host" in device else device
                name = name.partition("_")[0]
                devices[name] = devices.get(name, 0.0) + size
        return {name: self._bytes([size]) for name, size in devices.items()}

    @staticmethod
    def _bytes(mebibytes: Iterable[float]) -> int:
        return int(sum(mebibytes) * 1024 * 1024)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Starts anew for a context that does not stay, and forgets about it at the end."""
        kept = self._errors.copy(), self._buffers.copy(), self._memories.copy()
        self.forget()
        try:
            yield
        finally:
            self._errors, self._buffers, self._memories = kept

    def forget(self) -> None:
        """Starts anew, before a load."""
        self._errors.clear()
        self._buffers.clear()
        self._memories = dict.fromkeys(self._memories, 0.0)

    def forget_errors(self) -> None:
        """Has `reason` speak of what comes from now on."""
        self._errors.clear()

    def reason(self, *secrets: str) -> str:
        """Why the last load failed: the first error that says something, without any path.

        `secrets` are texts, such as the file's name, that must not be in it.
        """
        for line in self._errors:
            reason = _FUNCTION.sub("", line)
            for secret in filter(None, secrets):
                reason = reason.replace(secret, "the file")
            reason = _PATH.sub("the file", reason)
            if not _GENERIC.match(reason):
                return "".join(c if c.isprintable() else "?" for c in reason)[:300]
        return "llama.cpp gave no reason"
