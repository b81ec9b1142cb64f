"""Peer selection: two reward models are trained side by side, each on what the other orders well.

The peer review of Collaborative Reward Modeling [CRM] (arXiv 2505.10597), by the rule of
Co-teaching (arXiv 1804.06872): of every batch each model leaves out the pairs whose labelled order
is the least likely by the other's score gap. How many rises from none, as at first models order
nothing well. CRM's curriculum, pairs from easy to hard, is not part of it.

Both start from one trunk and see the same batches. They differ by the first weights of heads (and
of adapters and prototypes), and by what dropout leaves out: without dropout they may choose nearly
alike (metric `peer_overlap`). The peer is not kept.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.reward import PeerSelectionConfig, num_dropped
from trimtab.models.config.training import TrainConfig
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.training import prepare_training
from trimtab.models.training.data import Pairs
from trimtab.models.training.learner import (
    Learner,
    LossFunction,
    Metrics,
    accumulate,
    built_ahead,
    new_learner,
)
from trimtab.models.training.pair_batches import PairBatches
from trimtab.models.training.scoring import score_rows


def pairs_of_peer(pairs: Pairs, peer: PreTrainedModel) -> Pairs:
    """The pairs as the peer may read them: frozen lower layers, which both have, are its own."""
    layers = layers_of(peer)
    rows = [
        row
        if row.lower is None
        else replace(row, lower=replace(row.lower, owner=layers[row.lower.depth - 1]))
        for row in pairs.rows
    ]
    return replace(pairs, rows=rows)


def dropped_share(config: PeerSelectionConfig, progress: float) -> float:
    """Share of a batch that is left out once a share `progress` of the steps is done: rises
    linearly from 0 to drop_share."""
    is_ramp_over = progress >= config.ramp_share
    return config.drop_share * (1.0 if is_ramp_over else progress / config.ramp_share)


def wrong_order(gaps: Tensor, labels: Tensor) -> Tensor:
    """-log sigmoid of score gaps (b,) in the labels' direction, nats: what orders a pair badly.

    A smoothed label says the same order as a whole one; labels (b,) are probabilities.
    """
    return F.softplus(torch.where(labels >= 0.5, -gaps, gaps))


def best_ordered(disorder: Tensor, num_kept: int) -> list[int]:
    """Places in a batch, in its order, of the pairs of least `wrong_order` (b,)."""
    return disorder.argsort(stable=True)[:num_kept].sort().values.tolist()


class PeerSelection:
    """The second of two models, and the choice between them. All ranks call everything alike."""

    def __init__(
        self,
        models: tuple[PreTrainedModel, PreTrainedModel],
        pairs: tuple[PairBatches, PairBatches],
        loss_function: LossFunction,
        config: PeerSelectionConfig,
        *,
        train: TrainConfig,
        seed: int,
    ) -> None:
        """models, pairs: of the model that is kept, and of its peer, whose loss is
        `loss_function`. seed: of the peer's adapters."""
        self.models, self.pairs, self.config = models, pairs, config
        self.loss_function, self.train, self.seed = loss_function, train, seed
        self.data = pairs[1].examples
        self.learner: Learner[Any] | None = None

    def begin(self, state: dict[str, Any] | None) -> None:
        """Make the peer ready to be trained, from its state in a checkpoint if there is one."""
        peer = self.models[1]
        prepare_training(peer, self.train, self.seed, self.train.dropout)
        decay = self.train.weight_decay
        own = None if state is None else state["peer"]
        self.learner = new_learner(
            peer, self.loss_function, self.train, weight_decay=decay, state=own
        )
        peer.train()

    def select(
        self, batch: list[int], progress: float, learning_rate: float
    ) -> tuple[list[int], Metrics]:
        """The rows of a batch to train on, with metrics, after the peer's own step on its choice.

        Metrics: `kept_share` of the batch; `peer_overlap`, what share of the kept both models keep;
        `batch_accuracy`, how much of the whole batch the model orders as labelled (of which the
        loss's own metrics see the kept pairs alone).
        """
        assert self.learner is not None
        kept = len(batch) - num_dropped(len(batch), dropped_share(self.config, progress))
        of_model, of_peer = (self._wrong_order(number, batch) for number in (0, 1))
        own, peer = best_ordered(of_peer, kept), best_ordered(of_model, kept)
        chosen = [batch[place] for place in peer]
        limit = self.train.micro_batch_tokens
        accumulate(self.learner, built_ahead(self.learner, self.data, chosen, limit))
        self.learner.step(learning_rate)
        metrics = {
            "kept_share": torch.tensor(kept / len(batch)),
            "peer_overlap": torch.tensor(len({*own} & {*peer}) / kept),
            "batch_accuracy": (of_model < math.log(2)).float().mean(),
        }
        return [batch[place] for place in own], metrics

    def state_dict(self) -> dict[str, Any]:
        """Of the peer, for a checkpoint."""
        assert self.learner is not None
        return {"peer": self.learner.state_dict()}

    def _wrong_order(self, number: int, batch: list[int]) -> Tensor:
        """`wrong_order` (b,) of a batch by one of the models, without dropout."""
        found = self.pairs[number]
        scores = score_rows(self.models[number], [found.rows[index] for index in batch])
        return wrong_order(scores[:, 0] - scores[:, 1], found.pairs.label[batch])
