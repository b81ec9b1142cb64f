"""Stage `hir`: answers are learned behind the instruction that they turned out to satisfy.

[HIR] Zhang et al., The Wisdom of Hindsight Makes Language Models Better Instruction Followers,
2023, arXiv 2302.05206, algorithm 1: its offline phase, on the samples of all online ones so far.

Deviations (those of the formulas are in `trimtab.models.functional.hir`):
1. An instruction stands behind the prompt, right before the answer: so a prompt that is too long
   loses its beginning and never the instruction, and an answer behind every instruction is one
   packed row with one prompt.
2. The first samples are of the policy without instruction: it has not learned any.
3. What is rehearsed, SFT's best answers, stands behind the last instruction: there the policy is
   asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from trimtab.models.config.policy import HIRConfig
from trimtab.models.functional.hir import hir_loss, satisfied_instruction
from trimtab.models.nets.device import current_device
from trimtab.models.nets.packing import Candidates, PackedBatch, encode, token_ids
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.sample_responses import read_samples
from trimtab.models.training.data import context_length
from trimtab.models.training.imitation import train_policy
from trimtab.models.training.learner import LossFunction, Metrics, TrainingRows
from trimtab.models.training.stage import Stage


def run(config: HIRConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `responses_0` and maybe more;
    `rehearsal` where it has a coefficient.

    Output: model/.
    """
    model, tokenizer = stage.policy("policy")
    prompts, responses, scores = read_samples(stage)
    instructions = instruction_ids(tokenizer, config.instructions)
    limit = context_length(model.config)
    rows = with_instructions(tokenizer, prompts, responses, instructions, limit)
    satisfied = satisfied_instruction(torch.tensor(scores), len(instructions))
    data = TrainingRows(rows, torch.ones(len(rows)), arguments=lambda indices: satisfied[indices])
    loss_function = _relabelled_loss(model, config, list(map(len, instructions)))
    behind = instructions[-1]
    summary = train_policy(config, stage, model, tokenizer, data, loss_function, behind)
    for number in range(len(instructions)):
        summary[f"num_examples_{number}"] = int((satisfied == number).sum())
    stage.write_summary(summary)


def instruction_ids(
    tokenizer: PreTrainedTokenizerBase, instructions: Sequence[str]
) -> list[list[int]]:
    """Token ids of the instructions; ValueError where the tokenizer cannot tell them apart."""
    encoded = token_ids(tokenizer, instructions)
    if len(set(map(tuple, encoded))) < len(encoded):
        raise ValueError(
            f"instructions {list(instructions)} are not all different to the tokenizer, which "
            f"makes {encoded} of them: use words that it knows"
        )
    return encoded


def with_instructions(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    responses: Sequence[str],
    instructions: Sequence[list[int]],
    max_length: int,
) -> list[Candidates]:
    """Each response after each of K instructions: a row is a prompt with K such responses."""
    room = max_length - max(map(len, instructions))
    rows = encode(tokenizer, prompts, [[response] for response in responses], room)
    return [
        Candidates(row.prompt, tuple(behind + row.responses[0] for behind in instructions))
        for row in rows
    ]


def _relabelled_loss(
    model: PreTrainedModel, config: HIRConfig, lengths: Sequence[int]
) -> LossFunction:
    """HIR's loss for `fit`, of rows with the instruction that each satisfies (b,).

    lengths: tokens of each instruction, which are not learned.
    """
    first = torch.tensor(lengths, device=current_device())

    def loss_function(batch: PackedBatch, satisfied: Tensor) -> tuple[Tensor, Metrics]:
        logprobs, entropies, mask = response_logprobs(model, batch)
        shape = (len(satisfied), len(lengths), -1)
        is_answer = torch.arange(mask.shape[1], device=mask.device) >= first[:, None]
        return hir_loss(
            logprobs.view(shape),
            entropies.view(shape),
            mask.view(shape) & is_answer,
            satisfied,
            contrastive_coef=config.contrastive_coef,
            entropy_coef=config.entropy_coef,
        )

    return loss_function
