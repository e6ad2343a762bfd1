"""How people type: many ways to ask one thing, and slips of case, punctuation and spelling.

Only the user's side of a conversation is varied; the model answers in one clean voice.
"""

import random
import re

OPENERS = [
    "hey, ", "hi, ", "hello, ", "hi! ", "hello! ", "hey pronk, ", "so, ", "ok, ", "okay, ",
    "please, ",
    "quick question: ", "question: ", "one more question: ", "tell me, ", "please tell me, ",
    "and ",
    "can you tell me ", "could you tell me ", "do you know ", "i want to know ", "i wonder ",
    "i would like to know ", "just curious, ", "now ", "also, ", "well, ", "um, ", "explain: ",
    "can you explain ", "could you please tell me ", "do you happen to know ", "hmm, ",
    "my question is ",
    "i was wondering ", "for school: ", "my kid asks: ", "next: ", "sorry, ", "remind me, ",
]  # fmt: skip
COMMAND_OPENERS = [
    "please ", "can you ", "could you ", "hey, ", "ok, ", "now ", "would you ", "could you please ",
    "can you please ", "i want you to ", "hi, ", "hello, ", "pls ", "and now ", "then ", "kindly ",
    "i'd like you to ", "i need you to ", "go ahead and ", "will you ",
]  # fmt: skip
NEUTRAL_OPENERS = ["hey, ", "ok, ", "hi, ", "well, ", "so, ", "hello, ", "oh, "]
CLOSERS = [" please", " thanks", ", please", ", thank you", " pls", " exactly", " then", " again",
           " for me", ", if you can", ", do you know", " really"]  # fmt: skip
QUESTION = re.compile(
    r"^(what|who|why|when|where|which|how|is|are|do|does|did|can|could|will|would|whose|may|am|was"
    r"|should|has|have)(\b|')",
    re.I,
)
COMMAND = re.compile(
    r"^(tell|explain|describe|define|give|show|list|name|write|say|count|calculate|translate|repeat"
    r"|recommend|make|compare|teach|spell|search|find|convert|send|set|check|add|multiply|divide)\b",
    re.I,
)
SHORTER = [
    ("what is", ["what's", "whats", "what s"]),
    ("who is", ["who's", "whos"]),
    ("where is", ["where's", "wheres"]),
    ("how is", ["how's"]),
    ("why is", ["why's"]),
    ("when is", ["when's"]),
    ("do not", ["don't", "dont"]),
    ("i am", ["i'm", "im"]),
    ("you are", ["you're", "youre"]),
    ("are you", ["are u", "r u"]),
    ("can you", ["can u"]),
    ("cannot", ["can't", "cant"]),
]


def slip(text: str, rng: random.Random) -> str:
    """One typing mistake somewhere in `text`."""
    at = rng.randrange(1, max(2, len(text) - 1))
    kind = rng.randrange(4)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[: at - 1] + text[at : at + 1] + text[at - 1] + text[at + 1 :]
    if kind == 2:
        return text[:at] + text[at - 1] + text[at:]
    return text[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + text[at + 1 :]


def first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def typed(text: str, rng: random.Random, exact: bool = False) -> str:
    """`text` as somebody may type it; `exact` keeps the letters because the answer copies them."""
    question = bool(QUESTION.match(text))
    for long, shorts in SHORTER:
        if long in text.lower() and rng.random() < 0.25:
            text = re.sub(rf"\b{long}\b", rng.choice(shorts), text, count=1, flags=re.I)
    chance = rng.random()
    if chance < 0.14:
        command = COMMAND_OPENERS if COMMAND.match(text) else NEUTRAL_OPENERS
        text = rng.choice(OPENERS if question else command) + text
    elif chance < 0.18:
        text += rng.choice(CLOSERS)
    chance = rng.random()
    if chance < 0.45:
        text = first_upper(text)
    elif chance < 0.85:
        text = text if exact else text.lower()
    elif chance < 0.89:
        text = text if exact else text.upper()
    marks = ["?"] * 12 + [""] * 6 + ["??", " ?", "???", "!", "."] if question else (
        [""] * 6 + ["."] * 6 + ["!", "!", "?", "!!", "..."])  # fmt: skip
    if not exact and len(text) > 5 and rng.random() < 0.07:
        text = slip(text, rng)
    return text if text[-1] in "?!." else text + rng.choice(marks)


def article_free(subject: str) -> str:
    return re.sub(r"^(a|an|the) ", "", subject, flags=re.I)


def what(subject: str) -> list[str]:
    """Ways to ask what `subject` is; a plural starts with `+`."""
    plural = subject.startswith("+")
    subject = subject.removeprefix("+")
    bare = article_free(subject)
    verb, do = ("are", "do") if plural else ("is", "does")
    return [
        f"what {verb} {subject}",
        f"what {verb} {subject}",
        f"what {verb} {subject}",
        f"what exactly {verb} {subject}",
        f"tell me what {subject} {verb}",
        f"explain what {subject} {verb}",
        f"explain {subject}",
        f"explain {subject} to me",
        f"tell me about {subject}",
        f"tell me something about {subject}",
        f"can you explain {subject}",
        f"describe {subject}",
        f"define {bare}",
        f"{bare}",
        f"what do you know about {subject}",
        f"i do not know what {subject} {verb}",
        f"what {do} {bare} mean",
        f"give me a short explanation of {subject}",
        f"{subject}, what {verb} {'they' if plural else 'it'}",
        f"do you know what {subject} {verb}",
        f"what {do} the word {bare} mean" if " " not in bare else f"what is meant by {bare}",
    ]


def who(name: str) -> list[str]:
    """Ways to ask who a person of the past was."""
    return [
        f"who was {name}",
        f"who was {name}",
        f"who is {name}",
        f"tell me about {name}",
        f"what do you know about {name}",
        f"what is {name} known for",
        f"what is {name} famous for",
        f"why is {name} famous",
        f"what did {name} do",
        f"tell me who {name} was",
        f"do you know {name}",
        f"have you heard of {name}",
        name,
    ]


def why(subject: str, verb: str, rest: str) -> list[str]:
    """Ways to ask why: `the sky | is | blue`, `leaves | do | change colour`."""
    if verb in ("do", "does", "did"):
        plain = f"{subject} {third(rest) if verb == 'does' else rest}"
    else:
        plain = f"{subject} {verb} {rest}"
    return [
        f"why {verb} {subject} {rest}",
        f"why {verb} {subject} {rest}",
        f"why {verb} {subject} {rest}",
        f"why exactly {verb} {subject} {rest}",
        f"tell me why {plain}",
        f"explain why {plain}",
        f"explain to me why {plain}",
        f"how come {plain}",
        f"why {plain}",
        f"what is the reason {plain}",
        f"what is the reason that {plain}",
        f"do you know why {plain}",
        f"why is it that {plain}",
        f"what makes {subject} {rest}",
    ]


def third(verb_phrase: str) -> str:
    """`change colour` → `changes colour`."""
    verb, _, rest = verb_phrase.partition(" ")
    ending = "es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s"
    return f"{verb}{ending} {rest}".strip()


def how(phrase: str) -> list[str]:
    """Ways to ask how to do something: `load a model`."""
    return [
        f"how do i {phrase}",
        f"how do i {phrase}",
        f"how can i {phrase}",
        f"how to {phrase}",
        f"how do you {phrase}",
        f"how does one {phrase}",
        f"show me how to {phrase}",
        f"tell me how to {phrase}",
        f"explain how to {phrase}",
        f"i want to {phrase}",
        f"what do i need to do to {phrase}",
        f"what is the way to {phrase}",
        f"is there a way to {phrase}",
        f"can i {phrase}",
    ]


FAMILIES = {"what": what, "who": who, "why": why, "how": how}
