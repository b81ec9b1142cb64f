"""What PPO loses of SFT's answers, by cluster, and the weights that follow from it.

[AM section 3.2] sees rehearsal as amplifying the KL penalty of crucial instances and their like,
and leaves it there. Here the clusters that the policy is losing are the crucial ones: more of their
answers are rehearsed, or the KL penalty on their prompts weighs more.

It is measured on answers that are not rehearsed, the next best of each cluster: those that are
stay likely whatever else is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trimtab.models.config.policy import PPOConfig
from trimtab.models.functional.rehearsal import (
    best_of_clusters,
    cluster_risk,
    kept_per_cluster,
    risk_weights,
)
from trimtab.models.nets.packing import Candidates
from trimtab.models.training.learner import Metrics, ModelHandle
from trimtab.models.training.scoring import logprob_rows
from trimtab.models.training.stage import Row, Stage


class RehearsalRisk:
    """The last measurement, and what follows from it until the next; all of it on the host.

    rows: N rehearsed answers, of which `kept` (N,) are drawn from, some several times.
    measured: answers of the same clusters that risk is measured on.
    risk: (C,) nats a token, against the reference, the policy that wrote them. kl_weights: (P,) of
    PPO's prompts, None where they are uniform.
    """

    def __init__(
        self,
        config: PPOConfig,
        stage: Stage,
        rows: list[Candidates],
        measured: list[Candidates],
        prompts: Sequence[Row],
    ) -> None:
        """Raises ValueError for a prompt that the stage `rehearsal` has put into no cluster."""
        self.config, self.rows, self.measured = config, rows, measured
        records = stage.rows("rehearsal", "rehearsal.jsonl")
        self.cluster = torch.tensor([record["cluster"] for record in records])
        self.ranked_by = torch.tensor([record["ranked_by"] for record in records])
        measured_records = stage.rows("rehearsal", "measured.jsonl")
        self.measured_cluster = torch.tensor([record["cluster"] for record in measured_records])
        self.num_tokens = torch.tensor([len(row.responses[0]) for row in measured])
        self.prompt_cluster = self.cluster.new_empty(0)
        if config.kl_weights == "risk":
            self.prompt_cluster = _clusters_of(prompts, stage)
        count = 1 + int(torch.cat([self.cluster, self.prompt_cluster]).max())
        self.reference_nll: Tensor | None = None
        self._follow(torch.zeros(count, dtype=torch.float64))

    def is_due(self, policy_steps: int) -> bool:
        """Whether it is measured after so many steps of the policy, below 0 before the first."""
        return policy_steps >= 0 and policy_steps % self.config.risk_every == 0

    def measure(self, policy: ModelHandle, reference: ModelHandle) -> None:
        """Score all measured answers; ranks share the work out, and all of them call this."""
        if self.reference_nll is None:
            self.reference_nll = self._nll(reference)
        nll, clusters = self._nll(policy), (self.measured_cluster, len(self.risk))
        self._follow(cluster_risk(nll, self.reference_nll, self.num_tokens, *clusters))

    def _nll(self, handle: ModelHandle) -> Tensor:
        with handle.gathered() as model:
            return -logprob_rows(model, self.measured)[:, 0]

    def _follow(self, risk: Tensor) -> None:
        self.risk, self.kl_weights, self.kept = risk, None, self.rows
        self.by_cluster: dict[str, Tensor] = {"risk": risk}
        if self.config.rehearsal_weights == "risk":
            sizes = self.cluster.bincount(minlength=len(risk))
            weights = risk_weights(risk, sizes, self.config.risk_floor)
            number = kept_per_cluster(weights, sizes)
            places = best_of_clusters(self.ranked_by, self.cluster, number)
            self.kept = [self.rows[place] for place in places.tolist()]
            self.by_cluster |= {"rehearsal_weight": weights, "num_kept": number}
        if self.config.kl_weights == "risk":
            sizes = self.prompt_cluster.bincount(minlength=len(risk))
            weights = risk_weights(risk, sizes, self.config.risk_floor)
            self.kl_weights = weights[self.prompt_cluster].float()
            self.by_cluster["kl_weight"] = weights

    def metrics(self) -> Metrics:
        """Mean risk of the clusters, nats a token, and the largest weight of one."""
        largest = {
            f"largest_{name}": values.max()
            for name, values in self.by_cluster.items()
            if name.endswith("_weight")
        }
        return {"rehearsal_risk": self.risk.mean(), **largest}

    def state_dict(self) -> dict[str, Any]:
        """Measured so far; weights follow."""
        return {"risk": self.risk, "reference_nll": self.reference_nll}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.reference_nll = state["reference_nll"]
        self._follow(state["risk"])


def _clusters_of(prompts: Sequence[Row], stage: Stage) -> Tensor:
    """The cluster (P,) of each prompt."""
    if not (stage.inputs["rehearsal"] / "clusters.jsonl").exists():
        raise ValueError(
            "kl_weights=risk needs the clusters of PPO's prompts, which the input rehearsal lacks; "
            "run the stage rehearsal with cluster_policy_prompts=true"
        )
    known = {row["prompt"]: row["cluster"] for row in stage.rows("rehearsal", "clusters.jsonl")}
    unknown = [row["prompt"] for row in prompts if row["prompt"] not in known]
    if unknown:
        raise ValueError(
            f"kl_weights=risk: {len(unknown)} of {len(prompts)} prompts have no cluster in the "
            f"input rehearsal, the first {unknown[0]!r}; run the stage rehearsal on these data"
        )
    return torch.tensor([known[row["prompt"]] for row in prompts])
