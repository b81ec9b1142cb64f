"""What a run will cost, by arithmetic: sizes of models, amounts of data, work and memory a stage.

Nothing here loads torch or starts anything: `trimtab run RECIPE --dry-run` prints what it says.
"""
