"""How a model writes its answers."""
