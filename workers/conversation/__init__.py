"""From a conversation to prompt tokens: the model's chat template, and what to leave out."""
