"""Labels: the ensemble's votes, a judge's labels, the relabelled pairs, the label audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trimtab.flows.config.config import EnsembleConfig, RunConfig, Vote
from trimtab.flows.pipeline.data import scorer_base, submit_trunk, trunk_for
from trimtab.flows.pipeline.run import Future, Run
from trimtab.models import specs
from trimtab.models.config.base import last_part
from trimtab.models.config.external_reward import ExternalRewardVotesConfig
from trimtab.models.config.reporting import AuditConfig
from trimtab.models.config.reward import (
    POLICY,
    CrossFittedConfig,
    EmbeddingModelConfig,
    EmbeddingsConfig,
    ExternalVotesConfig,
    RewardModelConfig,
    StrengthConfig,
    TrunkCacheConfig,
)
from trimtab.models.config.training import ModelConfig, SFTConfig
from trimtab.tasks.resources import ALL_CORES, ONE_CORE, Resources, Slot


def audit_labels(run: Run) -> None:
    """The vote, the relabelled pairs, and the page to review them."""
    ensemble = run.config.ensemble
    if ensemble.embedding_models_vote:
        _add_external_voters(run)
        run["strength"] = _vote_of_embedding_models(run)
    else:
        run["strength"] = _vote(run, ensemble.votes[0])
        if run.config.relabel.noise != "none":
            add_calibrated_vote(run)
    relabel_and_audit(run)
    if run.review is not None:
        run.review(run)


def relabel_and_audit(run: Run, how: str = "") -> None:
    """The relabelled pairs and the page to review them; `how` ends the names of both stages."""
    config = run.config
    voters = _voters(config)
    run["relabelled"] = run.submit(
        specs.RELABEL,
        config.relabel,
        preferences=run["preferences"],
        strength=run.get("calibrated") or run["strength"],
        label=f"relabel{how}",
    )
    run["audit"] = run.submit(
        specs.AUDIT,
        AuditConfig(
            recipe=config.recipe,
            seed=config.seed,
            voters=tuple(voters.values()),
            num_external=len(list(_external_voters(config.ensemble))),
            judges=tuple(judge.name for judge in config.ensemble.judges),
        ),
        preferences=run["preferences"],
        member=[
            run[role] for role in voters or [f"member_{i}" for i in range(config.ensemble.size)]
        ],
        strength=run["strength"],
        self_test=run.get("self_test"),
        relabelled=run["relabelled"],
        label=f"audit{how}",
        resources=Resources(is_patient=True),
    )


def add_calibrated_vote(run: Run, prefix: str = "") -> None:
    """`calibrated`: the vote of the cross-fitted `<prefix>member_<index>` in log-odds."""
    members = [run[f"{prefix}member_{index}"] for index in range(run.config.ensemble.size)]
    run["calibrated"] = run.submit(
        specs.STRENGTH,
        StrengthConfig(mode="calibrated"),
        member=members,
        preferences=run["preferences"],
        label="strength calibrated",
    )


def add_embedding_models(run: Run) -> None:
    """`embedding_<kind>`, `style` and `states_linear`: preference models on vectors of the answers,
    which play `vectors_<kind>` and `vectors_states`."""
    encoded: dict[EmbeddingsConfig, Future] = {}
    for config in run.config.embedding_models:
        is_policy, has_states = config.encoder == POLICY, config.is_language_model
        encoder = EmbeddingsConfig(
            encoder=config.encoder,
            layer=config.layer,
            precision=run.config.ensemble.member.train.precision if has_states else "float32",
        )
        if encoder not in encoded:
            encoded[encoder] = run.submit(
                specs.EMBEDDINGS,
                encoder,
                preferences=run["preferences"],
                policy=run["sft"] if is_policy else None,
                trunk=run.get("trunk") if is_policy else None,
                resources=ALL_CORES if has_states else Resources(is_patient=True),
                label="hidden states" if has_states else "embeddings",
            )
        run[_vectors(config)] = encoded[encoder]
        run[config.name] = _embedding_model(run, config)


def _vectors(config: EmbeddingModelConfig) -> str:
    """The role of the vectors that an embedding model reads."""
    return f"vectors_{'states' if config.is_language_model else config.kind}"


def _embedding_model(run: Run, config: EmbeddingModelConfig, purpose: str = "") -> Future:
    return run.submit(
        specs.EMBEDDING_MODEL,
        run.seeded(config),
        preferences=run["preferences"],
        embeddings=run[_vectors(config)],
        label=purpose + config.name.replace("_", " "),
        resources=Resources(is_patient=True),
    )


def _voters(config: RunConfig) -> dict[str, str]:
    """The roles of the embedding models that vote, and of the voters that the user has, with their
    names on the page; none where reward models vote."""
    ensemble = config.ensemble
    if not ensemble.embedding_models_vote:
        return {}
    voters = {model.name: model.name for model in config.embedding_models}
    for index in range(ensemble.cross_fitted.size if ensemble.cross_fitted else 0):
        voters[f"cross_fitted_{index}"] = f"cross-fitted reward model {index + 1}"
    return voters | {role: name for role, name, *_ in _external_voters(ensemble)}


def _external_voters(ensemble: EnsembleConfig) -> Iterator[tuple[str, str, specs.StageSpec, Any]]:
    """Role, name on the page, stage and configuration of the voters that the user has."""
    for index, source in enumerate(ensemble.scores):
        votes = ExternalVotesConfig(source=source)
        yield (
            f"external_votes_{index}",
            f"votes of {last_part(source)}",
            specs.EXTERNAL_VOTES,
            votes,
        )
    for index, reward in enumerate(ensemble.rewards):
        config = ExternalRewardVotesConfig(reward=reward, precision=ensemble.member.train.precision)
        role = f"external_reward_votes_{index}"
        yield role, reward.short_label, specs.EXTERNAL_REWARD_VOTES, config
    for index, judge in enumerate(ensemble.judges):
        label = f"judge {judge.name}"
        yield f"external_judge_{index}", label, specs.JUDGE_PREFERENCES, judge.comparing()


def _add_external_voters(run: Run) -> None:
    pairs = run["preferences"]
    for role, label, spec, config in _external_voters(run.config.ensemble):
        if spec is specs.JUDGE_PREFERENCES:
            seeded = run.seeded(config)
            run[role] = run.submit_to_judge(spec, seeded, preferences=pairs, label=label)
        elif spec is specs.EXTERNAL_REWARD_VOTES:
            run[role] = run.submit_to_reward(spec, config, preferences=pairs, label=label)
        else:
            run[role] = run.submit(spec, config, preferences=pairs, label=label, resources=ONE_CORE)


def _prepare_base(run: Run, config: CrossFittedConfig) -> None:
    """`base`, the untrained language model, and `base_trunk`, the output of its frozen layers."""
    policy = SFTConfig(model=ModelConfig(base=config.base), fine_tune=False)
    run["base"] = run.submit(specs.SFT, policy, data=run["data"], label="base model")
    if (upper := config.train.trainable_layers) is not None:
        cached = TrunkCacheConfig(trainable_layers=upper, precision=config.train.precision)
        run["base_trunk"] = submit_trunk(run, cached, run["base"])


def _cross_fitted(run: Run, planted_share: float = 0.0, purpose: str = "") -> list[Future]:
    """Reward models that vote each on its own part of the pairs; none unless asked for."""
    config = run.config.ensemble.cross_fitted
    if config is None:
        return []
    if "base" not in run.roles:
        _prepare_base(run, config)
    member = RewardModelConfig(
        num_folds=config.size,
        fold_by="pair",
        train=config.train,
        planted_share=planted_share,
        saves_model=False,
    )
    return [
        run.submit(
            specs.REWARD_MODEL,
            run.seeded(member.model_copy(update={"fold": index}), index + 1),
            policy=run["base"],
            preferences=run["preferences"],
            trunk=run.get("base_trunk"),
            label=f"{purpose}reward model {index + 1}",
            resources=Resources(slot=Slot(index, config.size)),
        )
        for index in range(config.size)
    ]


def _vote_of_embedding_models(run: Run) -> Future:
    """The vote of the embedding models, and of the user's voters; `self_test`, their vote on a copy
    of the pairs with planted flips, from which the user's have not learned."""
    ensemble, calibrated = run.config.ensemble, StrengthConfig(mode="calibrated")
    pairs = run["preferences"]
    for index, member in enumerate(_cross_fitted(run)):
        run[f"cross_fitted_{index}"] = member
    if ensemble.self_test_share:
        share = {"planted_share": ensemble.self_test_share}
        planted = [
            _embedding_model(run, model.model_copy(update=share), "self-test, ")
            for model in run.config.embedding_models
        ]
        planted += _cross_fitted(run, ensemble.self_test_share, "self-test, ")
        external = [run[role] for role, *_ in _external_voters(ensemble)]
        run["self_test"] = run.submit(
            specs.STRENGTH,
            calibrated,
            member=planted + external,
            preferences=pairs,
            label="strength of the self-test",
        )
    members = [run[name] for name in _voters(run.config)]
    return run.submit(
        specs.STRENGTH, calibrated, member=members, preferences=pairs, label="strength"
    )


def ask_judge(run: Run) -> None:
    """Let a judge model compare the pairs; with `ai_labels` its verdicts become the labels."""
    config, labels = run.config.judge_preferences, run.config.ai_labels
    if config is not None:
        run["judged"] = run.submit_to_judge(
            specs.JUDGE_PREFERENCES, run.seeded(config), preferences=run["preferences"]
        )
    if labels is not None:
        run["pairs_as_given"] = run["preferences"]
        run["preferences"] = run.submit(
            specs.AI_LABELS, labels, preferences=run["pairs_as_given"], judgements=run["judged"]
        )


def compare_votes(run: Run) -> None:
    """Submit the ensemble's other votes, which only the report needs, unless already submitted.

    If policies are trained too, these stages have low priority and use cores that are idle.
    """
    if "strength" not in run.roles:  # nobody reads a vote
        return
    has_policies = any(role.startswith("policy_") for role in run.roles)
    before = ("reward_model", "advantage_model", "rehearsal", "meta_rm_2")
    wait_for = [run[role] for role in before if role in run.roles]
    for vote in run.config.ensemble.votes[1:]:
        if f"strength_{vote}" not in run.roles:
            run[f"strength_{vote}"] = _vote(run, vote, f"{vote}_", wait_for, has_policies)


def _vote(
    run: Run,
    vote: Vote,
    prefix: str = "",
    wait_for: Sequence[Future] = (),
    is_patient: bool = False,
) -> Future:
    """An ensemble, whose members play the roles `<prefix>member_<index>`, and its vote."""
    config, size = run.config, run.config.ensemble.size
    members = []
    for index in range(size):
        member = run.seeded(config.ensemble.member, index + 1)
        if vote == "cross_fitted":
            member = member.model_copy(update={"fold": index % member.num_folds})
        trained = run.submit(
            specs.REWARD_MODEL,
            member,
            policy=scorer_base(run),
            preferences=run["preferences"],
            trunk=trunk_for(run, config.ensemble.member.train),
            label=f"{vote} member {index}",
            resources=Resources(
                slot=None if is_patient else Slot(index, size),
                by_ranks=run.has_small_models,
                is_patient=is_patient,
            ),
            wait_for=wait_for,
        )
        run[f"{prefix}member_{index}"] = trained
        members.append(trained)
    return run.submit(
        specs.STRENGTH, StrengthConfig(mode=vote), member=members, label=f"strength {vote}"
    )
