"""Stage `constitutional_sft`: a policy learns revised answers, beside helpful demonstrations.

[CAI] Bai et al., Constitutional AI: Harmlessness from AI Feedback, arXiv 2212.08073, section 3.2.

Deviations
1. The paper starts from the pretrained model; here the SFT policy goes on, so that a few hundred
   revisions are enough.
2. The paper's helpful answers are samples of its helpful policy; here they are demonstrations.
"""

from __future__ import annotations

import random

from trimtab.models.config.policy import ConstitutionalSFTConfig
from trimtab.models.nets import counts
from trimtab.models.training.data import context_length, encode_demonstrations
from trimtab.models.training.imitation import imitate
from trimtab.models.training.stage import Row, Stage


def run(config: ConstitutionalSFTConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `revisions`, `data` (demonstrations.jsonl). Output: model/."""
    assert config.train is not None, "the flow puts sft.train in its place"
    model, tokenizer = stage.policy("policy")
    revised = stage.rows("revisions", "demonstrations.jsonl")
    helpful = helpful_beside(config, revised, stage.rows("data", "demonstrations.jsonl"))
    rows = revised + helpful
    examples = encode_demonstrations(rows, tokenizer, context_length(model.config))
    summary = imitate(stage, model, tokenizer, examples, config.train, config.seed)
    stage.write_summary({**summary, "num_revisions": len(revised), "num_helpful": len(helpful)})


def helpful_beside(
    config: ConstitutionalSFTConfig, revised: list[Row], demonstrations: list[Row]
) -> list[Row]:
    """Demonstrations to mix in, drawn at random: of prompts and categories that were not revised.

    Where all categories were, or there are none, prompts alone tell them apart.
    """
    prompts = {row["prompt"] for row in revised}
    categories = {row["category"] for row in revised}
    others = [row for row in demonstrations if row["prompt"] not in prompts]
    helpful = [row for row in others if row.get("category") not in categories] or others
    count = counts.num_helpful(config, len(revised), len(helpful))
    return random.Random(f"constitutional_sft/{config.seed}").sample(helpful, count)
