"""Preference data: readers, formats, checks and splits. Loads no GPU stack."""

from trimtab.models.data.demonstrations import (
    Demonstration,
    DemonstrationError,
    Shaping,
    load_demonstrations,
)
from trimtab.models.data.external_votes import ReviewError, VotesError, read_review, read_votes
from trimtab.models.data.loading import (
    Look,
    OnBadRows,
    OnTies,
    PreferenceOptionError,
    TokenLimit,
    load_preferences,
    look_through,
    read_in_words,
)
from trimtab.models.data.messages import Render, chat_renderer, render_hh
from trimtab.models.data.problems import BadRow, PreferenceDataError, Problem, write_quarantine
from trimtab.models.data.readers import Source
from trimtab.models.data.row_account import PreferenceReport, RowCounts
from trimtab.models.data.splits import (
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
    "RowCounts",
    "Shaping",
    "Source",
    "SplitBy",
    "SplitError",
    "TokenLimit",
    "VotesError",
    "chat_renderer",
    "check_leakage",
    "load_demonstrations",
    "load_preferences",
    "look_through",
    "read_in_words",
    "read_review",
    "read_votes",
    "render_hh",
    "split_pairs",
    "write_quarantine",
]
