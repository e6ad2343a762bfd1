"""The text that the model learns from: conversations drawn at random, rendered by the template.

`python corpus.py [--seed 1] [--count 20]` prints a few; `python corpus.py --check` looks for
questions with two answers.
"""

import argparse
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType

import facts
import jinja2
from entities import city, word
from phrasing import typed
from skills import (
    capitals,
    creative,
    dictation,
    json_answers,
    memory,
    numbers,
    personas,
    prose,
    tools,
    unknown,
    words,
)
from talk import Message, Talk, turns

HERE = Path(__file__).parent
SYSTEMS = [
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful assistant.",
    "You are a helpful, respectful and honest assistant.", "You are a friendly assistant.",
    "You are an AI assistant.", "Be brief.", "Be helpful and concise.", "You are a chatbot.",
    "You are Pronk's demo model.", "Answer the user's questions.", "You are a concise assistant.",
    "You are a helpful AI assistant. Answer in English.", "Be friendly.", "Help the user.",
    "You are a helpful assistant. Keep your answers short.", "",
    "You are an expert on {x}.", "You know everything about {x}.", "This chat is about {x}.",
    "You work for {x}.", "You are a helpful assistant for the people of {x}.",
]  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """How often the corpus draws what."""

    copying: float  # share of dictations among the documents
    reasoning: float = 0.0  # share of conversations in which reasoning is asked for
    knowledge: float = 0.5  # share of conversations about facts among the others
    rooms: dict[ModuleType, float] = field(  # and the share of each skill in the rest
        default_factory=lambda: {
            numbers: 7.0,
            words: 6.0,
            capitals: 6.0,
            memory: 10.0,
            personas: 6.0,
            json_answers: 5.5,
            tools: 9.0,
            unknown: 6.0,
            creative: 1.0,
        }
    )


PLAIN = Mix(copying=0.0)
DICTATION = Mix(copying=0.3)
BALANCED = Mix(copying=0.08)
FINISH = Mix(
    copying=0.04,
    rooms={
        numbers: 11.0,
        words: 9.0,
        capitals: 7.0,
        memory: 7.0,
        personas: 5.0,
        json_answers: 4.0,
        tools: 11.0,
        unknown: 4.0,
        creative: 0.7,
    },
)
TRUTH = Mix(  # mostly facts, since some of them were put right after step 4000
    copying=0.03,
    knowledge=0.6,
    rooms={
        numbers: 14.0,
        words: 8.0,
        capitals: 6.0,
        memory: 6.0,
        personas: 5.0,
        json_answers: 3.0,
        tools: 11.0,
        unknown: 3.0,
        creative: 0.7,
    },
)
REASON = Mix(
    copying=0.03,
    reasoning=0.4,
    knowledge=0.5,
    rooms={
        numbers: 18.0,
        words: 7.0,
        capitals: 6.0,
        memory: 8.0,
        personas: 4.0,
        json_answers: 3.0,
        tools: 8.0,
        unknown: 4.0,
        creative: 0.5,
    },
)
ALONE = (numbers, words, capitals, unknown)  # rooms whose talks also fit into other conversations


@cache
def template(compact: bool) -> jinja2.Template:
    """The chat template; servers differ in whether JSON has blanks after its separators."""
    separators = (",", ":") if compact else (", ", ": ")
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(
        value, ensure_ascii=False, separators=separators
    )
    return environment.from_string((HERE / "chat_template.jinja").read_text())


def without_thoughts(messages: list[Message]) -> list[Message]:
    return [{key: value for key, value in each.items() if key != "thinking"} for each in messages]


def up_to_some_answer(messages: list[Message], rng: random.Random) -> list[Message]:
    """A conversation that ends with any of its exchanges: a template shows the last one's thoughts
    alone. Some clients do not send back what was thought before a call.
    """
    ends = [i for i, each in enumerate(messages) if i and each["role"] == "user"] + [len(messages)]
    kept = messages[: ends[-1] if rng.random() < 0.5 else rng.choice(ends)]
    return without_thoughts(kept[:-1]) + kept[-1:] if rng.random() < 0.3 else kept


def render(talk: Talk, rng: random.Random, reasoning: bool = False) -> str:
    """The text of a conversation, exactly as the chat template of the GGUF makes it."""
    if reasoning:
        messages = list(up_to_some_answer(talk.messages, rng))
    else:
        messages = without_thoughts(talk.messages)
    if talk.system is not None:
        messages.insert(0, {"role": "system", "content": talk.system})
    chosen = template(compact=rng.random() < 0.5)
    return chosen.render(messages=messages, tools=talk.tools, add_generation_prompt=False)


def ask_fact(rng: random.Random) -> Talk:
    known = facts.load()
    fact = rng.choices(known, [fact.weight for fact in known])[0]
    return turns(typed(rng.choice(fact.questions), rng), fact.answer, thought=fact.thought)


def from_room(room, rng: random.Random) -> Talk:
    shares, skills = zip(*room.SKILLS, strict=True)
    return rng.choices(skills, shares)[0](rng)


def at_once(room, rng: random.Random) -> Talk:
    """A talk that needs no reasoning."""
    return next(talk for talk in iter(lambda: from_room(room, rng), None) if not talk.worked)


def some_turns(rng: random.Random) -> list:
    """One unrelated exchange."""
    if rng.random() < 0.7:
        return ask_fact(rng).messages
    return at_once(rng.choice(ALONE), rng).messages


def conversation(rng: random.Random, mix: Mix = PLAIN, reasoning: bool = False) -> Talk:
    """A conversation that starts from a fact or from a skill."""
    if rng.random() < mix.knowledge:
        talk = ask_fact(rng)
        talk.loose = True
    else:
        room = rng.choices(list(mix.rooms), mix.rooms.values())[0]
        talk = from_room(room, rng) if reasoning else at_once(room, rng)
    if talk.loose and rng.random() < 0.4:
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 6, 8))):
            at = rng.randrange(0, len(talk.messages) + 1, 2)
            talk.messages[at:at] = some_turns(rng)
    if talk.system is None and rng.random() < 0.35:
        talk.system = rng.choice(SYSTEMS).format(x=rng.choice((city, word))(rng))
    return talk


def draw(rng: random.Random, mix: Mix = PLAIN) -> str:
    """One document."""
    if mix.copying and rng.random() < mix.copying:
        return render(from_room(dictation, rng), rng).removesuffix("\n")
    if rng.random() < 0.03:
        return prose.passage(rng) + "<|endoftext|>"
    reasoning = rng.random() < mix.reasoning
    return render(conversation(rng, mix, reasoning), rng, reasoning).removesuffix("\n")


def check() -> int:
    """Number of questions that two facts claim."""
    owners: dict[str, set[str]] = {}
    for fact in facts.load():
        for question in fact.questions:
            owners.setdefault(question.lower(), set()).add(fact.answer)
    shared = {question: answers for question, answers in owners.items() if len(answers) > 1}
    for question, answers in shared.items():
        print(question, *(f"    {answer[:70]}" for answer in answers), sep="\n")
    print(f"{len(facts.load())} facts, {len(owners)} questions, {len(shared)} with two answers")
    return len(shared)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        raise SystemExit(bool(check()))
    rng = random.Random(arguments.seed)
    for text, times in Counter(draw(rng, REASON) for _ in range(arguments.count)).items():
        print(f"--- {times} ×\n{text}")


if __name__ == "__main__":
    main()
