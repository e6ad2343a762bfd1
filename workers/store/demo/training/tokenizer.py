"""The demo model's tokenizer: byte-level BPE, trained on the corpus.

The pre-tokenizer is the one llama.cpp calls `smollm`: every digit by itself, then GPT-2's regular
expression. While merges are learned, a space is kept apart from a capital letter behind it, so
`Paris` has the same tokens in ` Paris` and in `"Paris`: copying a name from a question into JSON
then is copying tokens, which a small model can do.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>"]
THOUGHT = ["<think>", "</think>"]  # behind all others: the first weights had learnt without them
END_OF_TEXT, TURN_START, TURN_END = range(3)


def reading() -> pre_tokenizers.PreTokenizer:
    """How a text is cut before merges are applied: what llama.cpp calls `smollm`."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def added(texts: Iterable[str], special: bool) -> list[AddedToken]:
    """Tokens that are found in a text before anything else."""
    return [AddedToken(text, special=special, normalized=False) for text in texts]


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Learn a tokenizer of `vocab` tokens; control tokens are 0, 1, 2, tags 3, 4, and the two of
    reasoning the last.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    apart = pre_tokenizers.Split(Regex(r" (?=\p{Lu})"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, reading()])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(THOUGHT),
        special_tokens=[*added(CONTROL, True), *added(TAGS, False)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = reading()
    tokenizer.add_tokens(added(THOUGHT, False))
    return tokenizer


def rebuild(tokens: list[str], merges: list[str]) -> Tokenizer:
    """The tokenizer of a finished file, with the tokens of reasoning where it lacks them."""
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = reading()
    tokenizer.add_special_tokens(added(CONTROL, True))
    tokenizer.add_tokens(added([*TAGS, *THOUGHT], False))
    return tokenizer
