"""The business layer: what can be done, for whom, whatever dialect asked.

Dataclasses in, dataclasses out; every function takes the `Caller` on whose behalf it runs. Nothing
here knows HTTP, and no dialect does anything but translate to and from here.
"""
