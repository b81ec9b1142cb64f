"""`trimtab look FILE`: the form of a file of preferences, its rows, the commands to type next."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trimtab.flows.config.errors import ConfigError
from trimtab.infra.store.fetch import FetchError, fetch, is_remote
from trimtab.models.config.data import PreferencesConfig
from trimtab.models.data.file_problems import needs
from trimtab.models.data.loading import Look, look_through
from trimtab.models.data.presets import BY_NAME
from trimtab.models.data.problems import (
    SOURCE_REASONS,
    BadRow,
    columns_in_words,
    first_of_each,
    shorten,
)
from trimtab.models.data.readers import Source
from trimtab.models.data.records import PreferencePair
from trimtab.models.data.row_reader import check_form

MAX_ROWS = 5000
NUM_EXAMPLES, NUM_IGNORED, MAX_CHARACTERS = 2, 40, 240
EXAMPLE_FIELDS = ("source", "prompt", "chosen", "rejected", "category", "rating", "votes")
# The forms of `native`, in words; those of other presets are `Preset.data`.
NATIVE_FORMS = {
    "hh": "chosen, rejected: whole dialogues as text; the prompt is what both begin with, up to "
    "their last common 'Assistant:'",
    "explicit": "prompt, chosen, rejected: texts",
    "messages": "chosen, rejected: message lists, whole or behind a prompt; shown here as "
    "HH-RLHF's text, in a run by the chat template of its base model",
    "kwise": "prompt, responses: taken to be in order, the best first",
}


def look_at(
    preferences: PreferencesConfig, *, max_rows: int | None = MAX_ROWS
) -> list[dict[str, Any]]:
    """A description of each source, as JSON takes it. max_rows: of each source; None: all.

    ConfigError for a source in S3 that cannot be fetched, or an invalid form.
    """
    if wrong := check_form(preferences.format, preferences.columns):
        raise ConfigError("\n".join(f"--{problem}" for problem in wrong))
    described = []
    for name in preferences.sources:
        with TemporaryDirectory() as folder:
            try:
                path = fetch(name, Path(folder)) if is_remote(name) else Path(name).expanduser()
            except FetchError as error:
                raise ConfigError(str(error)) from error
            source = Source(
                str(path), name=name, format=preferences.format, columns=preferences.columns
            )
            look = look_through([source], on_ties=preferences.on_ties, max_rows=max_rows)
        described.append(_described(name, preferences, look))
    return described


def _described(name: str, preferences: PreferencesConfig, look: Look) -> dict[str, Any]:
    report, rows = look.report, look.report.total
    broken = [row for row in look.bad_rows if row.reason in SOURCE_REASONS]
    columns = next((p.columns for row in broken for p in row.problems if p.columns), None)
    values: dict[str, Any] = {
        "file": name,
        "is_readable": bool(look.pairs) and not broken,
        "is_whole": look.is_whole,
        "forms": {
            form: {"rows": count, "what": _form(form, preferences.columns)}
            for form, count in report.rows_by_format.most_common()
            if not broken
        },
        "rows": {
            "read": rows.read,
            "used": rows.used,
            "refused": rows.quarantined,
            "ties": rows.ties_dropped,
            "unpaired": rows.unpaired,
        },
        "refused_by_reason": dict(report.bad_rows_by_reason.most_common()),
        "pairs": report.num_pairs,
        "repeated": report.num_repeated_pairs,
        "contradicting": report.num_contradicting_pairs,
        "against_votes": report.num_against_votes,
        "against_scores": sum(report.is_against_scores.values()),
        "with": {  # what none needs
            name: sum(getattr(pair, name) is not None for pair in look.pairs)
            for name in ("category", "rating", "votes", "opinions")
        },
        "ignored_columns": dict(report.ignored_fields.most_common()),
        "ignored_files": report.ignored_files,
        "examples": [] if broken else [_example(pair) for pair in _first_pairs(look.pairs)],
        "problems": first_of_each(broken or look.bad_rows, as_option=True),
        "columns": dict(columns) if columns is not None else None,
    }
    return values | {"next": list(_next(values, preferences, broken))}


def _form(name: str, columns: Mapping[str, str]) -> str:
    """A form in words, with the columns that it is recognised by."""
    if name in NATIVE_FORMS:
        return NATIVE_FORMS[name]
    preset = BY_NAME.get(name)
    if preset is None:
        return name
    names = [columns.get(name, name) for name in needs(preset)]
    return f"{preset.data}: {', '.join(names)}"


def _first_pairs(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    first: dict[str, PreferencePair] = {}
    for pair in pairs:
        first.setdefault(pair.source, pair)
        if len(first) == NUM_EXAMPLES:
            break
    return list(first.values())


def _example(pair: PreferencePair) -> dict[str, Any]:
    """A pair as the reader has it, without empty fields."""
    values = dataclasses.asdict(pair)
    return {name: values[name] for name in EXAMPLE_FIELDS if values[name] is not None}


def _next(
    values: Mapping[str, Any], preferences: PreferencesConfig, broken: Sequence[BadRow]
) -> Iterator[str]:
    """The commands to type: those that read the file, or the one that makes it readable."""
    file, words = shlex.quote(values["file"]), []
    columns = values["columns"] or preferences.columns
    if columns:
        words.append(columns_in_words(tuple(columns.items()), as_option=True))
    if preferences.format != "auto":
        words.append(f"preferences.format={preferences.format}")
    if values["columns"]:
        yield " ".join(["trimtab look", file, *words])
    elif values["is_readable"]:
        yield " ".join(["trimtab audit", file, *words])
        sources = shlex.quote(f"preferences.sources={json.dumps([values['file']])}")
        if columns:
            words[0] = columns_in_words(tuple(columns.items()), as_option=False)
        yield " ".join(["trimtab run hh-smollm2", sources, *words])


def look_text(sources: Sequence[Mapping[str, Any]]) -> str:
    """The descriptions of `look_at` as text."""
    return "\n\n".join("\n".join(_lines(values)) for values in sources)


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    yield values["file"]
    for form, one in values["forms"].items():
        yield _line("form", f"{form}: {one['what']} ({one['rows']:,} rows)")
    if not values["is_readable"]:
        yield _line("form", "not readable as it is")
    read = values["rows"]["read"]
    places = [f"{n:,} {name}" for name, n in values["rows"].items() if n and name != "read"]
    more = "" if values["is_whole"] else ", there are more: --all reads them"
    yield _line("rows", f"{read:,} looked at{more}; {', '.join(places) or 'none used'}")
    if values["is_readable"]:
        yield _line("pairs", "; ".join(_pair_counts(values)))
    if values["ignored_columns"]:
        ignored = values["ignored_columns"]
        names = [f"{shorten(name)} ({n:,})" for name, n in islice(ignored.items(), NUM_IGNORED)]
        names += [f"and {rest:,} more"] if (rest := len(ignored) - len(names)) else []
        yield _line("ignored", f"columns {', '.join(names)}")
    if values["ignored_files"]:
        yield _line("ignored", f"files {shorten(values['ignored_files'])}")
    for number, pair in enumerate(values["examples"], start=1):
        yield _line(f"pair {number}", pair["source"])
        for name, value in pair.items():
            if name != "source":
                yield f"    {name:<9} {shorten(value, MAX_CHARACTERS)}"
    yield from map(partial(_line, "wrong"), values["problems"])
    yield from map(partial(_line, "next"), values["next"])


def _line(name: str, text: str) -> str:
    return f"  {name:<9} {text}"


def _pair_counts(values: Mapping[str, Any]) -> Iterator[str]:
    yield f"{values['pairs']:,}"
    for name, fault in (
        ("repeated", "repeat an earlier one"),
        ("contradicting", "contradict an earlier one"),
        ("against_votes", "have a label against most of their votes"),
        ("against_scores", "have a label against their own scores"),
    ):
        if values[name]:
            yield f"{values[name]:,} {fault}"
    yield from [f"{count:,} with {name}" for name, count in values["with"].items() if count]
    if without := [name for name, count in values["with"].items() if not count]:
        yield f"without {', '.join(without)}, which none needs"
