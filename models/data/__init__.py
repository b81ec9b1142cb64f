"""Preference data: readers, formats, checks and splits. Loads no GPU stack."""
