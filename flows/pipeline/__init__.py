"""The parts of the experiment that flows share, as submissions of stages.

Every function submits stages and lets `Run` remember their futures by role, so that all that does
not depend on each other runs at once; report and lineage are made of the roles.
"""
