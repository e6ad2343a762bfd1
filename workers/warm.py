"""What loading a model and the first request need beside llama_cpp: paid for while blank.

llama_cpp, and our modules that need it, take hold of devices: they wait until a worker was told
what to load. All that they need themselves would take longer to import than a small model to load.
"""

from __future__ import annotations

import contextlib
import importlib
import unicodedata  # noqa: F401

import llguidance  # noqa: F401
import minijinja  # noqa: F401
import numpy
import numpy.ctypeslib
import numpy.typing  # noqa: F401

from ..protocol.codec import expect
from ..protocol.messages.embedding import Embed, EmbedBody
from ..protocol.messages.generation import Cancel, Generate, GenerateBody
from ..protocol.messages.placement import Load, Unload
from . import architectures as _architectures  # noqa: F401
from .conversation import prompt as _prompt  # noqa: F401
from .inference import candidates as _candidates  # noqa: F401
from .inference import defaults as _defaults  # noqa: F401
from .inference import image_files as _image_files  # noqa: F401
from .inference import logprobs as _logprobs  # noqa: F401
from .inference import mirostat as _mirostat  # noqa: F401
from .inference import native_log as _native_log  # noqa: F401
from .inference import parsed_answer as _parsed_answer  # noqa: F401
from .inference import sampling as _sampling  # noqa: F401
from .inference import segments as _segments  # noqa: F401
from .inference import views as _views  # noqa: F401
from .inference.guiding import maker as _maker  # noqa: F401

# What llama_cpp imports is its own affair: it may stop doing so.
for _name in ("diskcache", "jinja2.ext", "jinja2.sandbox", "multiprocessing", "pprint"):
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)

expect(Load, Unload, Generate, GenerateBody, Embed, EmbedBody, Cancel)
