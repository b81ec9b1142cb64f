"""Pages, tables and scorecards from the artifacts of runs."""
