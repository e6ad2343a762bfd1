"""What is done with a request before it enters the batch: from its body to a sequence.

Rendering a template, tokenizing a long history and compiling a schema may take longer than many
steps, so they run in threads beside the engine. Nothing here touches the context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ...protocol.codec import MalformedMessage, decode
from ...protocol.deadline import deadline_exceeded, is_over
from ...protocol.errors import Code, PronkError
from ...protocol.messages.embedding import Embed, EmbedBody
from ...protocol.messages.generation import Generate, GenerateBody
from ..conversation.choice import choose_template
from ..conversation.prompt import build_prompt
from ..conversation.renders import Render, here
from ..conversation.specials import NO_GUARD, Guard
from ..parts import NO_PARTS, Parts
from .answer import Answer
from .constraints import ConstraintCompiler, ConstraintFailed
from .defaults import METADATA, merged, model_options, model_seed
from .embedding_inputs import InputPreparer
from .guiding.maker import GuideMaker, Wish
from .llama import Model
from .parsed_answer import ParsedAnswer
from .prepared import Prepared
from .reading import Reading, reading_of
from .rows import tokens_alone
from .samplers import Sampler
from .sampling import plan_sampling
from .sequence import AnswerForm, Sequence
from .shift import answer_limit, in_context, kept
from .stop import StopMatcher
from .thread import EmbedJob
from .views import Views

if TYPE_CHECKING:  # only models that see need it
    from .sight import Sight

_END = 64
"""Tokens at the end of a prompt in which there is room for what a template ends with."""


class Preparation:
    """Prepares requests for one model. May be used by several threads at a time."""

    def __init__(
        self,
        model: Model,
        context_length: int,
        *,
        can_shift: bool,
        max_body: int,
        parameters: Mapping[str, Any] = MappingProxyType({}),
        parts: Parts = NO_PARTS,
        renderer: str = "",
        analyses: Mapping[str, Any] = MappingProxyType({}),
        reading: Reading | None = None,
        sight: Sight | None = None,
        batch: int = 512,
        render: Callable[[str], Render] = here,
    ) -> None:
        """`context_length` in tokens is what each slot has; `max_body` bounds a body in bytes;
        `parameters`, `parts` and `renderer` are what the model's Modelfile sets, `analyses` what
        the store found out about its templates. `reading` tells thinking and calls from text;
        where there is none, the template says how. `sight` is how the model sees images, if it
        does, and `batch` how many rows it computes at once; `render` says where a template in
        Jinja is rendered.
        """
        self._vocabulary = vocabulary = model.vocabulary
        self._context_length = context_length
        self._can_shift = can_shift
        self._generates = model.generates
        self._inputs = InputPreparer(
            vocabulary,
            ranks=model.ranks,
            context_length=context_length,
            pair_template=model.pair_template,
        )
        self._options = model_options(parameters, model.metadata(METADATA))
        self._seed = model_seed(parameters)
        self._max_body = max_body
        self._constraints = ConstraintCompiler(vocabulary)
        self._guides = GuideMaker(vocabulary, self._constraints)
        self._opening = parts.opening
        self._template = None
        self._guard = NO_GUARD
        if model.generates:
            self._template = choose_template(
                model.chat_template,
                parts.template,
                renderer,
                bos=vocabulary.bos_text,
                eos=vocabulary.eos_text,
                known=analyses,
                render=render,
            )
            source = self._template.source if self._template else ""
            self._guard = Guard(vocabulary.specials, source)
        self._reading = reading or (reading_of(self._template.form) if self._template else None)
        self.sight, self._batch = sight, batch

    def prepare(
        self,
        header: Generate | Embed,
        frame: bytes,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Prepared | EmbedJob:
        """Reads a request's body. What takes long, its images, is given up where it is not `wanted`
        any more. Raises `PronkError` with what is wrong with the request,
        `MalformedMessage` when the frame was damaged.
        """
        body = decode(frame, limit=self._max_body)
        match header, body:
            case Generate(), GenerateBody():
                return self._prepare_text(header, body, wanted)
            case Embed(), EmbedBody():
                return EmbedJob(header, self._inputs.prepare(body, header.context_length))
            case _:
                raise MalformedMessage(f"a body is no {type(body).__name__}")

    def _prepare_text(
        self, header: Generate, body: GenerateBody, wanted: Callable[[], bool]
    ) -> Prepared:
        if not self._generates:
            raise PronkError(
                Code.INVALID_REQUEST, "the model turns texts into vectors and writes none"
            )
        options = merged(body.options, self._options)
        context_length = min(self._context_length, header.context_length or self._context_length)
        stops = StopMatcher(options.stop or ())

        def go_on() -> None:
            if is_over(header.deadline, time.time()):
                raise deadline_exceeded()
            if not wanted():
                raise PronkError(Code.INTERNAL, "the request was cancelled")

        views = Views(body, self.sight, self._batch, go_on)
        prompt = build_prompt(
            replace(views.body, options=options),
            self._template,
            views.tokenizer(self._vocabulary),
            context_length,
            self._opening,
            self._guard,
        )
        shifts = body.shift and self._can_shift
        limit = answer_limit(options.num_predict, context_length, len(prompt), shifts)
        keep = kept(
            options.num_keep, len(prompt), context_length, adds_bos=self._vocabulary.adds_bos
        )
        form = self._form_of(body, prompt)
        if form:
            try:
                for token in body.tokens:
                    form.accept(token)
            except ConstraintFailed as error:
                raise PronkError(Code.INVALID_REQUEST, f"format: {error}") from None
        # The same for every attempt: what a model sets belongs to its digest.
        seed = header.seed if self._seed is None or not body.any_seed else self._seed
        sampler = Sampler(plan_sampling(options, context_length), seed, self._vocabulary)
        whole = [*prompt, *body.tokens]
        sampler.see(tokens_alone(whole))
        tokens = in_context(whole, len(prompt), context_length, keep)
        sequence = Sequence(
            key=(header.request, header.attempt),
            tokens=tokens,
            prompt_length=len(prompt),
            limit=limit,
            context_length=context_length,
            sampler=sampler,
            form=form,
            logprobs=body.logprobs,
            shifts=shifts,
            keep=keep,
            deadline=header.deadline,
            count=len(body.tokens),
            shifted=len(tokens) < len(whole),
            pictures=views.pictures(prompt),
        )
        answer = self._begin_answer(body, prompt, limit, stops)
        return Prepared(sequence, answer, len(body.tokens), prompt, body.return_context)

    def _form_of(self, body: GenerateBody, prompt: list[int]) -> AnswerForm | None:
        """What leads the answer, if something does: the request's tools and wishes where the
        template says how calls and reasoning are written, else its `format` alone.
        """
        if self._template and not (body.raw or body.suffix or self._template.form.plain):
            return self._guides.behind(self._end_of(prompt), self._template.form, Wish.of(body))
        return self._constraints.compile(body.constraint) if body.constraint else None

    def _begin_answer(
        self, body: GenerateBody, prompt: list[int], limit: int, stops: StopMatcher
    ) -> Answer:
        """The answer as its reader will see it. What is said without the template, to a raw prompt
        or into a gap, is text.
        """
        reading, parser = self._reading, None
        if reading and not (body.raw or body.suffix):
            parser = reading.begin(body, self._end_of(prompt))
        if not (reading and parser):
            return Answer(
                self._vocabulary,
                limit=limit,
                stops=stops,
                before=body.tokens,
                released=body.released,
            )
        return ParsedAnswer(
            self._vocabulary,
            parser,
            reading,
            limit=limit,
            stops=stops,
            before=body.tokens,
            released=body.released,
            logprobs=body.logprobs is not None,
        )

    def _end_of(self, prompt: list[int]) -> str:
        """The last part of a prompt as text, control tokens included."""
        pieces = map(self._vocabulary.written, tokens_alone(prompt[-_END:]))
        return b"".join(pieces).decode("utf-8", "replace")
