"""The script of the label audit's page."""
