"""Stage `ppo_max`: PPO-max with selective rehearsal [PPO section 5.4, AM eq. 9].

Implementation details that matter:
1. The ratio, the KL penalty and the reference all use softmax(logits / temperature), the sampler's
   distribution before nucleus and repetition penalty; old log-probabilities are those noted while
   sampling, so the first ratio of every batch is 1 but for float32's rounding. Where layers
   multiply in bfloat16, or vLLM samples, they are taken again, as the update takes them.
2. Scores are normalised by running moments over history, then clipped to +-delta. Those of several
   scorers become one before (trimtab.models.functional.combination).
3. The critic is trained alone for `critic_pretrain_steps` before the policy moves. An objective
   without a critic loads none, and all steps are the policy's.
4. PPO-ptx [PPO eq. 17] has the demonstrations in place of a pre-training corpus, as the published
   code may, and its likelihood is of responses.
5. Rollouts with their scores are kept as text, so that evaluation can judge them afterwards;
   nothing here knows the gold scorer, unless it is what `scoring.judge` names.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from trimtab.models.config.policy import PPOConfig
from trimtab.models.functional.ppo import RunningMoments, steered_kl_coef
from trimtab.models.nets import counts
from trimtab.models.nets.device import move_to_device
from trimtab.models.nets.freezing import num_frozen_layers
from trimtab.models.nets.loading import load_critic, load_policy, load_tokenizer, new_scorer
from trimtab.models.nets.lora import merge_adapters, share_frozen
from trimtab.models.nets.packing import Candidates
from trimtab.models.nets.trunk import tie_trunk
from trimtab.models.stages.ppo_max.guard import collapse_reason, first_reason, has_collapsed
from trimtab.models.stages.ppo_max.risk import RehearsalRisk
from trimtab.models.stages.ppo_max.rollout import Experience, RolloutModels, collect
from trimtab.models.stages.ppo_max.scorers import Scorers
from trimtab.models.stages.ppo_max.update import ActorCritic
from trimtab.models.training import distributed
from trimtab.models.training.batching import endless_batches
from trimtab.models.training.checkpoint import (
    checkpoint_or_stop,
    newest_checkpoint,
    oldest_checkpoint,
)
from trimtab.models.training.data import context_length, encode_dialogues, read_prompts
from trimtab.models.training.learner import model_handle
from trimtab.models.training.nll_term import NLLTerm
from trimtab.models.training.progress import Progress, append_rows, read_metrics, tail_means
from trimtab.models.training.scoring import with_trunk
from trimtab.models.training.stage import Stage
from trimtab.models.training.vllm_sampler import vllm_sampler

FOLDERS = {"policy": "model", "critic": "critic"}  # of the output


def run(config: PPOConfig, stage: Stage) -> None:
    """Inputs: `policy` (start), `reference`, `scorer`, `data`; optionally `rehearsal`.

    An ensemble of scorers is `scorer_0`, `scorer_1` and so on; the critic can start as the first.
    A reward from outside is `scorer`, alone.
    Without any, the configuration's judge rates the responses [RLAIF section 2.2.2].
    With a `safety_scorer`, a reward model, these scorers stand for helpfulness. The collapse guard
    compares with `held_out_scorer`, of which there may be several.

    Output: model/ (the policy), critic/ if there is one, metrics.jsonl, rollouts.jsonl; where
    weights follow risk, risk.jsonl: by cluster, at each measurement.
    """
    with vllm_sampler(config, stage.workdir):
        PPORun(config, stage).train()


class PPORun:
    """The state of one run: its models, two optimisers, moments, generator, step."""

    def __init__(self, config: PPOConfig, stage: Stage) -> None:
        if not config.objective.has_critic:  # then any scorer will do
            config = config.model_copy(update={"critic_init": "policy"})
        self.config, self.stage = config, stage
        if config.kl_weights == "risk" and "rehearsal" not in stage.inputs:
            raise ValueError(
                "kl_weights must be uniform without the input rehearsal, found risk: it holds the "
                "answers on which risk is measured"
            )
        inputs, start = stage.inputs, stage.inputs["policy"] / "model"
        self.tokenizer = load_tokenizer(start)
        # With sharding, each model is sharded before the next is loaded.
        self.reference = model_handle(
            load_policy(inputs["reference"] / "model", is_frozen=True).eval(), config.zero
        )
        self.scorers = Scorers.load(config, stage)
        self.policy = load_policy(start).eval()
        self.depth = 0
        load_critic = self._critic_loader()
        self.prompts = read_prompts(inputs["data"], config.prompts)
        self.counts = counts.ppo_counts(config, len(self.prompts))
        self.moments = RunningMoments()
        self.generator = torch.Generator().manual_seed(config.seed)
        self.kl_coef = config.kl_coef
        self.step = 0
        nll_terms, self.risk = self._nll_terms()
        state = newest_checkpoint(stage.workdir)
        if state is not None:
            self.moments.load_state_dict(state["moments"])
            self.generator.set_state(state["generator"])
            self.step, self.kl_coef = state["step"], state["kl_coef"]
            if self.scorers.external is not None:
                self.scorers.external.load_state_dict(state["reward"])
        saved = None if state is None else state["learner"]
        self.learner = ActorCritic(config, self.policy, load_critic, nll_terms, saved)
        if state is not None and self.risk is not None:
            self.risk.load_state_dict(state["risk"])
            self.learner.rehearse(self.risk.kept)
        if not self.is_sharded:
            for trained in self.learner.models.values():
                for other in (self.reference.model, *(one.model for one in self.scorers.models)):
                    share_frozen(trained, other)

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are sharded over ranks."""
        return self.config.zero is not None and self.config.zero.stage == 3

    def _critic_loader(self) -> Callable[[], PreTrainedModel] | None:
        """What loads the critic, if the objective has one. Where lower layers are frozen it is
        loaded at once, and all models share them."""
        load_critic = self._load_critic if self.config.objective.has_critic else None
        if self.is_sharded or not num_frozen_layers(self.policy, self.config.trainable_layers):
            return load_critic
        critic = None if load_critic is None else load_critic()
        self.depth = self._share_lower_layers(critic)
        return None if critic is None else lambda: critic

    def _load_critic(self) -> PreTrainedModel:
        if self.config.critic_init == "scorer":
            return load_critic(self.stage.several("scorer")[0] / "model").eval()
        return new_scorer(self.stage.inputs["policy"] / "model", self.config.seed).eval()

    @property
    def critic(self) -> PreTrainedModel:
        """The critic; KeyError where the objective has none."""
        return self.learner.models["critic"]

    def _share_lower_layers(self, critic: PreTrainedModel | None) -> int:
        """Let all models share the lower layers that are frozen in each; returns their number.

        Shared layers run once a response. Sharded models cannot share layers, nor can a scorer that
        reads texts.
        """
        depth = num_frozen_layers(self.policy, self.config.trainable_layers)
        scorers = [scorer.model for scorer in self.scorers.models if scorer.tokenizer is None]
        for other in (self.reference.model, *scorers, *([critic] if critic is not None else [])):
            depth = tie_trunk(self.policy, other, depth)
        return depth

    def _dialogues(self, folder: str, file: str) -> list[Candidates]:
        path, limit = self.stage.inputs[folder] / file, context_length(self.policy.config)
        return encode_dialogues(path, self.tokenizer, limit)

    def _nll_terms(self) -> tuple[list[NLLTerm], RehearsalRisk | None]:
        """The rehearsal and PPO-ptx terms that are added to the policy's loss, and the measurement
        of risk, if any weights follow it."""
        config, nll_terms, risk = self.config, [], None
        has_rehearsal = "rehearsal" in self.stage.inputs
        drawn = counts.nll_batch_sizes(config, has_rehearsal)
        is_measured = counts.risk_passes(config, self.counts, has_rehearsal) > 0
        if "rehearsal" in drawn or is_measured:
            rows = self._dialogues("rehearsal", "rehearsal.jsonl")
            rows = with_trunk(self.policy, rows, self.depth)
        if is_measured:
            measured = self._dialogues("rehearsal", "measured.jsonl")
            measured = with_trunk(self.policy, measured, self.depth)
            risk = RehearsalRisk(config, self.stage, rows, measured, self.prompts)
        if "rehearsal" in drawn:
            coefficient, unit = config.rehearsal_coef, config.rehearsal_unit
            nll_terms.append(NLLTerm(rows, coefficient, drawn["rehearsal"], unit=unit))
        if "demonstrations" in drawn:
            rows = self._dialogues("data", "demonstrations.jsonl")
            nll_terms.append(NLLTerm(rows, config.ptx_coef, drawn["demonstrations"], "ptx_loss"))
        return nll_terms, risk

    def train(self) -> None:
        """All steps from the newest checkpoint on; writes the outputs."""
        progress = Progress(self.stage.workdir)
        distributed.barrier()  # until the first has put the files in place that all read
        history = read_metrics(progress.path) if progress.path.exists() else []
        total = self.counts.steps
        batches = endless_batches(len(self.prompts), self.counts.prompts, self.config.seed)
        reason = first_reason(history, self.config.guard)
        for batch in itertools.islice(batches, self.step, total):
            self._measure_risk()
            experience = self._collect(batch)
            updates_policy = self.step >= self.counts.critic_steps
            learned = self.learner.update(experience, updates_policy, *self._warmup_shares())
            metrics = {**experience.monitors(), **learned}
            if self.risk is not None:
                metrics |= self.risk.metrics()
            if self.config.kl_target is not None:
                metrics["kl_coef"] = torch.tensor(self.kl_coef)
            self.step += 1
            history.append(progress.log(self.step, metrics))
            progress.advance(self.step, total)
            if self.config.kl_target is not None and updates_policy:
                kl, share = history[-1]["kl"], self.counts.rollout / self.config.kl_horizon
                self.kl_coef = steered_kl_coef(self.kl_coef, kl, self.config.kl_target, share)
            rows = ({"step": self.step, **row} for row in experience.texts)
            append_rows(self.stage.workdir / "rollouts.jsonl", rows)
            reason = reason or collapse_reason(history, self.config.guard)
            if reason is not None and self.config.guard.action != "warn":
                break
            checkpoint_or_stop(
                self.stage.workdir, self.step, self.config.checkpoint_every, self._state
            )
        self._finish(progress, reason)

    def _measure_risk(self) -> None:
        """Measure the risk when it is due, and rehearse by it."""
        if self.risk is None or not self.risk.is_due(self.step - self.counts.critic_steps):
            return
        self.risk.measure(self.learner.policy, self.reference)
        self.learner.rehearse(self.risk.kept)
        columns = {name: values.tolist() for name, values in self.risk.by_cluster.items()}
        append_rows(self.stage.workdir / "risk.jsonl", [{"step": self.step, **columns}])

    def _warmup_shares(self) -> tuple[float, float]:
        """The share of its learning rate that policy and critic have at this step."""
        shares = []
        for first in (self.counts.critic_steps, 0):
            steps = self.config.warmup_fraction * (self.counts.steps - first)
            done = self.step - first + 1
            shares.append(min(1.0, done / steps) if steps > 0 else 1.0)
        return shares[0], shares[1]

    def _collect(self, batch: list[int]) -> Experience:
        models = RolloutModels(
            self.tokenizer,
            self.learner.policy,
            self.reference,
            self.learner.critic,
            self.scorers,
            self.depth,
        )
        prompts = [self.prompts[index] for index in batch]
        weights = torch.ones(len(batch))
        if self.risk is not None and self.risk.kl_weights is not None:
            weights = self.risk.kl_weights[batch]
        kl_coef = move_to_device(self.kl_coef * weights)
        return collect(self.config, prompts, models, self.moments, self.generator, kl_coef)

    def _finish(self, progress: Progress, reason: str | None) -> None:
        """Write the models, metrics and summary; on `rollback`, from the oldest checkpoint kept."""
        self.learner.finish()
        distributed.leave()
        stopped_at = self.step
        if reason is not None and self.config.guard.action == "rollback":
            state = oldest_checkpoint(self.stage.workdir)
            if state is not None:
                self.learner.load_weights(state["learner"])
                self.step = state["step"]
        for name, model in self.learner.models.items():
            merge_adapters(model)
            self.stage.write_model(model, self.tokenizer, FOLDERS[name])
        measured = ["risk.jsonl"] if (self.stage.workdir / "risk.jsonl").exists() else []
        for name in ("metrics.jsonl", "rollouts.jsonl", *measured):
            shutil.copyfile(self.stage.workdir / name, self.stage.output / name)
        self.stage.write_summary(
            {
                **tail_means(progress.path),
                **(self.scorers.external.summary() if self.scorers.external is not None else {}),
                "collapsed": has_collapsed(reason, stopped_at, self.config.guard),
                "collapse_reason": reason,
                "stopped_at_step": stopped_at,
                "policy_of_step": self.step,
                "num_sampled": stopped_at * self.counts.rollout,
                "num_updates": self.counts.policy_updates(stopped_at),
                "num_trained_tokens": self.learner.num_trained_tokens,
            }
        )

    def _state(self) -> dict[str, Any]:
        reward = self.scorers.external
        return {
            **({"reward": reward.state_dict()} if reward is not None else {}),
            **({"risk": self.risk.state_dict()} if self.risk is not None else {}),
            "learner": self.learner.state_dict(),
            "kl_coef": self.kl_coef,
            "moments": self.moments.state_dict(),
            "generator": self.generator.get_state(),
        }
