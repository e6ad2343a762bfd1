"""Reads `facts/*.txt`: what the model knows, one paragraph a fact.

- `what: photosynthesis` stands for a family of phrasings, and so do `who`, `why` and `how`
  (see phrasing.py);
- `ask: how do plants eat | how do plants make food` are phrasings as they are, between bars;
- `short: Paris` is the answer in one word, where there is one;
- `weight: 4` says how much more often than others it is asked;
- `> The answer.` Each further line of `>` is a further line of the answer.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from phrasing import FAMILIES

SUBJECTS = {
    "pronk": "That is about Pronk.",
    "pronk_api": "That is about Pronk's API.",
    "computing": "That is about computing.",
    "earth": "That is about the Earth and the sky.",
    "nature": "That is about nature.",
    "people": "That is about people and what they made.",
    "science": "That is about science.",
}
BEYOND = "I have learned nothing about this. It is better to say so than to guess."
FOLDER = Path(__file__).parent / "facts"


@dataclass
class Fact:
    questions: list[str] = field(default_factory=list)
    family: list[str] = field(default_factory=list)  # questions from phrasing.py
    answer: str = ""
    short: str = ""
    weight: float = 1.0
    file: str = ""  # its name without the ending

    @property
    def thought(self) -> str:
        """What to think before the answer: the question in the words in which it was learnt."""
        if self.file == "unknown":
            return BEYOND
        if self.file == "smalltalk":
            return "This is small talk."
        question = proper((self.family or self.questions)[0])
        if self.file == "creative":
            return f"I have something ready for this wish: {question}."
        return f"In other words: {question}? {SUBJECTS[self.file]}"


def proper(question: str) -> str:
    """A question of the files with the capitals that it should have."""
    question = re.sub(r"\bpronk\b(?! (serve|run|demo))", "Pronk", question)
    question = re.sub(r"\bpronk_\w+", lambda found: found[0].upper(), question)
    return re.sub(r"\bi\b", "I", question)


def parse(paragraph: str) -> Fact:
    fact = Fact()
    lines = []
    for line in paragraph.strip().splitlines():
        if line.startswith(">"):
            lines.append(line.removeprefix(">").removeprefix(" "))
            continue
        key, _, value = line.partition(":")
        value = value.strip()
        if key == "ask":
            fact.questions += [part.strip() for part in value.split("|")]
        elif key == "short":
            fact.short = value
        elif key == "weight":
            fact.weight = float(value)
        elif key == "why":
            fact.family += FAMILIES[key](*(part.strip() for part in value.split("|")))
        else:
            for part in value.split("|"):
                fact.family += FAMILIES[key](part.strip())
    fact.answer = "\n".join(lines)
    if not (fact.questions or fact.family) or not fact.answer:
        raise ValueError(f"no question or no answer in: {paragraph}")
    return fact


@cache
def load() -> tuple[Fact, ...]:
    """All facts, in the order of their files' names."""
    facts = []
    for path in sorted(FOLDER.glob("*.txt")):
        text = "\n".join(line for line in path.read_text().splitlines() if line[:1] != "#")
        found = [parse(paragraph) for paragraph in text.split("\n\n") if paragraph.strip()]
        facts += [replace(fact, file=path.stem) for fact in found]
    written = {question.lower() for fact in facts for question in fact.questions}
    for fact in facts:  # a phrasing that somebody wrote down beats one from a family
        fact.questions += [text for text in fact.family if text.lower() not in written]
    return tuple(facts)
