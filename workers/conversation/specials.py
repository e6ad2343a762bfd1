"""Control tokens, and which of those that stand in a prompt a template wrote itself.

A prompt comes from its template as one text, in which the words of users and the template's own
markers look alike. So the template is rendered once more with words in which every character that
could begin or end a control token has a stand-in, of equal length and like nothing else: where the
result is the same but for those, it says of each character whose it is. What users wrote is then
tokenized as text. See `Guard.render`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

from .finding import Beginnings, Finder

_APART = "\n"
"""Joins with nothing behind it in any vocabulary."""


@dataclass(frozen=True, slots=True)
class Special:
    """A token that stands for itself and not for its text."""

    token: int
    text: str
    control: bool = True
    """Whether it is one only where control tokens are looked for; else it is in any text, too."""
    strips_before: bool = False
    strips_after: bool = False
    """Whether it takes the white space beside it along."""

    @property
    def strips(self) -> bool:
        """Whether it takes any white space along."""
        return self.strips_before or self.strips_after


class TextTokenizer(Protocol):
    """What is needed of a vocabulary to tokenize."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, without a beginning token."""
        ...


class Rendered:
    """The text of a prompt, in which control tokens that users wrote are known as text."""

    __slots__ = ("_guard", "_marked", "text")

    def __init__(self, text: str, marked: str | None = None, guard: Guard | None = None) -> None:
        """`marked` is `text` with stand-ins; None where no control token is a user's."""
        self.text = text
        self._marked = marked
        self._guard = guard

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, part: slice) -> Rendered:
        marked = None if self._marked is None else self._marked[part]
        return Rendered(self.text[part], marked, self._guard)

    def __add__(self, behind: str) -> Rendered:
        marked = None if self._marked is None else self._marked + behind
        return Rendered(self.text + behind, marked, self._guard)

    def tokens(self, tokenizer: TextTokenizer, *, special: bool = True) -> list[int]:
        """Token ids, without a beginning token."""
        if self._marked is None or self._guard is None or not special:
            return tokenizer.tokenize(self.text, special=special)
        return self._guard.tokens(self.text, self._marked, tokenizer)


class Mark(Protocol):
    """Changes characters of a user's words, and keeps their length."""

    def __call__(self, text: str, *, own: bool = False) -> str:
        """The changed text. `own` says that the model wrote it: the markers in which a template
        expects its words, such as those of reasoning, count.
        """
        ...


Render = Callable[[Mark], str]
"""Renders with all words of users changed."""


def unchanged(text: str, *, own: bool = False) -> str:
    """The text itself."""
    del own
    return text


class Guard:
    """Knows the special tokens of a model, and those that a template uses. For many threads."""

    def __init__(self, specials: Iterable[Special] = (), source: str = "") -> None:
        """`source` is the template's: an added token, which any text may otherwise hold, is
        guarded like a control token where the template uses it as a marker.
        """
        specials = sorted(
            (special for special in specials if special.text),
            key=lambda special: len(special.text.encode()),
            reverse=True,
        )
        self._specials = tuple(specials)
        self._by_text = {special.text: special for special in reversed(specials)}
        guarded = [s for s in specials if s.control or (_is_tag(s.text) and s.text in source)]
        self._guarded = {s.text: s for s in guarded}
        self._finder = Finder(self._guarded)
        self._all = Finder(s.text for s in specials)
        self.markers = Finder(
            text
            for text, special in self._guarded.items()
            if not special.control and (_is_sought(text, source) or _is_paired(text, source))
        )
        """What may stand in the model's own words, such as the beginning and end of reasoning."""
        self.signs = _signs(self._guarded)
        self._letters = "".join(sorted(filter(_may_change, set("".join(self._guarded)))))
        self._begins = Beginnings(self._guarded)
        self._ends = Beginnings(text[::-1] for text in self._guarded)
        self._longest = max(map(len, self._guarded), default=0)
        self._joined = "\0".join(self._guarded)
        self._framed = _frames(source, self._begins)
        self._source = source
        self.of = lru_cache(maxsize=8)(self._of)
        """The guard of the same tokens for another template."""

    def _of(self, source: str) -> Guard:
        return Guard(self._specials, source)

    def render(self, render: Render, words: Sequence[str]) -> Rendered:
        """What a template writes, with every control token in it known as its own or a user's.

        `words` are all texts that `render` changes. What it raises with unchanged words is passed
        on.
        """
        plain = render(unchanged)
        if not self._finder or not self._may_hide(words):
            return Rendered(plain)
        free = _free(len(self._letters), [*words, self._source])
        if len(free) < len(self._letters):  # somebody sent every character that there is
            return Rendered(render(self._without))
        marks = _Marks(self, dict(zip(self._letters, free, strict=True)))
        whole = _attempt(render, marks.wholly)
        if whole is not None and marks.removed(whole) == plain:
            return self._judged(plain, whole)
        # The template looks into the words. It may, as long as it writes the same control tokens
        # as it does for words that it cannot look into.
        blind = whole if whole is not None else _attempt(render, self._without)
        light = _attempt(render, marks.lightly)
        if light is not None and blind is not None and self._control(light) == self._control(blind):
            return self._judged(marks.removed(light), light)
        if whole is not None:
            return self._judged(marks.removed(whole), whole)
        # It refuses what is marked. Without its signs, nothing can be a control token.
        return Rendered(render(self._without))

    def tokens(self, text: str, marked: str, tokenizer: TextTokenizer) -> list[int]:
        """The tokens of a text, which with stand-ins is `marked`.

        Only what stands around a user's control tokens is tokenized apart from the rest.
        """
        own = list(self._all.find(marked))
        known = set(own)
        foreign = [each for each in self._all.find(text) if each not in known]
        tokens: list[int] = []
        begun = ended = 0
        """What was passed over, and is to be tokenized as it stands."""
        at = 0
        for token, start, end in self._parted(marked, own):
            while at < len(foreign) and foreign[at][0] + len(foreign[at][1]) <= start:
                at += 1
            if at == len(foreign) or foreign[at][0] >= end:
                if begun == ended:
                    begun = start
                ended = end
                continue
            if begun < ended:
                tokens += tokenizer.tokenize(text[begun:ended])
            begun = ended = end
            if token is not None:
                tokens.append(token)
            elif start < end:
                tokens += self._tokens_of(text[start:end], marked[start:end], tokenizer)
        return [*tokens, *tokenizer.tokenize(text[begun:ended])] if begun < ended else tokens

    def partition(self, marked: str) -> list[tuple[int | None, int, int]]:
        """Tokens and texts (None) with where they stand, as llama.cpp finds them: the longest
        tokens first.
        """
        return self._parted(marked, list(self._all.find(marked)))

    def _parted(
        self, marked: str, own: Sequence[tuple[int, str]]
    ) -> list[tuple[int | None, int, int]]:
        """The same, where `own` are the longest tokens wherever one begins."""
        if not self._are_plain(own):
            return self._parted_in_order(marked, {text for _, text in own})
        pieces: list[tuple[int | None, int, int]] = []
        end = 0
        for start, text in own:
            pieces += [(None, end, start), (self._by_text[text].token, start, start + len(text))]
            end = start + len(text)
        return [*pieces, (None, end, len(marked))]

    def _are_plain(self, own: Sequence[tuple[int, str]]) -> bool:
        """Whether none of the tokens reaches into another, or takes white space along."""
        return all(
            start + len(text) <= behind for (start, text), (behind, _) in pairwise(own)
        ) and not any(self._by_text[text].strips for text in {text for _, text in own})

    def _parted_in_order(self, marked: str, found: set[str]) -> list[tuple[int | None, int, int]]:
        pieces: list[tuple[int | None, int, int]] = [(None, 0, len(marked))]
        # A shorter one within a longer one's text can only be where the longer one is.
        for special in self._specials:
            if special.text not in found and not any(special.text in text for text in found):
                continue
            if special.text not in marked:
                continue
            divided: list[tuple[int | None, int, int]] = []
            for token, start, end in pieces:
                if token is None:
                    divided += _divided(marked, start, end, special)
                else:
                    divided.append((token, start, end))
            pieces = divided
        return pieces

    def _tokens_of(self, text: str, marked: str, tokenizer: TextTokenizer) -> list[int]:
        """The tokens of what stands between control tokens. An added token that a user wrote is
        cut behind its first character, because any text may otherwise hold it.
        """
        cuts = [
            start + 1
            for start, found in self._finder.find(text)
            if not self._guarded[found].control and not marked.startswith(found, start)
        ]
        return cut_apart(text, cuts, lambda part: tokenizer.tokenize(part, special=False))

    def _may_hide(self, words: Iterable[str]) -> bool:
        """Whether some word holds what could become part of a control token."""
        return any(
            any(sign in word for sign in self.signs) or self.is_middle(word) for word in words
        )

    def is_middle(self, word: str) -> bool:
        """Whether a word may stand in the middle of a token that the template begins and ends."""
        if not self._framed or len(word) > _LONGEST_MIDDLE:
            return False
        word = word.strip()
        return bool(word) and word in self._joined

    def _without(self, text: str, *, own: bool = False) -> str:
        del own
        if self.is_middle(text):
            return " " * len(text)
        for sign in self.signs:
            text = text.replace(sign, " ")
        return text

    def places_in(self, text: str) -> set[int]:
        """Where tokens begin in a text, and where one may go on beyond its edges."""
        places = {start for start, _ in self._finder.find(text)}
        end, begin = len(text.rstrip()), len(text) - len(text.lstrip())
        for length in range(1, min(self._longest, end - begin + 1, _LONGEST_EDGE)):
            if text[end - length : end] in self._begins:
                places.add(end - length)
            if text[begin : begin + length][::-1] in self._ends:
                places.add(begin + length - 1)
        return places

    def _control(self, text: str) -> list[str]:
        return [found for _, found in self._finder.find(text) if self._guarded[found].control]

    def _judged(self, text: str, marked: str) -> Rendered:
        """The marks matter only where they keep apart what would otherwise be one token."""
        for start, found in self._finder.find(text):
            if not marked.startswith(found, start):
                return Rendered(text, marked, self)
        return Rendered(text)


def cut_apart(text: str, cuts: Sequence[int], tokenize: Callable[[str], list[int]]) -> list[int]:
    """The tokens of a text of which none goes beyond one of the `cuts`."""
    tokens = tokenize(text[: cuts[0]] if cuts else text)
    lead = tokenize(_APART) if cuts else []
    for start, end in pairwise([*cuts, len(text)]):
        # Behind another text, no space is put before a text; at the beginning one might be.
        tokens += tokenize(_APART + text[start:end])[len(lead) :]
    return tokens


class _Marks:
    """Stand-ins for one conversation."""

    def __init__(self, guard: Guard, stand_ins: dict[str, str]) -> None:
        self._guard = guard
        self._all = {ord(c): stand_in for c, stand_in in stand_ins.items()}
        self._back = {ord(stand_in): c for c, stand_in in stand_ins.items()}
        self._signs = [(sign, stand_ins[sign]) for sign in guard.signs]

    def wholly(self, text: str, *, own: bool = False) -> str:
        """A text with stand-ins wherever a control token could begin or end."""
        if self._guard.is_middle(text):
            return text.translate(self._all)
        marked = text
        for sign, stand_in in self._signs:
            marked = marked.replace(sign, stand_in)
        return self._without_markers(text, marked) if own else marked

    def lightly(self, text: str, *, own: bool = False) -> str:
        """A text with stand-ins only where a control token is, or begins or ends at its edge."""
        if self._guard.is_middle(text):
            return text.translate(self._all)
        characters = list(text)
        for place in self._guard.places_in(text):
            characters[place] = characters[place].translate(self._all)
        marked = "".join(characters)
        return self._without_markers(text, marked) if own else marked

    def removed(self, text: str) -> str:
        """What a text is without stand-ins."""
        for sign, stand_in in self._signs:
            text = text.replace(stand_in, sign)
        return text.translate(self._back) if _RARELY.search(text) else text

    def _without_markers(self, text: str, marked: str) -> str:
        pieces: list[str] = []
        end = 0
        for start, found in self._guard.markers.find(text):
            if start >= end:
                pieces += [marked[end:start], found]
                end = start + len(found)
        return "".join([*pieces, marked[end:]])


def _attempt(render: Render, mark: Mark) -> str | None:
    try:
        return render(mark)
    except Exception:  # the template's own refusal, of words that nobody wrote
        return None


def _divided(
    marked: str, start: int, end: int, special: Special
) -> list[tuple[int | None, int, int]]:
    pieces: list[tuple[int | None, int, int]] = []
    while (place := marked.find(special.text, start, end)) >= 0:
        behind = place + len(special.text)
        before = place
        if special.strips_before:
            before = start + len(marked[start:place].rstrip(" \t\n\v\f\r"))
        pieces += [(None, start, before), (special.token, place, behind)]
        if special.strips_after:
            behind = end - len(marked[behind:end].lstrip(" \t\n\v\f\r"))
        start = behind
    return [*pieces, (None, start, end)]


def _may_change(character: str) -> bool:
    """Whether a stand-in goes through templates as the character does: not what they trim, or
    what JSON escapes.
    """
    return not character.isspace() and character.isprintable() and character not in '"\\'


def _signs(texts: Iterable[str]) -> str:
    """The first and the last character of each text that may have a stand-in.

    A text of which a part is a user's has one of them from the user, or both from the template.
    """
    signs = set[str]()
    for text in texts:
        usable = [c for c in text if _may_change(c)]
        signs.update(usable[:1], usable[-1:])
    return "".join(sorted(signs))


_LONGEST_MIDDLE = _LONGEST_EDGE = 64
"""Characters of a token's part that a template may write by itself."""


def _frames(source: str, begins: Beginnings) -> bool:
    """Whether a template has a place where a value stands right behind the beginning of a token,
    such as `'<' + name + '>'`.
    """
    return any(
        source[place - length : place] in begins
        for place in (match.start() for match in re.finditer(r"[\"']|\{[{%#]", source))
        for length in range(1, min(_LONGEST_EDGE, place) + 1)
    )


def _is_tag(text: str) -> bool:
    """Whether an added token looks like a marker and not like a word."""
    return (
        len(text) > 2
        and not text[0].isalnum()
        and not text[-1].isalnum()
        and not any(character.isspace() for character in text)
        and any(character.isalpha() for character in text)
    )


def _is_sought(text: str, source: str) -> bool:
    """Whether a template asks whether a text is in another, or cuts there."""
    quoted = f"[\"']{re.escape(text)}[\"']"
    return re.search(rf"{quoted}\s+in\s|split\(\s*{quoted}", source) is not None


def _is_paired(text: str, source: str) -> bool:
    """Whether a text is one of a pair of tags that a template knows: `<a>` and `</a>`."""
    other = text[0] + text[2:] if text[1] == "/" else f"{text[0]}/{text[1:]}"
    return other in source


_RARE = range(0x20000, 0x2A6D0)
"""Letters that are printed, have no case and stand in hardly any text."""


def _free(count: int, texts: Iterable[str]) -> str:
    """`count` rare characters that stand in none of the texts."""
    used = set[str]()
    for text in texts:
        if not text.isascii():
            used.update(_RARELY.findall(text))
    free = (chr(code) for code in _RARE if chr(code) not in used)
    return "".join(character for _, character in zip(range(count), free, strict=False))


_RARELY = re.compile("[\U00020000-\U0002a6d0]")


NO_GUARD = Guard()
"""For a model without control tokens."""
