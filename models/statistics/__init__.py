"""Intervals, calibration, ratings and agreement for reports."""
