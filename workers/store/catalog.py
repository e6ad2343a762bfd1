"""Answers to the questions of `protocol.messages.library`, from the library and what is built in.

Everything here reads the disk and may take a while: `service` calls it in threads. What only a
process can find out is not waited for: `Lacking` is raised (`looking`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from ...protocol.errors import Code, PronkError
from ...protocol.logs import RateLimitedLog
from ...protocol.messages.library import (
    DescribeModel,
    ListModels,
    ModelDescribed,
    ModelFacts,
    ModelList,
    ModelPart,
    ModelResolved,
    ModelShown,
    ModelSummary,
    PartKind,
    ResolveModel,
    ShowModel,
)
from ...protocol.names import ModelName, parse_name
from .analyses import Analyses
from .builtin import NAME as BUILTIN
from .builtin import BuiltinModel
from .details import capabilities_of, details_of, says_all
from .echo import NAME as ECHO
from .echo import echo_facts, echo_model
from .files import UNCHANGING, Damaged, Remembered, Unreadable
from .fitting import fitted_list
from .gguf_facts import UNKNOWN, HeaderFacts
from .gguf_metadata import InvalidGGUF
from .layout import Library, StoredModel
from .looking.finding import Lacking, Look
from .looking.headers import Headers
from .looking.read_headers import Detail
from .looking.templates import Templates
from .modelfile import worker_parameters
from .parts import parts_of
from .showing import show
from .sight import sees

_log = logging.getLogger(__name__)

_REMEMBERED = 16_384
_LIST_SECONDS = 2.0
"""Longest that one list waits for headers of models whose config does not say what they are."""
_LISTED = 256
"""Headers that are read on account of one list."""

Question = ResolveModel | DescribeModel | ListModels | ShowModel
QUESTIONS = (ResolveModel, DescribeModel, ListModels, ShowModel)
Answer = ModelResolved | ModelDescribed | ModelList | ModelShown


class Catalog:
    """The library and, unless they are off, the demo model and echo. All methods run in any thread.

    A model called `demo:latest` in the library is its owner's: it hides the built-in one. The same
    holds for echo.
    """

    def __init__(
        self, library: Library, builtin: BuiltinModel | None, *, echo: bool = False
    ) -> None:
        self._library = library
        self._builtin = builtin
        self._echo = echo
        self._by_digest: Remembered[StoredModel] = Remembered(_REMEMBERED)
        self.headers = Headers(*([builtin.weights] if builtin else []))
        self.templates = Templates()
        self._analyses = Analyses(library, self.headers, self.templates)
        self._noted = RateLimitedLog(_log)

    def answer(self, question: Question, *, content: bool = False) -> Answer:
        """The answer to one question. Raises `PronkError` when there is none, and `Lacking` when
        something is to be found out before; a list is `content` with what is known, if asked to be.
        """
        match question:
            case ResolveModel():
                return self._resolve(question)
            case DescribeModel():
                return self._describe(question)
            case ListModels():
                return self._list(question, content=content)
            case ShowModel():
                return self._show(question)

    def _resolve(self, question: ResolveModel) -> ModelResolved:
        model = self._find(question.name)
        return ModelResolved(
            call=question.call,
            name=model.name.display,
            digest=model.digest,
            capabilities=self._capabilities(model),
        )

    def _capabilities(self, model: StoredModel) -> list[str]:
        facts = self._facts_or_none(model)
        if facts is None or facts.embeds:
            return capabilities_of(facts)
        return capabilities_of(
            facts,
            self._analyses.of(model).capabilities,
            sees=sees(model, self._library, self.headers),
        )

    def _describe(self, question: DescribeModel) -> ModelDescribed:
        if self._echo and (echo := echo_facts(question.digest)):
            return ModelDescribed(question.call, echo)
        model = self._by_digest.get(question.digest, UNCHANGING)
        if model is None:
            model = next((m for m in self._models() if m.digest == question.digest), None)
        if model is None or (model.weights and not os.path.isfile(model.weights)):  # noqa: PTH113
            raise PronkError(
                Code.NOT_FOUND, "the model was changed or removed since it was asked for; try again"
            )
        name = model.name.display
        if model.weights is None:
            raise PronkError(
                Code.LOAD_FAILED,
                f"model '{name}' has no GGUF file; this version of Pronk runs GGUF models only",
            )
        try:
            parts = parts_of(self._library, model)
        except Damaged as error:
            raise _damaged(name, error) from None
        try:
            facts = self._header_facts(model)
        except InvalidGGUF as error:
            raise _not_gguf(model, str(error)) from None
        if facts.architecture == UNKNOWN:
            raise _not_gguf(model, "it does not name its architecture")
        if facts.problem:
            raise _not_gguf(model, facts.problem)
        self._require_projectors(model, parts)
        return ModelDescribed(
            call=question.call,
            facts=ModelFacts(
                name=name,
                digest=model.digest,
                weights=str(model.weights),
                size=model.size,
                context_length=facts.context_length,
                details=details_of(model, facts),
                parameters=self._parameters(model),
                blob=model.blob,
                parts=parts,
                renderer=model.config.renderer,
                analyses={} if facts.embeds else dict(self._analyses.of(model).by_source),
            ),
        )

    def _parameters(self, model: StoredModel) -> dict[str, Any]:
        """What the Modelfile sets; nothing where it cannot be read, which is no reason not to run
        the model.
        """
        layers = [layer for layer in model.layers if layer.kind == "params"]
        if not layers:
            return {}
        try:
            return worker_parameters(self._library.text(layers[-1]))
        except Damaged as error:
            self._noted.warning("parameters ignored", f"{model.name.display}: {error}")
            return {}

    def _list(self, question: ListModels, *, content: bool) -> ModelList:
        models = sorted(self._models(), key=lambda model: (-model.modified_at, model.name.parts))
        summaries: list[ModelSummary] = []
        lacking: list[Look] = []
        for model in models:
            facts = None
            if not says_all(model.config):
                try:
                    facts = self._facts_or_none(model, Detail.FACTS)
                except Lacking as each:
                    lacking += each.looks
            summaries.append(
                ModelSummary(
                    name=model.name.display,
                    digest=model.digest,
                    size=model.size,
                    modified_at=model.modified_at,
                    details=details_of(model, facts),
                )
            )
        if lacking and not content:
            raise Lacking(*lacking[:_LISTED], seconds=_LIST_SECONDS)
        answer = fitted_list(ModelList(question.call, summaries))
        if left_out := len(models) - len(answer.models):
            self._noted.warning("list cut", f"its oldest {left_out} models do not fit in an answer")
        return answer

    def _show(self, question: ShowModel) -> ModelShown:
        model = self._find(question.name)
        try:
            return show(
                question,
                model,
                self._library,
                self.headers,
                self._capabilities(model),
                self._noted,
            )
        except Damaged as error:
            raise _damaged(model.name.display, error) from None

    def _find(self, text: str) -> StoredModel:
        """The model that a name stands for. Raises `PronkError`."""
        wanted = parse_name(text)
        try:
            model = self._load(wanted)
        except Damaged as error:
            raise _damaged(wanted.display, error) from None
        if model is None and wanted.key == BUILTIN.key and self._builtin:
            model = self._builtin.model()
        if model is None and self._echo:
            model = echo_model(wanted)
        if model is None:
            raise self._not_found(wanted, text)
        self._by_digest.keep(model.digest, UNCHANGING, model)
        return model

    def _load(self, wanted: ModelName) -> StoredModel | None:
        name = self._library.find(wanted)
        if name is None:
            return None
        try:
            return self._library.load(name)
        except FileNotFoundError:
            return None

    def _models(self) -> Iterator[StoredModel]:
        """Every model that there is; they can all be asked for by digest from now on."""
        models = self._library.models()
        if self._builtin and not self._library.find(BUILTIN) and (demo := self._builtin.model()):
            models = chain(models, (demo,))
        if self._echo and not self._library.find(ECHO) and (echo := echo_model(ECHO)):
            models = chain(models, (echo,))
        for model in models:
            # Copies of a model share its digest: the one that was asked for by name stays.
            if self._by_digest.get(model.digest, UNCHANGING) is None:
                self._by_digest.keep(model.digest, UNCHANGING, model)
            yield model

    def _not_found(self, wanted: ModelName, text: str) -> PronkError:
        if wanted.key == BUILTIN.key:
            why = (
                "this installation lacks its file, install Pronk again"
                if self._builtin
                else "it is switched off by PRONK_DEMO_MODEL"
            )
            return PronkError(Code.NOT_FOUND, f"model '{text}' not found; {why}")
        builtin = "; `demo` is built in" if self._builtin else ""
        return PronkError(
            Code.NOT_FOUND,
            f"model '{text}' not found, try pulling it first: `pronk pull {wanted.display}`, or "
            f"POST /api/pull{builtin}",
        )

    def _header_facts(self, model: StoredModel, detail: Detail = Detail.BRIEF) -> HeaderFacts:
        """The facts in the model's GGUF header. Raises `InvalidGGUF`, also when there is none, and
        `Lacking`.
        """
        if model.weights is None:
            raise InvalidGGUF("there is none")
        return self.headers.facts(model.weights, detail)

    def _facts_or_none(
        self, model: StoredModel, detail: Detail = Detail.BRIEF
    ) -> HeaderFacts | None:
        try:
            return self._header_facts(model, detail)
        except InvalidGGUF as error:
            if model.weights:
                self._noted.warning("invalid GGUF", f"{model.name.display}: {error}")
            return None

    def _require_projectors(self, model: StoredModel, parts: list[ModelPart]) -> None:
        """Raises `PronkError` where a projector is not what its header says: what loads it would
        believe that.
        """
        lacking: list[Look] = []
        for part in parts:
            if part.kind is not PartKind.PROJECTOR:
                continue
            try:
                problem = self.headers.facts(Path(part.path)).problem
            except InvalidGGUF as error:
                problem = str(error)
            except Lacking as each:
                lacking += each.looks
                continue
            if problem:
                raise _not_gguf(model, problem, "its projector")
        if lacking:
            raise Lacking(*lacking)


def _damaged(name: str, error: Damaged) -> PronkError:
    if isinstance(error, Unreadable):
        return PronkError(Code.LOAD_FAILED, f"model '{name}' cannot be read: {error}")
    return PronkError(
        Code.LOAD_FAILED,
        f"model '{name}' is damaged in the library: {error}; `pronk pull {name}` gets it again",
    )


def _not_gguf(model: StoredModel, problem: str, which: str = "its file") -> PronkError:
    return PronkError(
        Code.LOAD_FAILED,
        f"model '{model.name.display}' cannot be loaded: {which} is not a valid GGUF: {problem}",
    )
