"""`pronk run`: one answer for a pipe or a prompt, or a conversation at a terminal.

`run` decides which of them it is, `session` asks the server and prints what comes, `interactive` is
the loop of a conversation with what `reading` gets from the keyboard, and `commands` are the lines
that begin with a slash.
"""
