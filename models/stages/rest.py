"""Stage `rest`: the Improve steps of ReST, on the samples of its Grow step (`sample_responses`).

[REST] Gulcehre et al., Reinforced Self-Training (ReST) for Language Modeling, 2023,
arXiv 2308.08998, algorithm 1, with the log-likelihood as its loss, which did best in the paper.

Deviations:
1. A step passes its data a set number of times; the paper goes on while a held-out reward rises.
2. The learning rate falls over all Improve steps of a Grow step by one schedule, and the optimiser
   goes on from step to step.
3. But for what is rehearsed only sampled answers are learned. The paper adds its SFT data, which
   the policy has learned from already, and which would count as samples that no other arm has.
"""

from __future__ import annotations

import torch

from trimtab.models.config.policy import RestConfig
from trimtab.models.functional.rest import improvement_sets
from trimtab.models.nets.packing import encode
from trimtab.models.stages.sample_responses import read_samples
from trimtab.models.training.data import context_length
from trimtab.models.training.imitation import imitated_rows, imitation_loss, train_policy
from trimtab.models.training.stage import Stage


def run(config: RestConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `responses_0`; `rehearsal` where it has a coefficient.

    Output: model/.
    """
    model, tokenizer = stage.policy("policy")
    prompts, responses, values = read_samples(stage)
    scores = torch.tensor(values)
    sets = improvement_sets(scores, config.thresholds, config.threshold_kind)
    answers = [[response] for response in responses]
    rows = encode(tokenizer, prompts, answers, context_length(model.config))
    data = imitated_rows(rows, [indices.tolist() for indices in sets])
    summary = train_policy(config, stage, model, tokenizer, data, imitation_loss(model))
    for step, indices in enumerate(sets, start=1):
        summary[f"num_examples_{step}"] = len(indices)
        summary[f"score_kept_{step}"] = float(scores[indices].mean())
    stage.write_summary(summary)
