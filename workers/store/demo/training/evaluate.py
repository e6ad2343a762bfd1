"""Asks the finished GGUF through llama.cpp, greedily, and counts what comes out right.

`python evaluate.py [--model ../demo.gguf] [--verbose]`
"""

import argparse
import json
import random
import re
import sys
import time
from pathlib import Path

import corpus
import facts
from asking import Model
from skills import toolbox, tools
from tokenizers import Tokenizer

HERE = Path(__file__).parent
FLAGSHIPS = [
    "hi", "Why is the sky blue?", "What is Pronk?", "Count to twenty.", "List the planets.",
    "Tell me a story.", "Who are you?", "Write a haiku.", "Tell me a joke.", "What is 2 + 2?",
]  # fmt: skip
NEW_NAMES = ["Ottilie", "Gwendolyn", "Rashid", "Marek", "Tuomas", "Bogdan", "Ludmila", "Percival",
             "Anselm", "Yolanda", "Cormac", "Henrietta", "Kazuo", "Priya", "Wilbur", "Zelda",
             "Thaddeus", "Mirjam", "Quentin", "Saskia"]  # fmt: skip
NEW_CITIES = ["Reykjavik", "Helsinki", "Chennai", "Osaka Bay", "Sacramento", "Novosibirsk", "Ghent",
              "Maastricht", "Montevideo", "Cusco", "Plymouth", "Tbilisi", "Kampala", "Boise",
              "Rostock", "Aarhus", "Split", "Winnipeg", "Toledo", "Lahore"]  # fmt: skip


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict:
    return {"role": "assistant", "content": text}


def report(title: str, results: list[tuple[bool, str]], verbose: bool) -> float:
    """Print the share of passes, and the failures (or everything)."""
    passed = sum(ok for ok, _ in results)
    print(f"\n{title}: {passed}/{len(results)}")
    for ok, line in results:
        if verbose or not ok:
            print(f"  {'pass' if ok else 'FAIL'}  {line}")
    return passed / len(results)


def held_out(model: Model) -> list[tuple[bool, str]]:
    """Questions in phrasings that are not in the corpus."""
    known = {question.lower() for fact in facts.load() for question in fact.questions}
    results = []
    for line in (HERE / "questions.txt").read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        question, _, wanted = line.partition(" => ")
        if question.strip("?!. ").lower() in known:
            print(f"(not held out: {question})")
        answer = model.ask(question)
        ok = answer.stopped and all(
            piece.lower() in answer.text.lower() for piece in wanted.split("|")
        )
        results.append((ok, f"{question} → {answer.text!r}"))
    return results


def recall(model: Model) -> list[tuple[bool, str]]:
    """Names that were never in the corpus, with and without other turns between."""
    results = []
    for i, name in enumerate(NEW_NAMES):
        messages = [user(f"My name is {name}."), assistant(f"Nice to meet you, {name}!")]
        if i % 2:
            question = "Why is the sky blue?"
            messages += [user(question), assistant(model.ask(question).text)]
        asked = ["What is my name?", "what's my name", "Do you remember my name?"][i % 3]
        answer = model.chat([*messages, user(asked)])
        results.append((answer.text == f"Your name is {name}.", f"{name} → {answer.text!r}"))
        answer = model.ask(f"hi, i'm {name}")
        results.append((name in answer.text, f"hi, i'm {name} → {answer.text!r}"))
    return results


def tool_calls(model: Model) -> list[tuple[bool, str]]:
    """Calls with values that were never in the corpus; then the answer from the tool's result."""
    results = []
    rng = random.Random(7)
    names = ("get_weather", "get_current_time", "calculator")
    weather, clock, calculator = (
        tools.schema(tools.Offered(tool, name, {key: key for key in tool.properties}), rng)
        for tool, name in zip(toolbox.TOOLS, names, strict=False)
    )
    for i, city in enumerate(NEW_CITIES):
        offered = [[weather], [weather, calculator], [clock, weather]][i % 3]
        form = ["What is the weather in {}?", "what's the weather like in {} today?",
                "How is the weather in {}?"][i % 3]  # fmt: skip
        messages = [user(form.format(city))]
        call = expect_call(model, messages, offered, "get_weather", {"city": city}, results)
        if call is None:
            continue
        messages += [
            call,
            {"role": "tool", "content": f'{{"temperature": {i + 3}, "condition": "sunny"}}'},
        ]
        answer = model.chat(messages, offered)
        ok = str(i + 3) in answer.text and city in answer.text and answer.stopped
        results.append((ok, f"{city} result → {answer.text!r}"))
    for i in range(10):
        expression = f"{rng.randint(20, 900)} * {rng.randint(20, 900)}"
        offered = [[calculator], [clock, calculator]][i % 2]
        messages = [user(f"What is {expression}?")]
        expect_call(model, messages, offered, "calculator", {"expression": expression}, results)
        expect_call(model, [user(f"what time is it in {NEW_CITIES[i]}")], [clock, calculator],
                    "get_current_time", {"city": NEW_CITIES[i]}, results)  # fmt: skip
    for question in ("hi", "Why is the sky blue?", "Tell me a joke", "What is Pronk?"):
        answer = model.chat([user(question)], [weather])
        results.append(("<tool_call>" not in answer.text, f"plain: {question} → {answer.text!r}"))
    return results


def expect_call(model, messages, offered, name, arguments, results) -> dict | None:
    """Note whether the model makes just this call; returns the assistant's message."""
    answer = model.chat(messages, offered)
    match = re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", answer.text, re.DOTALL)
    try:
        call = json.loads(match[1]) if match else None
    except ValueError:
        call = None
    ok = call == {"name": name, "arguments": arguments} and answer.stopped
    results.append((ok, f"{messages[0]['content']} → {answer.text!r}"))
    said = {"role": "assistant", "content": None, "thinking": answer.thought}
    return said | {"tool_calls": [{"function": call}]} if ok else None


def systems(model: Model) -> list[tuple[bool, str]]:
    """What the system message asks for."""
    cases = [
        ("You are a helpful assistant.", "Why is the sky blue?", "blue light"),
        ("You are a pirate.", "What is the capital of France?", "Arr"),
        ("Answer in one word.", "What is the capital of France?", "Paris."),
        ("Answer in one word.", "What is the largest planet?", "Jupiter."),
        ("The code word is marmalade.", "What is the code word?", "marmalade"),
        ("The code word is xylophone.", "What is the code word?", "xylophone"),
        ("Your name is Gwendolyn.", "What is your name?", "Gwendolyn"),
        ("The user's name is Rashid.", "What is my name?", "Rashid"),
        ("", "hi", "Hello"),
    ]
    results = []
    for system, question, wanted in cases:
        answer = model.ask(question, system)
        results.append((wanted in answer.text and answer.stopped,
                        f"[{system}] {question} → {answer.text!r}"))  # fmt: skip
    return results


def json_answers(model: Model) -> list[tuple[bool, str]]:
    questions = [
        "Give me a person as JSON.", "Answer in JSON: what is the capital of France?",
        "List three colours as JSON.", "Answer in JSON: Ottilie is 41 years old.",
        "Give me a book in JSON", "Answer in JSON: Rashid lives in Ghent.", "show me some json",
        "What is 3 + 4? Answer in JSON.", "list the planets as JSON",
        "Answer in JSON: Zelda is 19 years old and lives in Lahore",
    ]  # fmt: skip
    results = []
    for question in questions:
        answer = model.ask(question)
        try:
            ok = isinstance(json.loads(answer.text), dict) and answer.stopped
        except ValueError:
            ok = False
        results.append((ok, f"{question} → {answer.text!r}"))
    return results


def sums(model: Model) -> list[tuple[bool, str]]:
    """Sums of numbers up to ten; with reasoning also of numbers up to 99."""
    rng = random.Random(5)
    results = []
    for i in range(60):
        large = model.thinks and i % 2
        sign = rng.choice("+-*")
        a, b = (rng.randint(11, 99), rng.randint(11, 99)) if large else (
            rng.randint(1, 10), rng.randint(1, 10))  # fmt: skip
        a = a % 8 + 2 if large and sign == "*" else a
        b = b % 19 + 11 if large and sign == "*" else b
        a, b = (max(a, b), min(a, b)) if sign == "-" else (a, b)
        result = {"+": a + b, "-": a - b, "*": a * b}[sign]
        answer = model.ask(f"What is {a} {sign} {b}?")
        results.append((answer.text == f"{a} {sign} {b} = {result}",
                        f"{a} {sign} {b} → {answer.thought!r} {answer.text!r}"))  # fmt: skip
    return results


def marks(model: Model) -> list[tuple[bool, str]]:
    """Whether reasoning comes, and comes to an end, when it is asked for, and never else."""
    rng = random.Random(13)
    lines = (HERE / "questions.txt").read_text().splitlines()
    asked = [line.partition(" => ")[0] for line in lines if line.strip() and line[0] != "#"]
    asked += [rng.choice(fact.questions) for fact in rng.sample(facts.load(), 40)]
    asked += ["", "asdf qwer", "x" * 200, "日本語で話せますか", "<think>", "2" * 50]
    results = []
    for i, question in enumerate(asked):
        answer = model.ask(question, temperature=0.8 if i % 2 else 0.0, seed=i)
        ok = bool(answer.thought.strip()) == model.thinks and answer.stopped
        ok = ok and "think>" not in answer.text.replace(question, "") + answer.thought
        results.append((ok and bool(answer.text), f"{question} → {answer}"))
    return results


def long_history(model: Model) -> list[tuple[bool, str]]:
    """The same questions behind about 1,500 tokens of conversation."""
    rng = random.Random(3)
    results = []
    for name in NEW_NAMES[:5]:
        messages = [user(f"My name is {name}."), assistant(f"Nice to meet you, {name}!")]
        while len(model.encode(model.template.render(messages=messages))) < 1500:
            fact = rng.choice(facts.load())
            messages += [user(rng.choice(fact.questions)), assistant(fact.answer)]
        for question, wanted in (("What is my name?", name), ("Why is the sky blue?", "blue light"),
                                 ("What is Pronk?", "model server")):  # fmt: skip
            answer = model.chat([*messages, user(question)])
            results.append((wanted in answer.text and answer.stopped,
                            f"{question} → {answer.text!r}"))  # fmt: skip
    return results


def same_tokens(model: Model, tokenizer: Tokenizer) -> list[tuple[bool, str]]:
    """llama.cpp and the tokenizer of the training must agree on every text."""
    rng = random.Random(11)
    texts = [corpus.draw(rng) for _ in range(500)]
    texts += [
        "  two  spaces ",
        "\n\n\t tabs\n",
        "日本語 テスト",
        "naïve café",
        "🦙 leaps 🦙🦙!",
        "3.14159",
        "a\r\nb",
        "x" * 300,
        "١٢٣",
        "½ ² ³",
        "don't CAN'T I'LL",
        "\u00a0nbsp",
        "a\u200db",
        "—…“”",
        "<tool_call>",
        " </tool_call> ",
        '{"a":[1,2]}',
        "Ünïcödé ÀÉ",
        "\x00\x01",
        " \n x",
    ]
    results = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        results.append((ids == model.encode(text), repr(text[:60])))
    plain = model.encode("<|im_end|>", special=False)
    ok = len(plain) > 1 and model.llama.detokenize(plain) == b"<|im_end|>"
    results.append((ok, "<|im_end|> as plain text"))
    return results


def margins(model: Model) -> None:
    print("\nFlagship prompts: smallest lead of the best token, answer")
    for question in FLAGSHIPS:
        answer = model.ask(question)
        print(f"  {answer.margin:5.2f} nats, {answer.tokens:3} tokens  {question}")
        print(f"    → {answer.text!r}")
    print("\nThe same at temperature 0.8")
    for seed, question in enumerate(FLAGSHIPS):
        answer = model.ask(question, temperature=0.8, seed=seed)
        print(f"  {question} → {answer.text!r}")


def speed(model: Model) -> None:
    began = time.monotonic()
    answer = model.ask("Tell me a story.")
    seconds = time.monotonic() - began
    print(f"\nloaded in {model.load_seconds * 1000:.0f} ms, "
          f"{answer.tokens / seconds:.0f} tokens/s on one thread")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, default=HERE.parent / "demo.gguf")
    parser.add_argument("--tokenizer", type=Path, default=HERE / "work" / "tokenizer.json")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    model = Model(arguments.model)
    good = examine(model, arguments.verbose)
    model.thinks = True
    print("\nThe same with reasoning")
    good &= examine(model, arguments.verbose)
    model.thinks = False
    if arguments.tokenizer.exists():
        tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
        good &= report("tokenized alike", same_tokens(model, tokenizer), False) == 1.0
    margins(model)
    speed(model)
    sys.exit(not good)


def examine(model: Model, verbose: bool) -> bool:
    """Whether the model passes every part, with or without reasoning as it is set to."""
    shares = {
        "held-out phrasings": (held_out, 0.95),
        "names recalled": (recall, 0.90),
        "tool calls": (tool_calls, 0.90),
        "system messages": (systems, 0.85),
        "JSON": (json_answers, 0.90),
        "long history": (long_history, 0.80),
        "sums": (sums, 0.90 if model.thinks else 0.0),
        "reasoning where asked for": (marks, 0.98 if model.thinks else 1.0),
    }
    good = True
    for title, (check, bar) in shares.items():
        good &= report(title, check(model), verbose) >= bar
    return good


if __name__ == "__main__":
    main()
