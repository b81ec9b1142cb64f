"""Preference data: readers, formats, checks and splits. Loads no GPU stack."""

from trimtab.models.data.demonstrations import (
    Demonstration,
    DemonstrationError,
    Shaping,
    load_demonstrations,
)
from trimtab.models.data.external_votes import VotesError, read_votes
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
from trimtab.models.data.review import ReviewError, read_review
from trimtab.models.data.splits import (
    LeakageError,
    SplitBy,
    SplitError,
    check_leakage,
    split_pairs,
)
from trimtab.models.data.summary import PreferenceReport, SourceCounts

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
