"""Peer selection: two reward models are trained side by side, each on what the other orders well.

The peer review of Collaborative Reward Modeling [CRM] (arXiv 2505.10597), by the rule of
Co-teaching (arXiv 1804.06872): of every batch each model leaves out the pairs that have the largest
ranking loss under the other. How many rises from none, as first models order nothing well. CRM's
curriculum, pairs from easy to hard, is not part of it.

The models differ by their heads' first weights and by what dropout leaves out. The peer lives as
long as the training: only its choice remains.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.reward import PeerSelectionConfig
from trimtab.models.config.training import TrainConfig
from trimtab.models.functional.reward import ranking_losses
from trimtab.models.nets.freezing import layers_of
from trimtab.models.nets.training import prepare_training
from trimtab.models.training.data import Pairs
from trimtab.models.training.learner import (
    Learner,
    LossFunction,
    Metrics,
    TrainingRows,
    accumulate,
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


def kept_share(config: PeerSelectionConfig, progress: float) -> float:
    """Share of a batch that is trained on once a share `progress` of the steps is done: falls
    linearly from 1 to 1 - drop_share."""
    is_ramp_over = progress >= config.ramp_share
    return 1 - config.drop_share * (1.0 if is_ramp_over else progress / config.ramp_share)


def most_alike(losses: Tensor, share: float) -> list[int]:
    """Places in a batch, in its order, of the pairs of least loss (b,); at least one."""
    dropped = math.floor((1 - share) * len(losses) + 1e-6)  # 1 - .8 is below .2
    count = max(1, len(losses) - dropped)
    return losses.argsort(stable=True)[:count].sort().values.tolist()


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
        self.data = TrainingRows(pairs[1].rows, pairs[1].weight)
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

        Metrics: `kept_share` of the batch; `peer_overlap`, what share of it both models keep.
        """
        assert self.learner is not None
        share = kept_share(self.config, progress)
        own, peer = (
            most_alike(self._losses(number, batch), share) for number in (1, 0)
        )  # each by the other's losses
        chosen = [batch[place] for place in peer]
        accumulate(
            self.learner, self.data, chosen, lambda rows: rows, self.train.micro_batch_tokens
        )
        self.learner.step(learning_rate)
        metrics = {
            "kept_share": torch.tensor(len(own) / len(batch)),
            "peer_overlap": torch.tensor(len({*own} & {*peer}) / len(own)),
        }
        return [batch[place] for place in own], metrics

    def state_dict(self) -> dict[str, Any]:
        """Of the peer, for a checkpoint."""
        assert self.learner is not None
        return {"peer": self.learner.state_dict()}

    def _losses(self, number: int, batch: list[int]) -> Tensor:
        """Ranking losses (b,) of a batch under one of the models, without dropout."""
        found = self.pairs[number]
        scores = score_rows(self.models[number], [found.rows[index] for index in batch])
        labels, margins = found.pairs.label[batch], found.pairs.margin[batch]
        return ranking_losses(scores[:, 0], scores[:, 1], label_chosen=labels, margin=margins)
