"""The judges of a label audit before it starts: their settings, a first request, the amount of
requests."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trimtab.flows.audit.budget import amount_of
from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.errors import ConfigError
from trimtab.flows.config.names import settings_of
from trimtab.flows.config.paths import short
from trimtab.flows.runs.checks import first_pairs
from trimtab.flows.runs.plan_text import tokens
from trimtab.infra.reports import read_run
from trimtab.infra.settings import Settings
from trimtab.models.config.judge import MAX_NAME, EndpointConfig
from trimtab.models.config.packages import PACKAGED_MODELS
from trimtab.models.estimates.stages.sampling import asked_tokens
from trimtab.models.nets import counts

# MODEL@URL; a model's name may hold an @, too.
_AT_ADDRESS = re.compile(r"(?P<model>.+?)@(?P<url>[A-Za-z][A-Za-z0-9+.-]*://.*)")
ALLOWED = (
    "MODEL@URL of an OpenAI-compatible address (qwen3@http://localhost:8000/v1), or a packaged "
    "model, folder or hub id"
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Limits for an endpoint's list of models, and with the look-up of its host's name.
SECONDS_TO_ANSWER, SECONDS_IN_ALL = 1.2, 1.8
MOST_LISTED = 5
SETTING = "ensemble.judges"


def judges_of(texts: Sequence[str], max_pairs: int | None) -> list[dict[str, Any]]:
    """The judges that a command line names, as settings; ConfigError for a text that names none.

    A judge has the name of its model, with a number where there are several of one name.
    """
    judges: list[dict[str, Any]] = []
    for text in texts:
        at = _AT_ADDRESS.fullmatch(text)
        if at is not None:
            judge: dict[str, Any] = {"endpoint": {"model": at["model"], "base_url": at["url"]}}
        elif _is_local(text):
            judge = {"local_model": text}
        else:
            raise ConfigError(f"--judge: found {short(text)}; allowed: {ALLOWED}")
        name = _name(at["model"] if at else text, [judge["name"] for judge in judges])
        judges.append({"name": name, "judge": judge, "max_pairs": max_pairs})
    return judges


def _is_local(text: str) -> bool:
    is_path = text.startswith((".", "~", "/")) or Path(text).is_dir()
    return text in PACKAGED_MODELS or is_path or _HUB_ID.fullmatch(text) is not None


def _name(model: str, taken: Sequence[str]) -> str:
    last = model.rstrip("/").rpartition("/")[2].lower()
    stem = re.sub(r"[^a-z0-9_.-]+", "-", last).strip("-_.") or "judge"
    name, number = stem[:MAX_NAME].strip("-_."), 1
    while name in taken:
        number += 1
        end = f"-{number}"
        name = stem[: MAX_NAME - len(end)].strip("-_.") + end
    return name


def require_answers(config: RunConfig, settings: Settings) -> list[str]:
    """Notes on judges behind endpoints, each of which is asked for the names of its models.

    ConfigError where no server answers at an address, or a key is refused. No request goes to those
    of an earlier audit of the same pairs, whose votes are in the store, to those whose key is in a
    block, and to any where stages run on a cluster.
    """
    endpoints = {
        judge.name: endpoint
        for judge in config.ensemble.judges
        if (endpoint := judge.judge.endpoint) is not None and endpoint.key_block is None
    }
    if not endpoints or settings.dask is not None or _has_votes(config, settings):
        return []
    notes: dict[str, str] = {}
    mistakes = {
        name: f"{endpoint.base_url}: no answer in {SECONDS_IN_ALL:g} s"
        for name, endpoint in endpoints.items()
    }

    def look(name: str, endpoint: EndpointConfig) -> None:
        from trimtab.models.judge.budget import Budget
        from trimtab.models.judge.client import Endpoint, EndpointError

        try:
            listed = Endpoint(endpoint, Budget()).models(SECONDS_TO_ANSWER)
        except EndpointError as error:
            mistakes[name] = str(error)
        else:
            if listed and endpoint.model not in listed:
                shown = [*map(short, listed[:MOST_LISTED])]
                shown += ["..."] if len(listed) > MOST_LISTED else []
                notes[name] = (
                    f"{endpoint.base_url} does not list the model {endpoint.model!r}; it lists "
                    f"{', '.join(shown)}"
                )
            del mistakes[name]

    # One that looks up a host's name may hang: it is not waited for.
    threads = [threading.Thread(target=look, args=item, daemon=True) for item in endpoints.items()]
    until = time.monotonic() + SECONDS_IN_ALL
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    if mistakes:
        lines = dict.fromkeys(mistakes.copy().values())
        raise ConfigError("\n".join(f"{SETTING}: {line}" for line in lines))
    return [*notes.copy().values()]


def _has_votes(config: RunConfig, settings: Settings) -> bool:
    """Whether an earlier run that is reported had the same judges vote on the same pairs."""

    def deciding(values: Any) -> dict[str, Any]:
        return {
            path: value
            for path, value in values.items()
            if path in (SETTING, "seed") or path.startswith("preferences.")
        }

    ours = deciding(settings_of(config))
    runs = map(read_run, (settings.home / "reports").glob("*"))
    return any(deciding(run.get("settings", {})) == ours for run in runs)


def requests_in_words(config: RunConfig) -> Iterator[str]:
    """The number of requests to each judge, a line a judge."""
    if not config.ensemble.judges:
        return
    look = first_pairs(config)
    amount = amount_of(config, look) if look is not None and look.pairs else None
    for voter in config.ensemble.judges:
        endpoint = voter.judge.endpoint
        place = f"at {endpoint.base_url}" if endpoint else "in this process"
        judge = f"judge {voter.name} {place}"
        if amount is None:
            yield f"{judge}: how many pairs it will be asked about is not known beforehand"
            continue
        pairs = counts.num_taken(amount.pairs, voter.max_pairs)
        requests = pairs * counts.NUM_ORDERS * counts.answers_per_question(voter.judge)
        shown = round(amount.pair_tokens * pairs / max(amount.pairs, 1))
        total = tokens(asked_tokens(voter.judge, pairs, shown))
        limit = f"; {endpoint.limits_in_words}" if endpoint and endpoint.is_limited else ""
        yield (
            f"{judge}: {requests:,} requests, {pairs:,} pairs in both orders, at most about "
            f"{total} tokens{limit}"
        )
