"""The README.md of an exported model or of exported pairs, as the Hugging Face Hub reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.models.config.base import last_part
from trimtab.models.config.external_reward import RewardMemberConfig
from trimtab.models.reporting.export import ExportedScorer
from trimtab.models.reporting.kit.audit_words import agreement, changes_made, finding, reliability
from trimtab.models.reporting.kit.html import new_environment
from trimtab.models.reporting.kit.names import (
    EMBEDDING_MODELS,
    MEASURE_NAMES,
    PROBE_NAMES,
    SETS,
    STRENGTH_NAMES,
    policy_name,
)
from trimtab.models.specs import SPECS

# Packaged base models: repository on the Hub, licence.
ORIGINS = {"smollm2-135m-instruct": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}
# Figures of a scorer, in order.
FIGURES = {
    "label_accuracy": "Agreement with the labels of the test pairs",
    "clean_accuracy": "Accuracy on right labels",
    "label_ece_width": "Calibration error, the labels of the test pairs, equal width",
    "votes_ece_mass": "Calibration error, people's votes, equal mass",
    "longer_preferred": "Prefers the longer of two answers",
}
# Roles, by their beginning, that are made before labels are treated.
UNTREATED = ("sft", "member_", "cross_fitted_member_")
# Roles of voters beside embedding models; of those that the user has, by kind, the setting that
# names them and what one of its values is called.
CROSS_FITTED = re.compile(r"cross_fitted_(\d+)")
EXTERNAL = re.compile(r"external_(votes|reward_votes|judge)_(\d+)")
EXTERNAL_NAMES: dict[str, tuple[str, Callable[[Any], str]]] = {
    "votes": ("ensemble.scores", lambda path: f"votes of {last_part(path)}"),
    "reward_votes": (
        "ensemble.rewards",
        lambda reward: RewardMemberConfig.model_validate(reward).short_label,
    ),
    "judge": ("ensemble.judges", lambda judge: f"judge {judge['name']}"),
}
MODEL = {"library_name": "transformers"}
METADATA: dict[str, dict[str, Any]] = {
    "policy": MODEL | {"pipeline_tag": "text-generation", "tags": ["rlhf", "trimtab"]},
    "scorer": MODEL
    | {"pipeline_tag": "text-classification", "tags": ["rlhf", "reward-model", "trimtab"]},
    "pairs": {"task_categories": ["text-generation"], "tags": ["preference", "rlhf", "trimtab"]},
}


@dataclass(frozen=True)
class Exported:
    """What a card is about.

    run: its name. command: that makes it again. settings: by path. card: the run's scorecard.
    entry: the artifact's lineage, whose role and stage say what it is. num_empty: of pairs, how
    many with an empty answer were left out. scorer: what its export says of it.
    """

    run: str
    command: str
    settings: Mapping[str, Any]
    card: Mapping[str, Any]
    entry: Mapping[str, Any]
    num_empty: int = 0
    scorer: ExportedScorer | None = None

    @property
    def role(self) -> str:
        """Its role in the run."""
        return str(self.entry["role"])

    @property
    def kind(self) -> str:
        """A key of METADATA."""
        return SPECS[self.entry["stage"]].makes or "policy"


def model_card(exported: Exported) -> str:
    """The README.md: metadata, what it is, use, figures with intervals, how it was made, limits."""
    kind, card, settings = exported.kind, exported.card, exported.settings
    has_other = kind == "scorer" and "scorer_base.model.base" in settings
    start = settings.get("scorer_base.model.base" if has_other else "sft.model.base")
    base, licence = (None, None) if kind == "pairs" else _origin(start)
    known = {"license": licence, "base_model": base}
    metadata = {key: value for key, value in known.items() if value} | METADATA[kind]
    is_treated = not exported.role.startswith(UNTREATED) and kind != "pairs"
    environment = new_environment(paragraph=lambda text: " ".join(text.split()) + "\n")
    template = environment.overlay(autoescape=False).get_template("model_card.md.j2")
    return template.render(
        metadata={key: json.dumps(value) for key, value in metadata.items()},  # JSON is YAML
        name=f"{exported.run}-{exported.role}".replace("_", "-"),
        kind=kind,
        policy=policy_name(
            exported.role.removeprefix("policy_"), settings.get("dpo.loss", "sigmoid")
        ),
        entry=exported.entry,
        scorer=exported.scorer,
        num_empty=exported.num_empty,
        figures=[(_cell(words), estimate) for words, estimate in _figures(exported)],
        probes=[
            (PROBE_NAMES[name], probe)
            for name, probe in _scorer(exported).get("probes", {}).items()
        ],
        audit=list(_audit(exported)),
        base=base,
        has_base=bool(start),
        licence=licence,
        num_pairs=card.get("data", {}).get("num_pairs", 0),
        sources=settings.get("preferences.sources") or ["the synthetic world"],
        treatment=card.get("relabelling") if is_treated else None,
        command=exported.command,
    )


def _origin(base: object) -> tuple[str | None, str | None]:
    """A base model's repository and licence, as far as they are known."""
    if not isinstance(base, str):
        return None, None
    if base in ORIGINS:
        return ORIGINS[base]
    is_hub_id = base.count("/") == 1 and not base.startswith((".", "~", "/"))
    is_hub_id = is_hub_id and not Path(base).exists()
    return (base, None) if is_hub_id else (None, None)


def _audit(exported: Exported) -> Iterator[str]:
    """Of pairs: who judged the labels, what was found, how sure that is, and what was changed."""
    audit = exported.card.get("audit")
    if exported.kind != "pairs" or not audit:
        return
    yield f"{_voters(exported)} {finding(audit)}"
    if exported.card.get("vote_used") == "calibrated" and not audit.get("is_uninformative"):
        yield from reliability(audit)
    else:
        yield "There was no self-test: how many of these are wrong is not known."
    yield from agreement(audit)
    done = " ".join(changes_made(audit)) or "No label was changed."
    yield (
        f"{done} A person's verdict comes before the vote; pairs that are left out are not in "
        "these files."
    )


def _voters(exported: Exported) -> str:
    """Who voted on the labels, and whether they had learned from them."""
    vote = exported.card.get("vote_used")
    if vote != "calibrated":
        number = exported.card.get("label_noise", {}).get(vote, {}).get("num_members")
        return f"{number or 'Several'} reward models voted on each pair."
    voters, external = [], []
    for entry in exported.card["lineage"]:
        role = entry["role"]
        if role in EMBEDDING_MODELS:
            voters.append(STRENGTH_NAMES[role])
        elif match := CROSS_FITTED.fullmatch(role):
            voters.append(f"reward model {int(match[1]) + 1}")
        elif match := EXTERNAL.fullmatch(role):
            path, name_of = EXTERNAL_NAMES[match[1]]
            external.append(name_of(exported.settings[path][int(match[2])]))
    were = "model that was" if len(voters) == 1 else "models that were"
    words = f"{len(voters)} {were} not trained on the pair voted on each ({', '.join(voters)})"
    if external:
        words += (
            f", and {len(external)} that the user brought ({', '.join(external)}): what these "
            "learned from is not known"
        )
    return f"{words}."


def _figures(exported: Exported) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Words and estimate of everything that the scorecard has of it."""
    if scorer := _scorer(exported):
        measures = {words: scorer.get(figure) for figure, words in FIGURES.items()}
        for category, scores in scorer["categories"].items():
            measures[f"Agreement with labels, {category}"] = scores.get("accuracy")
        yield from ((words, share) for words, share in measures.items() if share)
        return
    for policy in exported.card.get("policies", []):
        for place, outcomes in policy["against_sft"].items():
            for measure, outcome in outcomes.items():
                if exported.role == f"policy_{policy['name']}":
                    judge, name = MEASURE_NAMES.get(measure, measure), SETS.get(place, place)
                    yield f"Wins minus losses against SFT, {name}, by {judge}", outcome["net"]


def _scorer(exported: Exported) -> Mapping[str, Any]:
    """What the scorecard says of a scorer; empty where it does not."""
    of_run = exported.card.get("scorers", {}).items()
    exports = (scorer for name, scorer in of_run if exported.role in (name, scorer["role"]))
    return next(exports, {})


def _cell(words: str) -> str:
    """Words as a cell of a table: a category may be any text."""
    return " ".join(words.replace("|", "\\|").split())
