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
LOAD_POLICY = """from transformers import AutoModelForCausalLM, AutoTokenizer

policy = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")"""
LOAD_SCORER = """import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")

def score(**given):
    with torch.no_grad():
        return model(**given).logits[:, 0].tolist()  # {label}

# Prompt and response as one text.
print(score(**tokenizer([prompt + response], padding=True, return_tensors="pt")))
# Messages, the last of which is the assistant's.
messages = [{{"role": "user", "content": "..."}}, {{"role": "assistant", "content": "..."}}]
print(score(**tokenizer.apply_chat_template([messages], return_dict=True, return_tensors="pt")))"""
SCORE_TOKEN = {
    True: (
        "The score is read at the end token `{token}`, which the tokenizer puts behind every text, "
        "once. So pipelines, TRL's `reward_funcs` (text and messages), RewardBench and Trimtab's "
        "`--reward-model` give this score. A text that ends as a prompt does stays open: an empty "
        "response is written `{token}`, and a prompt and a response are a pair of texts "
        "(`text_pair`) only where the prompt ends as the chat template's prompts do, or in "
        "`Assistant:`. TRL gives text without it, and gets of an empty completion what the model "
        "says at the prompt's last token, which it was not trained for: give TRL messages, which "
        "the chat template always ends."
    ),
    False: (
        "The score is read at the end token `{token}`, which the tokenizer puts behind a text or a "
        "pair of texts where special tokens are asked for, as is the default, and the chat "
        "template behind messages: a text that has it already would have it twice. TRL's "
        "`reward_funcs` asks for no special tokens: give it messages, not text."
    ),
}
LOAD_PAIRS = """from datasets import load_dataset

pairs = load_dataset("{name}")"""


@dataclass(frozen=True)
class Kind:
    """load: code that loads such files. metadata: what the Hub is told of them. limits: what they
    are not for."""

    load: str
    metadata: Mapping[str, Any]
    limits: str


KINDS = {
    "policy": Kind(
        LOAD_POLICY,
        {
            "library_name": "transformers",
            "pipeline_tag": "text-generation",
            "tags": ["rlhf", "trimtab"],
        },
        "It answers like its base model and its training data, right or wrong. It was judged by "
        "reward models on prompts like those of its training only.",
    ),
    "scorer": Kind(
        LOAD_SCORER,
        {
            "library_name": "transformers",
            "pipeline_tag": "text-classification",
            "tags": ["rlhf", "reward-model", "trimtab"],
        },
        "It ranks responses to one prompt, of the kind that it was trained on; scores of different "
        "prompts, or of other kinds of prompts, need not be comparable. A policy that is trained "
        "against it finds its mistakes: keep a KL penalty, and judge by other models.",
    ),
    "pairs": Kind(
        LOAD_PAIRS,
        {"task_categories": ["text-generation"], "tags": ["preference", "rlhf", "trimtab"]},
        "Flips follow what the models that voted believe, and some of them are wrong. Pairs of "
        "validation and test are as they were given.",
    ),
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
        """Which of KINDS it is."""
        return SPECS[self.entry["stage"]].makes or "policy"


def model_card(exported: Exported) -> str:
    """The README.md: metadata, what it is, use, figures with intervals, how it was made, limits."""
    name = f"{exported.run}-{exported.role}".replace("_", "-")
    kind, scorer = KINDS[exported.kind], exported.scorer
    code = kind.load.format(name="FOLDER", label=scorer.labels[0] if scorer else "")
    parts = [
        _metadata(exported),
        f"# {name}",
        _about(exported),
        f"## Use\n\n```python\n{code}\n```",
        *([_score_token(scorer)] if scorer else []),
        *_figures(exported),
        *_audit(exported),
        f"## How it was made\n\n{_origin(exported)}"
        + (f"\n\n```bash\n{exported.command}\n```" if exported.command else ""),
        f"## Limits\n\n{kind.limits}",
        _lineage(exported.entry),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(exported: Exported) -> str:
    base, licence = (None, None) if exported.kind == "pairs" else _base(exported.settings)
    known = {"license": licence, "base_model": base}
    values = {key: value for key, value in known.items() if value}
    values |= KINDS[exported.kind].metadata
    lines = [f"{key}: {json.dumps(value)}" for key, value in values.items()]  # JSON is YAML
    return "\n".join(["---", *lines, "---"])


def _about(exported: Exported) -> str:
    """What it is, in sentences."""
    if exported.kind == "pairs":
        return _describe_pairs(exported.num_empty)
    if exported.kind == "policy":
        text = f"A language model: {policy_name(exported.role.removeprefix('policy_'))}."
        if exported.entry["stage"] == "hir":
            text += (
                " It expects the best of `hir`'s instructions behind the prompt, as in training."
            )
        return text
    scorer = exported.scorer
    text = "A reward model: a higher score means a better response to the prompt."
    if scorer and scorer.had_expected:
        text = (
            "An Advantage Model, used as a reward model. Its one score is r(x, y): e(x), which is "
            "the same for all responses to a prompt, is left out, so that scores of different "
            "prompts are not comparable as they are in Trimtab."
        )
    if scorer and len(scorer.labels) > 1:
        text += (
            f" Its columns are {', '.join(scorer.labels)}. Take the reward of the prompt's "
            "category; in the columns of the gate, read at the prompt's last token, it is the "
            "largest."
        )
    return text


def _describe_pairs(num_empty: int) -> str:
    text = (
        "Preference pairs with training labels treated by Trimtab, as a vote of models or a "
        "person's review has it: `is_flipped` says which are turned round, `probability` is "
        "that of `chosen` being better (TRL does not read it; 0.5 is a tie). TRL's "
        "RewardTrainer reads `margin`. What came as messages is messages, to which TRL applies "
        "the chat template of the model that it trains; what came as text is text. Of pairs "
        "of both forms all are messages."
    )
    return text + (f" {num_empty:,} pairs with an empty answer are left out." if num_empty else "")


def _score_token(scorer: ExportedScorer) -> str:
    read_at = scorer.score_token
    return SCORE_TOKEN[read_at["is_always_appended"]].format(token=read_at["score_token"])


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


def _origin(exported: Exported) -> str:
    base, licence = _base(exported.settings)
    data = exported.card.get("data", {})
    known = exported.settings.get("sft.model.base")
    said = f"Base model: {base or ('a folder' if known else 'none, trained from scratch')}"
    if exported.kind == "pairs":
        said = "The licence is that of the pairs it was made from"
    elif base and licence:
        said += f" ({licence})"
    elif known:
        said += ", whose licence holds for this model too"
    sources = exported.settings.get("preferences.sources") or ["the synthetic world"]
    used = f"{data.get('num_pairs', 0):,} preference pairs of {', '.join(map(str, sources))}"
    is_treated = not exported.role.startswith(UNTREATED) and exported.kind != "pairs"
    treated = _treatment(exported.card) if is_treated else ""
    return f"{said}. Data: {used}{treated}."


def _treatment(card: Mapping[str, Any]) -> str:
    found = card.get("relabelling")
    if not found:
        return ""
    share = f"{100 * found['share_smoothed']:.1f} %"
    return (
        f"; of {found['num_pairs']:,} training labels {found['num_flipped']:,} were flipped where "
        f"the ensemble contradicts them, {share} smoothed"
    )


def _audit(exported: Exported) -> Iterator[str]:
    """Of pairs: who judged the labels, what was found, how sure that is, and what was changed."""
    audit = exported.card.get("audit")
    if exported.kind != "pairs" or not audit:
        return
    found = [f"{_voters(exported)} {finding(audit)}"]
    if exported.card.get("vote_used") == "calibrated" and not audit.get("is_uninformative"):
        found += reliability(audit)
    else:
        found.append("There was no self-test: how many of these are wrong is not known.")
    found += agreement(audit)
    done = " ".join(changes_made(audit)) or "No label was changed."
    found.append(
        f"{done} A person's verdict comes before the vote; pairs that are left out are not in "
        "these files."
    )
    yield "## What was found and changed\n\n" + "\n\n".join(found)


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


def _figures(exported: Exported) -> Iterator[str]:
    rows = list(_rows(exported))
    if rows:
        head = ["| | value | 95 % interval | cases |", "|---|---|---|---|"]
        yield "## Figures\n\n" + "\n".join([*head, *rows])


def _rows(exported: Exported) -> Iterator[str]:
    for name, found in exported.card.get("scorers", {}).items():
        if exported.role in (name, found["role"]):
            yield from (
                _row(words, found[figure]) for figure, words in FIGURES.items() if found[figure]
            )
            for category, own in found["categories"].items():
                if own.get("accuracy"):
                    yield _row(f"Agreement with labels, {category}", own["accuracy"])
            return
    for policy in exported.card.get("policies", []):
        if exported.role == f"policy_{policy['name']}":
            for place, outcomes in policy["against_sft"].items():
                for measure, own in outcomes.items():
                    judge = MEASURE_NAMES.get(measure, measure)
                    where = SETS.get(place, place)
                    yield _row(f"Wins minus losses against SFT, {where}, by {judge}", own["net"])


def _row(words: str, value: Mapping[str, Any]) -> str:
    low, high = value["low"], value["high"]
    words = " ".join(words.replace("|", "\\|").split())  # a category may be any text
    return f"| {words} | {value['value']:.3f} | [{low:.3f}, {high:.3f}] | {value['count']:,} |"


def _lineage(entry: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {value[:16]}" for name, value in entry["versions"].items())
    parents = "\n".join(
        f"- {name}: `{parent['stage']}`, sha256 `{parent['digest']}`"
        for name, parent in entry["parents"].items()
    )
    return (
        f"## Lineage\n\nStage `{entry['stage']}`, sha256 of its files `{entry['digest']}`. "
        f"Versions: {versions}. Made from:\n\n{parents or '- nothing'}"
    )
