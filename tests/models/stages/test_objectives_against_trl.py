"""Advantages, losses and gradients of RLOO and GRPO are TRL's, on responses that TRL sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.policy import GRPO, RLOO, ObjectiveConfig, PPOConfig
from trimtab.models.data.records import read_rows
from trimtab.models.functional.group import STD_EPS, group_advantages, overlong_penalties
from trimtab.models.functional.ppo import token_rewards
from trimtab.models.nets.loading import load_policy, load_tokenizer
from trimtab.models.nets.packing import Candidates, pack
from trimtab.models.nets.scoring import response_logprobs
from trimtab.models.stages.ppo_max.update import _policy_loss

K, PROMPTS, LONGEST = 4, 3, 12
BETA, CLIP, UPPER_CLIP, TEMPERATURE = 0.3, 0.05, 0.08, 0.8
DAPO = GRPO.model_copy(update={"upper_clip": UPPER_CLIP, "loss_mean": "token"})
CORRECTED = GRPO.model_copy(update={"kl_bias_correction": True})
PLAIN = {"use_bias_correction_kl": False}  # TRL corrects unless it is told not to
DR_GRPO = GRPO.model_copy(update={"divide_by_std": False, "loss_mean": "constant"})


def _reward(completions: list[str], **_: Any) -> list[float]:
    """Any that tells responses apart."""
    return [len(set(text)) / 4 + len(text) / 9 for text in completions]


def _trainer(kind: str, folder: Path, output: Path, rows: list[dict[str, str]], **how: Any) -> Any:
    import trl  # takes seconds to load: not where tests are collected
    from datasets import Dataset

    config = getattr(trl, f"{kind}Config")(
        output_dir=str(output),
        per_device_train_batch_size=K * PROMPTS,
        num_generations=K,
        num_iterations=2,  # so that it notes the old log-probabilities
        max_completion_length=LONGEST,
        beta=BETA,
        epsilon=CLIP,
        temperature=TEMPERATURE,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        report_to="none",
        **how,
    )
    return getattr(trl, f"{kind}Trainer")(
        str(folder / "model"),
        reward_funcs=_reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(folder / "model"),
    )


def _sampled(trainer: Any, rows: list[dict[str, str]]) -> dict[str, Tensor]:
    """What TRL samples and notes, its model moved a little since."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    torch.manual_seed(0)
    batch: dict[str, Tensor] = trainer._generate_and_score_completions(
        [row for row in rows for _ in range(K)]
    )
    with torch.no_grad():
        for value in trainer.model.parameters():
            value += 0.1 * value.std() * torch.randn_like(value)
    return batch


def _ids(ids: Tensor, mask: Tensor) -> list[int]:
    found: list[int] = ids[mask.bool()].tolist()
    return found


def _candidates(batch: dict[str, Tensor]) -> list[Candidates]:
    """The prompts, each with its K responses."""
    prompts = list(map(_ids, batch["prompt_ids"], batch["prompt_mask"]))
    responses = list(map(_ids, batch["completion_ids"], batch["completion_mask"]))
    starts = range(0, len(responses), K)
    return [Candidates(prompts[at], tuple(responses[at : at + K])) for at in starts]


def _ours(model: PreTrainedModel, folder: Path, rows: list[Candidates], config: PPOConfig) -> Any:
    """Our advantages (B,), loss and metrics on the same responses, whose rewards are read again."""
    objective, packed = config.objective, pack(rows)
    start = load_policy(folder).eval()  # which has sampled, and is the reference
    with torch.no_grad():
        old, _, mask = response_logprobs(start, packed, config.temperature)
    responses, tokenizer = [ids for row in rows for ids in row.responses], load_tokenizer(folder)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
    coef = BETA if objective.kl_in == "reward" else 0.0
    rewards = token_rewards(torch.tensor(_reward(texts)), old, old, mask, coef)
    advantages = group_advantages(rewards.sum(1), K, objective.baseline, objective.divide_by_std)
    spread = torch.where(mask, advantages.unsqueeze(1), 0.0)
    values = (old, spread, old, torch.full((len(texts),), BETA), old)
    loss, metrics = _policy_loss(model, config)(packed, (values, torch.arange(len(texts))))
    return advantages, loss, metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "objective", "how"),
    [
        ("RLOO", RLOO, {}),
        ("GRPO", GRPO, {"loss_type": "grpo", **PLAIN}),
        ("GRPO", CORRECTED, {"loss_type": "grpo"}),
        ("GRPO", DAPO, {"loss_type": "bnpo", "epsilon_high": UPPER_CLIP, **PLAIN}),
        ("GRPO", DAPO, {"loss_type": "dapo", "epsilon_high": UPPER_CLIP, **PLAIN}),
        ("GRPO", DR_GRPO, {"loss_type": "dr_grpo", "scale_rewards": "none", **PLAIN}),
    ],
)
def test_advantages_losses_and_gradients_are_trls(
    tmp_path: Path,
    world: Path,
    policy: Path,
    kind: str,
    objective: ObjectiveConfig,
    how: dict[str, Any],
) -> None:
    prompts = [{"prompt": row["prompt"]} for row in read_rows(world / "policy_prompts.jsonl")]
    prompts = prompts[:PROMPTS]
    trainer = _trainer(kind, policy, tmp_path, prompts, **how)
    batch = _sampled(trainer, prompts)
    theirs = trainer._compute_loss(trainer.model, batch)
    theirs.backward()
    gradients = {n: value.grad.clone() for n, value in trainer.model.named_parameters()}
    trainer.model.zero_grad()

    rows = _candidates(batch)
    config = PPOConfig(
        objective=objective,
        critic_pretrain_steps=0,
        rollout_batch=K * PROMPTS,
        train_batch=K * PROMPTS,
        policy_clip=CLIP,
        temperature=TEMPERATURE,
        max_new_tokens=LONGEST,
        kl_coef=BETA,
    )
    advantages, loss, metrics = _ours(trainer.model, policy / "model", rows, config)
    loss.backward()
    torch.testing.assert_close(advantages, batch["advantages"], rtol=1e-5, atol=1e-5)
    assert loss.item() == pytest.approx(theirs.item(), abs=1e-5)
    for name, value in trainer.model.named_parameters():
        torch.testing.assert_close(value.grad, gradients[name], rtol=1e-4, atol=1e-5, msg=name)
    # The case is one in which ratios, clips and the KL matter.
    assert 0 < float(metrics["clip_fraction"]) < 1
    assert float(advantages.abs().max()) > 0.1 and STD_EPS == 1e-4


def test_overlong_penalties_are_trls() -> None:
    from trl.rewards import get_soft_overlong_punishment

    lengths = torch.arange(1, 21)
    theirs = get_soft_overlong_punishment(20, 6)([[0] * int(n) for n in lengths])
    ours = -overlong_penalties(lengths, 20, 6)
    torch.testing.assert_close(ours, torch.tensor(theirs))
