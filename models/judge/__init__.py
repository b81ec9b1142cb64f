"""Judges: a language model, here or behind an endpoint, is asked which response is better.

`opening` makes what answers of a configuration, `asking` asks it, remembering what it knows,
`judge` turns its answers into probabilities and ratings, `revising` has it revise responses.
"""
