def position_logprobs(logits, token, top, vocabulary):
    return None
