"""What all of Pronk's processes agree on: settings, errors, messages, channels.

Every other room imports this one; it imports none of them. `docs/protocol.md` describes the wire
for a reader who writes a worker in another language.
"""
