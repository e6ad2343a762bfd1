"""One request's life: submitted by a frontend, placed by the scheduler, answered by a worker.

`Generate` has a body. The message is what the scheduler reads; the body (`GenerateBody`) is opaque
to it and reaches the worker as it is. Answers go from the worker straight to the frontend.
Everything carries (request, attempt); a frontend drops what belongs to another attempt, and takes
a gap in the token index as the loss of the attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from .failure import Failure
from .fields import (
    MAX_TOOLS,
    Attempt,
    Count,
    Digest,
    Endpoint,
    Flag,
    Images,
    Incarnation,
    Integer,
    JsonMap,
    Label,
    LookBack,
    Number,
    RequestId,
    Seed,
    TcpEndpoint,
    Text,
    Token,
)


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a request runs. Passed through every layer; identity comes to set it."""

    subject: Label = "anonymous"


@dataclass(frozen=True, slots=True)
class Generate:
    """Frontend → scheduler → worker: everything that placement needs to know."""

    request: RequestId
    attempt: Attempt
    model: Label
    """The model's canonical name, for people."""
    digest: Digest
    """What the name stood for when the request was accepted."""
    caller: Caller
    frontend: Incarnation
    reply_to: Endpoint
    """Where the worker connects to answer."""
    seed: Seed
    cost: Count
    """Estimated work, in tokens read plus tokens generated."""
    keep_alive: Number | None = None
    """Seconds that the model stays after this request; negative for ever; None for the default."""
    context_length: Count | None = None
    """The context that the request asks for (`num_ctx`); None for the default."""
    num_gpu: Count | None = None
    """Layers to offload that the request asks for; None for as many as fit."""
    main_gpu: Count | None = None
    """The GPU that it prefers, counted from 0."""
    deadline: Number | None = None
    """Unix time after which nobody waits for the answer."""
    prefix: list[bytes] = field(default_factory=list[bytes])
    """Hash chain over model, system, tools and each message: equal beginnings, equal hashes."""
    reply_to_tcp: TcpEndpoint | None = None
    """Where a worker of another host connects."""
    suspect: Flag = False
    """Whether an earlier attempt died with its worker: no two such requests share a worker until
    each has passed the step that killed it."""


class Kind(StrEnum):
    """What is to be continued."""

    CHAT = "chat"
    """`messages`, through the model's template."""
    COMPLETION = "completion"
    """`prompt`, through the template as one user message, unless `raw`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model wants one of the request's tools to be called."""

    name: Text
    arguments: JsonMap
    id: Text = ""
    """By which its result is told from others'; empty for none."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Text
    thinking: Text = ""
    """What the assistant thought before it said `content`."""
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """Those that the assistant made behind `content`."""
    tool_name: Text = ""
    """The tool whose result this is."""
    tool_call_id: Text = ""
    """The call whose result this is."""
    images: Images = field(default_factory=list[bytes])
    """Image files that belong to the message."""


@dataclass(frozen=True, slots=True)
class LogitBias:
    """What is added to the logits of one token, or of every token of a text."""

    token: Token | Text
    bias: Number | None
    """None: the token is never chosen."""


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Model settings of one request; None means: the model's own, else the default."""

    temperature: Number | None = None
    top_k: Integer | None = None
    top_p: Number | None = None
    min_p: Number | None = None
    typical_p: Number | None = None
    top_n_sigma: Number | None = None
    xtc_probability: Number | None = None
    xtc_threshold: Number | None = None
    dynatemp_range: Number | None = None
    dynatemp_exponent: Number | None = None
    mirostat: Integer | None = None
    """0 off, 1 or 2 the version of the algorithm."""
    mirostat_tau: Number | None = None
    mirostat_eta: Number | None = None
    repeat_last_n: LookBack | None = None
    repeat_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    dry_multiplier: Number | None = None
    dry_base: Number | None = None
    dry_allowed_length: Integer | None = None
    dry_penalty_last_n: LookBack | None = None
    dry_sequence_breakers: list[Text] | None = None
    logit_bias: list[LogitBias] | None = None
    ignore_eos: Flag | None = None
    """Whether the model cannot end its answer by itself."""
    num_keep: LookBack | None = None
    """Tokens at the beginning of the prompt that stay when the context is shifted; −1 for all."""
    num_predict: Integer | None = None
    """Most tokens to generate; −1 without a limit, −2 until the context is full."""
    stop: list[Text] | None = None
    """Texts at whose beginning the answer ends."""


class Grammar(StrEnum):
    """How the form that an answer must have is described."""

    JSON = "json"
    """Any JSON value; there is no source."""
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    """In llguidance's dialect of Lark."""
    GBNF = "gbnf"
    """In llama.cpp's notation."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form that an answer must have from its first token to its last."""

    grammar: Grammar
    source: Text = ""


Think = bool | Literal["low", "medium", "high", "max"] | None
"""Whether a model is to think before it answers, or how much; None where nothing is said of it."""


class ToolChoice(StrEnum):
    """Whether a model may call tools."""

    AUTO = "auto"
    """As it likes."""
    NONE = "none"
    """It may not."""
    REQUIRED = "required"
    """It has to call at least one."""
    NAMED = "named"
    """It has to call the one that `tool` names."""


@dataclass(frozen=True, slots=True)
class GenerateBody:
    """The body of `Generate`: what only the worker reads."""

    kind: Kind
    options: SamplingOptions
    messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
    prompt: Text = ""
    system: Text | None = None
    suffix: Text = ""
    """What follows the text that is to be written between `prompt` and it."""
    template: Text | None = None
    """Source, in Go or Jinja, to use in place of the model's own template."""
    raw: Flag = False
    truncate: Flag = True
    """Whether a prompt that is too long is cut: a chat's oldest messages, a completion's middle."""
    shift: Flag = True
    """Whether an answer goes on when the context is full, which then forgets its older half."""
    constraint: Constraint | None = None
    logprobs: Count | None = None
    """None for no log probabilities, else how many alternatives to each token come along."""
    context: list[Token] = field(default_factory=list[Token])
    """Tokens that stand before the prompt: an earlier answer's `context`."""
    return_context: Flag = False
    tokens: list[Token] = field(default_factory=list[Token])
    """Tokens that an earlier attempt already sent; the answer goes on behind them."""
    released: Count = 0
    """What was released with them, counted as it was said: characters of text and of thinking, and
    calls. What is released now begins behind."""
    any_seed: Flag = False
    """Whether the header's seed was only drawn, because the request named none: the seed that the
    model's Modelfile sets goes before it then."""
    tools: Annotated[list[JsonMap], Field(max_length=MAX_TOOLS)] = field(
        default_factory=list[dict[str, Any]]
    )
    """Functions that the model may call, each `{"type": "function", "function": {"name": …}}` with
    `description` and `parameters`, a JSON schema, where there are any."""
    tool_choice: ToolChoice = ToolChoice.AUTO
    tool: Text = ""
    """The tool that `NAMED` means."""
    think: Think = None
    reasoning_budget: Count | None = None
    """Tokens that it may think at most; None without a limit."""
    images: Images = field(default_factory=list[bytes])
    """Image files that belong to `prompt`."""


@dataclass(frozen=True, slots=True)
class Started:
    """Worker → frontend: the request left the queue; its prompt is being read."""

    request: RequestId
    attempt: Attempt
    worker: Incarnation
    context_length: Count = 0
    """Tokens of context that the request has there, which say where its prompt is cut and its
    context shifted: a later attempt asks for as many. 0 where that does not matter."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's bytes, and the natural logarithm of its probability before any sampling option.

    Of the chosen token the bytes that it adds to the text, of others how they are written.
    """

    piece: bytes
    logprob: Number


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The token that was chosen at one position, and the likeliest ones there."""

    chosen: TokenLogprob
    top: list[TokenLogprob]


@dataclass(slots=True)
class Chunk:
    """What one engine step gave one request. Not frozen, which would make it six times as dear.

    See `protocol.chunks` for how it travels: fields at the end that say nothing are left out.
    """

    request: RequestId
    attempt: Attempt
    index: Count
    """Position of the first of `tokens` among all that were generated, from 0."""
    tokens: list[Token]
    """Ids of all tokens sampled."""
    text: Text
    """Text that may be shown: less than the tokens say where a stop text or a UTF-8 sequence may
    still complete, and more once it did not."""
    logprobs: list[PositionLogprobs] | None = None
    """One for each of `tokens` but the one that ends the answer, where the request asked for
    them."""
    thinking: Text = ""
    """What the model thought, before `text`."""
    calls: list[ToolCall] | None = None
    """What it calls, behind `text`. What is said in another order comes in several chunks, of which
    the first has the tokens."""
    told: Count | None = None
    """How many of the answer's tokens are told of with their log probabilities by now, where these
    are asked for and the answer is not all text; None where the text says it."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Worker → frontend: all that one engine step gave the requests of that frontend."""

    chunks: list[Chunk]


class FinishReason(StrEnum):
    """Why a generation ended by itself."""

    STOP = "stop"
    """The model ended its answer, or a stop text came up."""
    LENGTH = "length"
    """`num_predict` was reached, or the context is full."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Worker → frontend: the answer is complete. Durations are nanoseconds."""

    request: RequestId
    attempt: Attempt
    reason: FinishReason
    eval_count: Count
    """Tokens generated, the ending one included: the frontend must have seen them all."""
    eval_duration: Count
    prompt_eval_count: Count
    """Tokens of the prompt, however many of them were cached."""
    prompt_eval_duration: Count
    cached: Count = 0
    """Tokens of the prompt that did not have to be computed."""
    context: list[Token] | None = None
    """Prompt and answer as tokens, where `return_context` asked for it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Worker or scheduler → frontend: the request ends here with an error."""

    request: RequestId
    attempt: Attempt
    failure: Failure


@dataclass(frozen=True, slots=True)
class Lost:
    """Scheduler or worker → frontend: nobody works on this attempt any more; its owner decides.

    The scheduler says so of a worker that died, a worker of what it cannot take or has to drop.
    """

    request: RequestId
    attempt: Attempt
    failure: Failure
    died: Flag = False
    """Whether its worker died with it: the next attempt is a suspect."""
    alone: Flag = False
    """Whether nothing else there is as likely to have been the reason: the death counts against
    the request."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Frontend → worker and scheduler: nobody waits for this request any more."""

    request: RequestId
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Preload:
    """Frontend → scheduler: have this model loaded; `Preloaded` or `Failed` answers."""

    request: RequestId
    model: Label
    digest: Digest
    caller: Caller
    keep_alive: Number | None = None
    context_length: Count | None = None
    num_gpu: Count | None = None
    main_gpu: Count | None = None


@dataclass(frozen=True, slots=True)
class Preloaded:
    """Scheduler → frontend: the model is ready."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Evict:
    """Frontend → scheduler: unload this model as soon as it is idle; `Evicted` answers at once."""

    request: RequestId
    digest: Digest
    caller: Caller


@dataclass(frozen=True, slots=True)
class Evicted:
    """Scheduler → frontend: no new request will reach the old replica."""

    request: RequestId


MESSAGES = (
    Generate,
    Started,
    Chunks,
    Finished,
    Failed,
    Lost,
    Cancel,
    Preload,
    Preloaded,
    Evict,
    Evicted,
    GenerateBody,
)
