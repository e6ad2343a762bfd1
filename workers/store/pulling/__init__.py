"""Pulling a model: from a registry's manifest to a model in the library.

`ranges` and `plan` (which bytes are there, which are asked for next) and `patience` (when to try
again, when to give up) are pure. `journal` keeps on disk what has arrived, `partial` is the file
that grows, with its journal and its digest; `download` fetches one blob over several connections,
and `pull` is the whole.
"""
