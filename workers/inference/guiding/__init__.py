"""Leads an answer: calls that can be read, an end to reasoning, and a form for what is said."""
