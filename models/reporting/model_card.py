"""The README.md of an exported model or of exported pairs, as the Hugging Face Hub reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.models.config.base import last_part
from trimtab.models.reporting.export import ExportedScorer
from trimtab.models.reporting.kit.audit_words import agreement, changes_made, finding, reliability
from trimtab.models.reporting.kit.html import new_environment
from trimtab.models.reporting.kit.names import (
    EMBEDDING_MODELS,
    MEASURE_NAMES,
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
}
# Roles, by their beginning, that are made before labels are treated.
UNTREATED = ("sft", "member_", "cross_fitted_member_")
# Roles of voters beside embedding models; of those that the user has, by kind, the setting that
# names them and what they are called.
CROSS_FITTED = re.compile(r"cross_fitted_(\d+)")
EXTERNAL = re.compile(r"external_(votes|reward_model|judge)_(\d+)")
EXTERNAL_NAMES = {
    "votes": ("ensemble.scores", "votes of"),
    "reward_model": ("ensemble.reward_models", "reward model"),
    "judge": ("ensemble.judges", "judge"),
}
METADATA: dict[str, dict[str, Any]] = {
    "policy": {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["rlhf", "trimtab"],
    },
    "scorer": {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["rlhf", "reward-model", "trimtab"],
    },
    "pairs": {
        "task_categories": ["text-generation"],
        "tags": ["preference", "rlhf", "trimtab"],
    },
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
    base, licence = (None, None) if kind == "pairs" else _base(settings)
    known = {"license": licence, "base_model": base}
    metadata = {key: value for key, value in known.items() if value} | METADATA[kind]
    is_treated = not exported.role.startswith(UNTREATED) and kind != "pairs"
    environment = new_environment(paragraph=lambda text: " ".join(text.split()) + "\n")
    template = environment.overlay(autoescape=False).get_template("model_card.md.j2")
    return template.render(
        metadata={key: json.dumps(value) for key, value in metadata.items()},  # JSON is YAML
        name=f"{exported.run}-{exported.role}".replace("_", "-"),
        kind=kind,
        policy=policy_name(exported.role.removeprefix("policy_")),
        entry=exported.entry,
        scorer=exported.scorer,
        num_empty=exported.num_empty,
        figures=[(_cell(words), found) for words, found in _figures(exported)],
        audit=list(_audit(exported)),
        base=base,
        has_base=bool(settings.get("sft.model.base")),
        licence=licence,
        num_pairs=card.get("data", {}).get("num_pairs", 0),
        sources=settings.get("preferences.sources") or ["the synthetic world"],
        treatment=card.get("relabelling") if is_treated else None,
        command=exported.command,
    )


def _base(settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The base model's repository and licence, as far as they are known."""
    base = settings.get("sft.model.base")
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
    own, external = [], []
    for entry in exported.card["lineage"]:
        role = entry["role"]
        if role in EMBEDDING_MODELS:
            own.append(STRENGTH_NAMES[role])
        elif found := CROSS_FITTED.fullmatch(role):
            own.append(f"reward model {int(found[1]) + 1}")
        elif found := EXTERNAL.fullmatch(role):
            path, words = EXTERNAL_NAMES[found[1]]
            given = exported.settings[path][int(found[2])]
            name = given["name"] if isinstance(given, Mapping) else last_part(given)
            external.append(f"{words} {name}")
    were = "model that was" if len(own) == 1 else "models that were"
    said = f"{len(own)} {were} not trained on the pair voted on each ({', '.join(own)})"
    if external:
        said += (
            f", and {len(external)} that the user brought ({', '.join(external)}): what these "
            "learned from is not known"
        )
    return f"{said}."


def _figures(exported: Exported) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Words and estimate of everything that the scorecard has of it."""
    for name, found in exported.card.get("scorers", {}).items():
        if exported.role in (name, found["role"]):
            yield from (
                (words, found[figure]) for figure, words in FIGURES.items() if found[figure]
            )
            for category, own in found["categories"].items():
                if own.get("accuracy"):
                    yield f"Agreement with labels, {category}", own["accuracy"]
            return
    for policy in exported.card.get("policies", []):
        if exported.role == f"policy_{policy['name']}":
            for place, outcomes in policy["against_sft"].items():
                for measure, own in outcomes.items():
                    judge = MEASURE_NAMES.get(measure, measure)
                    where = SETS.get(place, place)
                    yield f"Wins minus losses against SFT, {where}, by {judge}", own["net"]


def _cell(words: str) -> str:
    """Words as a cell of a table: a category may be any text."""
    return " ".join(words.replace("|", "\\|").split())
