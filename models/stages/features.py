"""Stage `features`: a scorer's features of the test answers in the plane, and how they mix.

A feature is what the head reads: the last hidden state at the answer's last token. The plane is
t-SNE's [van der Maaten and Hinton 2008], as in [RM figure 11]; overlap is measured in the feature
space itself, of which the plane is only a picture. Features of one narrow cone are all alike:
whether a method parts chosen from rejected answers shows in how much less alike the two labels are
than one label is, for how unlike answers of one label are.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from transformers import PreTrainedModel

from trimtab.models.config.reward import FeaturesConfig
from trimtab.models.nets import counts
from trimtab.models.nets.loading import load_tokenizer
from trimtab.models.nets.packing import pack
from trimtab.models.nets.scoring import read_rewards
from trimtab.models.nets.trunk import hidden_states
from trimtab.models.training.batching import micro_batches
from trimtab.models.training.data import Pairs, with_columns
from trimtab.models.training.stage import Stage


def run(config: FeaturesConfig, stage: Stage) -> None:
    """Inputs: `scorer`, `preferences`. Output: features.jsonl, a row a test answer.

    id of the pair, is_chosen, score, x, y and `mixed` (see `mixing`). overlap.json: `Overlap` by
    whose labels, `given` and, where the preferences have truth.jsonl, `right`; the latter without
    the pairs that gold holds equal.
    """
    model = stage.scorer("scorer").eval()
    tokenizer = load_tokenizer(stage.inputs["scorer"] / "model")
    pairs = stage.pairs("test", model, tokenizer)
    features, scores = features_of(model, pairs)
    is_chosen = torch.arange(len(features), device="cpu") % 2 == 0
    mixed = mixing(features, is_chosen, config.num_neighbours)
    perplexity = min(config.perplexity, (len(features) - 1) / 3)
    plane = TSNE(perplexity=perplexity, random_state=config.seed, init="pca").fit_transform(
        features.numpy()
    )
    columns = {
        "is_chosen": is_chosen,
        "score": scores,
        "x": plane[:, 0],
        "y": plane[:, 1],
        "mixed": mixed,
    }
    answers = [{"id": identifier} for identifier in pairs.identifiers for _ in range(2)]
    stage.write_rows("features.jsonl", with_columns(answers, columns))
    overlaps = {"given": overlap(features, is_chosen, mixed)}
    truth = {}
    if (stage.inputs["preferences"] / "truth.jsonl").exists():
        rows = stage.rows("preferences", "truth.jsonl")
        truth = {row["id"]: row["gold_chosen"] - row["gold_rejected"] for row in rows}
    gold = [truth.get(identifier, 0.0) for identifier in pairs.identifiers]
    differs = torch.tensor(gold, dtype=torch.float64, device="cpu").repeat_interleave(2)
    if bool(differs.any()):
        known = differs != 0
        right = (is_chosen == (differs > 0))[known]
        right_mixing = mixing(features[known], right, config.num_neighbours)
        overlaps["right"] = overlap(features[known], right, right_mixing)
    stage.write_json("overlap.json", {name: asdict(value) for name, value in overlaps.items()})
    stage.write_summary({"overlap": overlaps["given"].mixing})


@dataclass(frozen=True)
class Overlap:
    """How alike features of better and worse answers are.

    mixing: mean of `mixing`. Mean cosines: `pair`, of the two answers of a pair; `between`, of
    answers of other pairs that have different labels; `within`, of such that have the same label.
    """

    mixing: float
    pair: float
    between: float
    within: float


def overlap(features: Tensor, is_better: Tensor, mixed: Tensor) -> Overlap:
    """features (2N, H): two answers a pair, one after the other, one of which is_better (2N,).

    mixed: (2N,) as `mixing` has them.
    """
    units = F.normalize(features.double(), dim=1)
    sides = [units[is_better], units[~is_better]]  # each in the order of the pairs
    count = len(sides[0])
    sums = [side.sum(0) for side in sides]
    pair = float((sides[0] * sides[1]).sum(1).mean())
    # All N^2 products less those of a pair with itself.
    others = count * (count - 1)
    between = (float(sums[0] @ sums[1]) - count * pair) / others
    within = sum((float(total @ total) - count) / others for total in sums) / 2
    return Overlap(float(mixed.mean()), pair, between, within)


@torch.no_grad()
def features_of(model: PreTrainedModel, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Features (2N, H) and rewards (2N,) of N pairs: chosen, rejected, chosen, ...

    Both on the CPU, for scikit-learn.
    """
    features, scores = [], []
    for part in micro_batches(pairs.rows, counts.PASS_TOKENS):
        batch = pack([pairs.rows[index] for index in part])
        hidden = hidden_states(model, batch, batch.ends)
        features.append(hidden[batch.response_end].float())
        scores.append(read_rewards(model, hidden, batch)[0].float())
    return torch.cat(features).cpu(), torch.cat(scores).cpu()


def mixing(features: Tensor, is_chosen: Tensor, num_neighbours: int) -> Tensor:
    """How labels mix around each answer: 1 is as much as chance, 0 is not at all.

    features: (M, H). is_chosen: (M,) bool. Of each answer's nearest neighbours the share with the
    other label, over the share of answers with the other label. Returns (M,) float64.
    """
    count = min(num_neighbours, len(features) - 1)
    search = NearestNeighbors(n_neighbors=count).fit(features.numpy())
    nearest = torch.from_numpy(search.kneighbors(return_distance=False))
    differs = is_chosen[nearest] != is_chosen[:, None]
    num_chosen = int(is_chosen.sum())
    others = torch.where(is_chosen, len(is_chosen) - num_chosen, num_chosen)
    return differs.double().mean(1) * (len(is_chosen) - 1) / others
