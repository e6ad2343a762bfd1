"""Processes that do the work: `worker` holds one model and generates, `store` keeps the library."""
