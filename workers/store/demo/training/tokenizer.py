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
END_OF_TEXT, TURN_START, TURN_END = range(3)


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Learn a tokenizer of `vocab` tokens; the control tokens are 0, 1, 2 and the tags 3, 4."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    inference = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    apart = pre_tokenizers.Split(Regex(r" (?=\p{Lu})"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([apart, inference])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[
            *(AddedToken(text, special=True, normalized=False) for text in CONTROL),
            *(AddedToken(text, special=False, normalized=False) for text in TAGS),
        ],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = inference
    return tokenizer
