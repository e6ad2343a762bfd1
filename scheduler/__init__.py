"""The scheduler: decides who runs what where, and does nothing else.

It reads the header of a request and never its body, sees no token and no file, and holds only what
the announcements of workers and frontends rebuild within a second after its death.
"""
