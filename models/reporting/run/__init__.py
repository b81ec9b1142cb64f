"""The report: one HTML file and one scorecard per run, from the artifacts alone."""
