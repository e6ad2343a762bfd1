"""The frontend: HTTP in front, messages behind.

It validates, translates and relays; it opens no model and reads no disk. `dialects` translate what
clients speak, `operations` say what can be done, `relay` carries it to the other processes.
"""
