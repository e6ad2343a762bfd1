from dataclasses import dataclass


@dataclass
class Shift:
    keep: int
    discard: int


def plan_shift(length, context_length, keep):
    return Shift(keep, max((context_length - keep) // 2, 1))


def answer_limit(num_predict, context_length, prompt_length, *, shift):
    if not shift:
        room = context_length - prompt_length
        return min(room, num_predict) if num_predict and num_predict > 0 else room
    return num_predict if num_predict and num_predict > 0 else 10 * context_length


def tokens_to_keep(num_keep, prompt_length, context_length):
    return 4
