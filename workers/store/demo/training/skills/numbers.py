"""Counting and arithmetic with small numbers."""

import random
from collections.abc import Iterable

from entities import listed
from phrasing import typed
from talk import Talk, turns

NAMES = listed("""
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen
seventeen eighteen nineteen twenty
""")
NAMED = dict(enumerate(NAMES)) | {
    30: "thirty", 40: "forty", 50: "fifty", 100: "one hundred", 200: "two hundred",
}  # fmt: skip
COUNT = ["count to {n}", "count to {n}", "count from 1 to {n}", "count from one to {n}",
         "can you count to {n}", "list the numbers from 1 to {n}", "count up to {n}",
         "numbers from 1 to {n}", "say the numbers from one to {n}", "write the numbers 1 to {n}",
         "print the numbers from 1 to {n}"]  # fmt: skip
DOWN = ["count down from {n}", "count backwards from {n}", "countdown from {n}",
        "count from {n} to 1", "count from {n} down to 1",
        "count backward from {n} to 1"]  # fmt: skip
SUM = ["what is {a} + {b}", "{a} + {b}", "{a}+{b}", "what is {a} plus {b}", "how much is {a} + {b}",
       "{a} plus {b}", "calculate {a} + {b}", "add {a} and {b}", "what is the sum of {a} and {b}",
       "how much is {a} plus {b}", "{a} + {b} =", "what's {a}+{b}", "compute {a} + {b}",
       "what does {a} + {b} make"]  # fmt: skip
DIFFERENCE = ["what is {a} - {b}", "{a} - {b}", "{a}-{b}", "what is {a} minus {b}",
              "how much is {a} minus {b}", "{a} minus {b}", "calculate {a} - {b}",
              "subtract {b} from {a}", "how much is {a} - {b}", "what's {a}-{b}"]  # fmt: skip
PRODUCT = ["what is {a} * {b}", "{a} * {b}", "{a} x {b}", "what is {a} times {b}",
           "how much is {a} times {b}", "{a} times {b}", "calculate {a} * {b}",
           "multiply {a} by {b}", "what is {a} x {b}", "multiply {a} and {b}", "{a}*{b}",
           "what is the product of {a} and {b}", "what's {a}*{b}"]  # fmt: skip
QUOTIENT = ["what is {a} / {b}", "{a} / {b}", "what is {a} divided by {b}", "divide {a} by {b}",
            "how much is {a} divided by {b}", "{a} divided by {b}", "{a}/{b}"]  # fmt: skip


def spoken(n: int, rng: random.Random) -> str:
    """`n` as a word in some of the cases."""
    return NAMED[n] if n in NAMED and rng.random() < 0.3 else str(n)


def count_up(rng: random.Random) -> Talk:
    n = rng.choice([3, 5, 10, 10, 12, 15, 20, 20, 20, 25, 30, 40, 50, rng.randint(3, 30), 100])
    n = 200 if rng.random() < 0.05 else n
    question = rng.choice(COUNT).format(n=spoken(n, rng))
    return counted(question, range(1, n + 1), rng)


def counted(question: str, numbers: range, rng: random.Random) -> Talk:
    answer = ", ".join(map(str, numbers)) + "."
    way = "Up" if numbers.step > 0 else "Down"
    thought = f"{way} from {numbers[0]}, and {numbers[-1]} is the last number."
    return turns(typed(question, rng, exact=True), answer, thought=thought)


def count_between(rng: random.Random) -> Talk:
    low = rng.randint(1, 30)
    high = low + rng.randint(2, 15)
    form = rng.choice(["count from {a} to {b}", "list the numbers from {a} to {b}",
                       "numbers from {a} to {b}", "count from {a} up to {b}"])  # fmt: skip
    return counted(form.format(a=low, b=high), range(low, high + 1), rng)


def count_down(rng: random.Random) -> Talk:
    n = rng.choice([3, 5, 10, 10, 20, 20, rng.randint(3, 20)])
    question = rng.choice(DOWN).format(n=spoken(n, rng))
    return counted(question, range(n, 0, -1), rng)


def steps(numbers: Iterable[int]) -> str:
    """Numbers with their places, so that none is lost: `1: 7, 2: 14`."""
    return ", ".join(f"{i}: {number}" for i, number in enumerate(numbers, 1))


def small_steps(a: int, sign: str, b: int) -> str:
    """How to find a small result by counting."""
    if sign == "+":
        return f"From {a} up {b}: {steps(range(a + 1, a + b + 1))}." if b else f"{a} stays."
    if sign == "-":
        return f"From {a} down {b}: {steps(range(a - 1, a - b - 1, -1))}." if b else f"{a} stays."
    if sign == "*":
        return f"{a} times {b}: {steps(range(b, a * b + 1, b))}."
    return f"In steps of {b} to {a}: {steps(range(b, a + 1, b))}."


def large_steps(a: int, sign: str, b: int) -> str:
    """How to find a larger result from small ones: tens and ones by themselves."""
    if sign == "*":
        tens, ones = b // 10 * 10, b % 10
        return f"{a} * {tens} = {a * tens}, {a} * {ones} = {a * ones}, " + (
            f"{a * tens} + {a * ones} = {a * b}."
        )
    if sign == "+":
        tens = a // 10 * 10 + b // 10 * 10
        return (f"Tens: {a // 10 * 10} + {b // 10 * 10} = {tens}. "
                f"Ones: {a % 10} + {b % 10} = {a % 10 + b % 10}. "
                f"Together: {tens} + {a % 10 + b % 10} = {a + b}.")  # fmt: skip
    left = a - b // 10 * 10
    return (f"Tens: {a} - {b // 10 * 10} = {left}. "
            f"Ones: {left} - {b % 10} = {a - b}.")  # fmt: skip


def worked(rng: random.Random) -> Talk:
    """Sums of numbers up to 99, which only come out right step by step."""
    kind = rng.randrange(5)
    if kind < 2:
        a, b = rng.randint(11, 99), rng.randint(1, 99)
        forms, sign, result = SUM, "+", a + b
    elif kind < 4:
        a = rng.randint(11, 99)
        b = rng.randint(1, a)
        forms, sign, result = DIFFERENCE, "-", a - b
    else:
        a, b = rng.randint(2, 9), rng.randint(11, 29)
        forms, sign, result = PRODUCT, "*", a * b
    question = typed(rng.choice(forms).format(a=a, b=b), rng, exact=True)
    answer = f"{a} {sign} {b} = {result}"
    return turns(question, answer, thought=large_steps(a, sign, b), worked=True)


def arithmetic(rng: random.Random) -> Talk:
    kind = rng.randrange(6)
    if kind < 2:
        a, b = rng.randint(0, 10), rng.randint(0, 10)
        forms, sign, result = SUM, "+", a + b
    elif kind == 2:
        a = rng.randint(1, 10)
        b = rng.randint(0, a)
        forms, sign, result = DIFFERENCE, "-", a - b
    elif kind < 5:
        a, b = rng.randint(1, 10), rng.randint(1, 10)
        forms, sign, result = PRODUCT, "*", a * b
    else:
        b, result = rng.randint(1, 10), rng.randint(1, 10)
        a, forms, sign = b * result, QUOTIENT, "/"
    question = rng.choice(forms).format(a=spoken(a, rng), b=spoken(b, rng))
    return turns(typed(question, rng, exact=True), f"{a} {sign} {b} = {result}",
                 thought=small_steps(a, sign, b))  # fmt: skip


def neighbour(rng: random.Random) -> Talk:
    """Which number comes after or before another, which of two is larger."""
    a, b = rng.sample(range(1, 60), 2)
    kind = rng.randrange(4)
    if kind == 0:
        question, answer = "what number comes after {a}", f"{a + 1} comes after {a}."
        thought = f"One more than {a} is {a + 1}."
    elif kind == 1:
        question, answer = "what number comes before {a}", f"{a - 1} comes before {a}."
        thought = f"One less than {a} is {a - 1}."
    elif kind == 2:
        question = rng.choice(["which is larger, {a} or {b}", "what is bigger, {a} or {b}",
                               "is {a} or {b} greater"])  # fmt: skip
        answer = f"{max(a, b)} is larger than {min(a, b)}."
        thought = f"{a} has {a // 10} tens, and {b} has {b // 10}." if a // 10 != b // 10 else (
            f"{a} and {b} have the same tens; their ones are {a % 10} and {b % 10}.")  # fmt: skip
    else:
        question = rng.choice(["is {a} even or odd", "is {a} odd or even"])
        answer = f"{a} is {'odd' if a % 2 else 'even'}."
        thought = f"{a} ends in {a % 10}, and {a % 10} is {'odd' if a % 2 else 'even'}."
    return turns(typed(question.format(a=a, b=b), rng, exact=True), answer, thought=thought)


SKILLS = [(2.0, count_up), (0.6, count_between), (0.7, count_down), (5.0, arithmetic),
          (0.7, neighbour), (2.5, worked)]  # fmt: skip
