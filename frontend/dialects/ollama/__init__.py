"""Ollama's HTTP API.

`routes` is the table of paths, `requests` and `options` read what clients send, `lines` writes
generations, `listings` everything else.
"""
