"""Judges: a language model, here or behind an endpoint, is asked which response is better.

`opening` makes what answers of a configuration, `asking` asks it, remembering what it knows,
`pairwise` and `direct` turn its answers into probabilities and scores.
"""
