"""The configurations of all stages, by subject: frozen, with bounds, each field described.

No part of a stage's code closure: their values are in its key, so that a description can be
improved and nothing is computed again. What decides a result beyond its values stands elsewhere.
Imports no torch, so that planning and deploying stay light.
"""
