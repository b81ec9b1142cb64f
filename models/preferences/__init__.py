"""Preference data: readers, formats, checks and splits. Loads no GPU stack."""

from models.preferences.demonstrations import (
    Demonstration,
    DemonstrationError,
    Shaping,
    load_demonstrations,
)
from models.preferences.errors import BadRow, PreferenceDataError, Problem, write_quarantine
from models.preferences.load import (
    Look,
    OnBadRows,
    OnTies,
    PreferenceOptionError,
    load_preferences,
    look_through,
)
from models.preferences.messages import Render, chat_renderer, render_hh
from models.preferences.readers import Source
from models.preferences.report import PreferenceReport, SourceCounts
from models.preferences.review import ReviewError, read_review
from models.preferences.splits import (
    LeakageError,
    SplitBy,
    SplitError,
    check_leakage,
    split_pairs,
)

__all__ = [
    "BadRow",
    "Demonstration",
    "DemonstrationError",
    "LeakageError",
    "Look",
    "OnBadRows",
    "OnTies",
    "PreferenceDataError",
    "PreferenceOptionError",
    "PreferenceReport",
    "Problem",
    "Render",
    "ReviewError",
    "Shaping",
    "Source",
    "SourceCounts",
    "SplitBy",
    "SplitError",
    "chat_renderer",
    "check_leakage",
    "load_demonstrations",
    "load_preferences",
    "look_through",
    "read_review",
    "render_hh",
    "split_pairs",
    "write_quarantine",
]
