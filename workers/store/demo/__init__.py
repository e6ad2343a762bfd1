"""The built-in model `demo:latest`: `demo.gguf` beside this file, trained by `training/`.

It lies in no library, and none is ever written on its account.
"""

from __future__ import annotations

from pathlib import Path

WEIGHTS = Path(__file__).parent / "demo.gguf"
"""The model's file, whether it is there or not."""
