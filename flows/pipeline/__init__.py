"""The parts of the experiment that flows share.

Every function submits stages and keeps their futures in `Run` by role, so that independent stages
run at once. Report and lineage are made from the roles.
"""
