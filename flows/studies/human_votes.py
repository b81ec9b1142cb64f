"""The arms of studies on pairs with people's votes: sizes of the ensemble, ways to vote."""

from __future__ import annotations

from dataclasses import replace

from trimtab.flows.config.config import Vote
from trimtab.flows.pipeline.labels import add_embedding_models, compare_votes
from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.registry import arms
from trimtab.flows.studies.steps import add_strength, changed
from trimtab.models.config.reward import StrengthConfig
from trimtab.models.specs import STRENGTH
from trimtab.models.studies.variants import FLIP_SHARES, flipped

SIZES = (1, 3, 5, 10)
VOTES: tuple[Vote, ...] = ("in_sample", "cross_fitted")


@arms("human-votes", "votes")
def votes(run: Run) -> None:
    """Strength by the first M of ten members, in-sample and cross-fitted."""
    whole = changed(run, {"ensemble": {"size": max(SIZES), "votes": VOTES}})
    add_strength(whole)
    compare_votes(whole)
    for vote in VOTES:
        prefix = "" if vote == VOTES[0] else f"{vote}_"
        members = [run[f"{prefix}member_{index}"] for index in range(max(SIZES))]
        for size in SIZES:
            if size == 1 and vote == "cross_fitted":
                continue  # it would have voted on one fold only
            run[f"strength_{vote}_{size}"] = run.submit(
                STRENGTH,
                StrengthConfig(mode=vote),
                member=members[:size],
                label=f"strength {vote}, {size} members",
            )


@arms("human-votes", "planted-flips")
def planted_flips(run: Run) -> None:
    """Both votes, embedding models and length, with shares of the clear labels turned round."""
    for share in FLIP_SHARES:
        changes = {"preferences": {"flip_share": share}, "ensemble": {"votes": VOTES}}
        turned = replace(changed(run, changes), roles={})
        add_strength(turned)
        add_embedding_models(turned)
        compare_votes(turned)
        run["preferences"] = turned["preferences"]
        run.roles |= {f"{flipped(share)}{role}": turned[role] for role in turned.roles}
