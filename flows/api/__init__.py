"""Trimtab from Python: what the commands do, with objects in place of options and printed text."""
