"""The arms of the papers' exhibits."""
