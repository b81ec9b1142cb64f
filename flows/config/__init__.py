"""The settings of a run: declared, changed, named, explained; and the recipes."""
