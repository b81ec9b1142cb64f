"""The arms of the papers' exhibits: a function submits those of one exhibit or several, whose
declarations in `trimtab.models.studies` name it, as they may name a step. `varied` is what a
declaration hands it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trimtab.flows.config.config import Vote, with_changes
from trimtab.flows.pipeline.data import scorer_base
from trimtab.flows.pipeline.labels import (
    add_calibrated_vote,
    add_embedding_models,
    compare_votes,
)
from trimtab.flows.pipeline.run import Run
from trimtab.flows.studies.steps import (
    AS_GIVEN,
    add,
    add_advantage_model,
    add_both_scorers,
    add_comparison,
    add_meta_rm,
    add_outcome,
    add_pairs_of_two_policies,
    add_policy,
    add_rehearsal,
    add_scorer,
    add_scorer_of_pairs,
    add_scorers,
    add_strength,
    add_weighed,
    changed,
    ppo_without_rehearsal,
    set_kl,
    treatment_of,
)
from trimtab.models.config.arms import vanilla
from trimtab.models.config.base import PolicyPrompts
from trimtab.models.config.judge import AILabelsConfig, JudgeConfig, JudgePreferencesConfig
from trimtab.models.config.reward import ContrastiveConfig, FeaturesConfig, StrengthConfig
from trimtab.models.specs import (
    AI_LABELS,
    FEATURES,
    JUDGE_PREFERENCES,
    PPO_MAX,
    RELABEL,
    REWARD_MODEL,
    SFT,
    STRENGTH,
)
from trimtab.models.studies import variants
from trimtab.models.studies.variants import AS_GOOD, TREATMENTS, WITH_DROPOUT, Variant, flipped
from trimtab.tasks.resources import ALL_CORES

NUM_ROUNDS = 4
NUM_ADAPTATION_ROUNDS = 2
# A round's share of the recipe's PPO steps, and of its learning rate.
SHARE_OF_STEPS = 1 / 3
SHARE_OF_RATE = 1 / 6
SIZES = (1, 3, 5, 10)
VOTES: tuple[Vote, ...] = ("in_sample", "cross_fitted")


def vanilla_ppo(run: Run, varied: Mapping[str, Variant]) -> None:
    """Vanilla PPO on raw scores, with what variants change of it."""
    for name, variant in varied.items():
        add_policy(run, name, with_changes(vanilla(run.config.ppo), variant.changes), "scorer_raw")


def early_reward_models(run: Run) -> None:
    """PPO-max on reward models of few pairs and of all."""
    add_scorer(run, "raw")
    add_scorers(run, variants.EARLY)
    for name in variants.EARLY:
        add_policy(run, name, ppo_without_rehearsal(run), f"scorer_{name}")


def starts(run: Run) -> None:
    """PPO-max, its critic and its policy from elsewhere."""
    add_scorer(run, "raw")
    config = run.seeded(with_changes(run.config.sft, {"fine_tune": False}))
    add(run, "untrained", SFT, config, label="no SFT", resources=ALL_CORES)
    for name, variant in variants.STARTS.items():
        start = "untrained" if name == "without_sft" else "sft"
        ppo = ppo_without_rehearsal(run, variant.changes)
        add_policy(run, name, ppo, "scorer_raw", start=start)


def ppo_max(run: Run) -> None:
    """PPO-max on the reward model, without rehearsal."""
    add_policy(run, "ppo_max_rm", ppo_without_rehearsal(run), "scorer_raw")


def vanilla_and_ppo_max(run: Run) -> None:
    """SFT, PPO-max and vanilla PPO, all measured by the reward model they are trained on."""
    vanilla_ppo(run, variants.VANILLA)
    ppo_max(run)


def pretraining_losses(run: Run) -> None:
    """PPO-max with the pre-training loss and without, at several KL coefficients."""
    for coef in variants.PTX_KL_COEFS:
        for name, variant in variants.PTX.items():
            ppo = ppo_without_rehearsal(run, variant.changes, coef)
            add_policy(run, f"{name}_{coef:g}", ppo, "scorer_raw")


def long_reward_models(run: Run) -> None:
    """The five treatments for several epochs, on the validation pairs by step."""
    add_scorers(run, TREATMENTS, "_long", train={"num_epochs": 4}, score_every=20)


def one_reward_model(run: Run) -> None:
    """`scorer_raw`: the recipe's reward model, on labels as given."""
    add_scorer(run, "raw")


def free_policies(run: Run) -> None:
    """PPO without KL penalty on the five reward models."""
    add_scorers(run, TREATMENTS)
    for name in TREATMENTS:
        _add_free_policy(run, name, "baseline")


def _add_free_policy(run: Run, name: str, baseline: str) -> None:
    free = ppo_without_rehearsal(run, kl_coef=0.0)
    add_policy(run, f"free_{name}", free, f"scorer_{name}")
    if name != baseline:
        add_comparison(run, f"versus_free_{name}", f"free_{name}", f"free_{baseline}")


def denoised_policies(run: Run) -> None:
    """PPO-max on reward models of few pairs, of which the harder are wrong more often."""
    # So few prompts that a thousand pairs are trained on, by the members that vote too.
    few = {"noise": "by_difficulty", "num_prompts": 2000, "test_share": 0.3}
    noisy = changed(run, {"comparisons": few, "ensemble": {"votes": VOTES}})
    add_scorer(noisy, "raw")
    compare_votes(noisy)
    add_calibrated_vote(noisy, "cross_fitted_")
    for name, variant in variants.DENOISED_AT_KL.items():
        vote = "calibrated" if name == "posterior" else "strength"
        add(noisy, f"pairs_{name}", RELABEL, treatment_of(noisy, variant), strength=vote)
        add_scorer_of_pairs(noisy, name, train={"num_epochs": 4})
        for coef in variants.KL_COEFS:
            ppo = ppo_without_rehearsal(run, kl_coef=coef)
            add_policy(noisy, f"{name}_{coef:g}", ppo, f"scorer_{name}")


def features(run: Run) -> None:
    """Features of the test answers, by reward models of one dropout with and without SimCSE."""
    for name, variant in variants.SIMCSE_STRENGTHS.items():
        _add_contrastive_scorer(run, name, variant)
        scorer, label = f"scorer_{name}", f"features, {name}"
        add(run, f"features_{scorer}", FEATURES, FeaturesConfig(), scorer=scorer, label=label)


def contrastive_policies(run: Run) -> None:
    """PPO without KL penalty on contrastive reward models, and on one of the same dropout."""
    for name, variant in WITH_DROPOUT.items():
        _add_contrastive_scorer(run, name, variant)
        _add_free_policy(run, name, "dropout")


def _add_contrastive_scorer(run: Run, name: str, variant: Variant) -> None:
    contrastive = ContrastiveConfig.model_validate(variant.changes) if variant.changes else None
    add_scorer(run, name, train={"dropout": variants.DROPOUT}, contrastive=contrastive)


def rated_responses(run: Run) -> None:
    """Reward models on several pairs of a prompt's responses, by the treatment of the labels."""
    add_scorers(changed(run, {"comparisons": variants.RATED_PROMPTS}), variants.RATED)


def rounds(run: Run) -> None:
    """Four rounds from SFT: on the reward model as it is, and as each kind of round trains it."""
    for name in variants.ROUND_ARMS:
        _add_rounds(run, name, NUM_ROUNDS)
    for number in range(1, NUM_ROUNDS + 1):
        for rival in ("plain", "eta_0"):
            ours, theirs = f"meta_{number}", f"{rival}_{number}"
            add_comparison(run, f"versus_{theirs}", ours, theirs)


def meta_updates(run: Run) -> None:
    """`meta_rm_<variant>`: the reward model `scorer_raw` trained on, on the answers of SFT."""
    add_scorer(run, "raw")
    meta_rm = run.config.rounds.meta_rm
    held_out = {"num_held_out": meta_rm.num_prompts // 2}
    for name, variant in variants.META_UPDATES.items():
        config = with_changes(meta_rm, {**held_out, **variant.changes})
        add_meta_rm(run, f"meta_rm_{name}", config, "sft", f"MetaRM, {variant.label}")


def rounds_at_dynamic_kl(run: Run) -> None:
    """As many rounds of MetaRM whose KL coefficient is steered to a KL of the round."""
    rounds(run)
    _add_rounds(run, "meta", NUM_ROUNDS, prefix="dynamic_", has_dynamic_kl=True)


def adaptation(run: Run) -> None:
    """Rounds on unlabelled prompts of the held-out family, and as many on the others."""
    _add_rounds(run, "meta", NUM_ADAPTATION_ROUNDS)
    for name in ("plain", "eta_0", "meta"):
        _add_rounds(run, name, NUM_ADAPTATION_ROUNDS, "held_out", "adapted_")
    for rival in ("plain", "eta_0"):
        last = f"{rival}_{NUM_ADAPTATION_ROUNDS}"
        ours = f"adapted_meta_{NUM_ADAPTATION_ROUNDS}"
        add_comparison(run, f"versus_adapted_{last}", ours, f"adapted_{last}")


def _add_rounds(
    run: Run,
    arm: str,
    count: int,
    prompts: PolicyPrompts = "policy",
    prefix: str = "",
    has_dynamic_kl: bool = False,
) -> None:
    """`policy_<prefix><arm>_<n>`: each from the one before, held near SFT, in steps so small that
    the first leaves something to gain. Every MetaRM starts from the reward model `scorer_raw`.
    """
    add_scorer(run, "raw")
    recipe, policy = run.config.ppo, "sft"
    share = {
        "prompts": prompts,
        "num_steps": max(1, round(recipe.num_steps * SHARE_OF_STEPS)),
        "policy_learning_rate": recipe.policy_learning_rate * SHARE_OF_RATE,
    }
    ppo = ppo_without_rehearsal(run, share, recipe.kl_coef)
    meta_rm = run.config.rounds.meta_rm
    redrawn = {"redraw_prompts": True, "num_held_out": meta_rm.num_prompts // 2, "prompts": prompts}
    for number in range(1, count + 1):
        name, scorer = f"{prefix}{arm}_{number}", "scorer_raw"
        if of_meta_rm := variants.ROUND_ARMS[arm].changes:
            scorer = f"meta_rm_{name}"
            config = with_changes(meta_rm, {**redrawn, **of_meta_rm})
            add_meta_rm(run, scorer, config, policy, scorer.replace("_", " "), number)
        if has_dynamic_kl:
            ppo = with_changes(ppo, variants.dynamic_kl(number))
        start, policy = policy, f"policy_{name}"
        inputs = {"policy": start, "reference": "sft", "scorer": scorer}
        add(run, policy, PPO_MAX, run.seeded(ppo, number), label=f"PPO {name}", **inputs)
        add_outcome(run, name, scorer, start)


def forgetting(run: Run) -> None:
    """The reward model, and PPO on it."""
    add_policy(run, "reward_model", ppo_without_rehearsal(run), "scorer_raw")


def policies_by_scorer(run: Run) -> None:
    """Policies on both scorers and with rehearsal, each on raw and on normalised scores."""
    add_both_scorers(run)
    add_rehearsal(run, "full", run.config.rehearsal)
    for prefix, changes in (("raw_", {"score_treatment": "raw", "score_clip": None}), ("", {})):
        plain = ppo_without_rehearsal(run, changes)
        add_policy(run, f"{prefix}reward_model", plain, "scorer_raw")
        add_policy(run, f"{prefix}advantage_model", plain, "advantage_raw")
        full = with_changes(run.config.ppo, changes)
        add_policy(run, f"{prefix}full", full, "advantage_raw", rehearsed="rehearsal_full")


def epochs_on_few_pairs(run: Run) -> None:
    """Both scorers after several epochs on a thousand pairs."""
    few = with_changes(AS_GIVEN, {"max_pairs": variants.FEW_PAIRS})
    for epochs in variants.EPOCHS:
        name = f"epochs_{epochs}"
        train = {"num_epochs": epochs}
        add_scorer(run, name, few, train=train)
        config = with_changes(run.config.advantage_model, {"train": train})
        label = f"Advantage Model, pairs epochs {epochs}"
        add_advantage_model(run, f"advantage_{name}", config, f"pairs_{name}", label)


def margins_on_few_pairs(run: Run) -> None:
    """Both scorers on about a thousand pairs, most being held out, the Advantage Model with bounds
    by the vote of reward models that were trained on the other half of these pairs, and a reward
    model that learns from the same vote, as posterior labels."""
    run = changed(run, variants.MOST_HELD_OUT | {"ensemble": {"votes": ["cross_fitted"]}})
    add_strength(run)
    add_calibrated_vote(run)
    posterior = with_changes(AS_GIVEN, {"noise": "posterior"})
    for epochs in variants.MARGIN_EPOCHS:
        train = {"num_epochs": epochs}
        add_scorer(run, f"few_{epochs}", train=train)
        add(run, f"pairs_posterior_{epochs}", RELABEL, posterior, strength="calibrated")
        add_scorer_of_pairs(run, f"posterior_{epochs}", train=train)
        for name, variant in variants.BOUNDS.items():
            config = with_changes(run.config.advantage_model, {"train": train, **variant.changes})
            role, label = f"advantage_{name}_{epochs}", f"{variant.label}, {epochs} epochs"
            add_advantage_model(run, role, config, f"pairs_few_{epochs}", label)


def rehearsal_by_kl(run: Run) -> None:
    """PPO-max on the Advantage Model at several KL coefficients: without rehearsal, with that of
    the paper, of answers to what SFT was taught on, and of such answers drawn at random; the first
    two also where PPO's prompts share the forget set's families."""
    _add_rehearsals(run, variants.REHEARSALS)
    shared = replace(changed(run, variants.SHARED_FAMILIES), roles={})
    _add_rehearsals(shared, variants.SHARED_REHEARSALS)
    run.roles.update(shared.roles | run.roles)


def _add_rehearsals(run: Run, compared: Mapping[str, Variant]) -> None:
    add_both_scorers(run)
    recipe = run.config.rehearsal
    # One cluster of as many examples as are kept: none is selected.
    count = recipe.num_clusters * recipe.per_cluster
    at_random = {"max_prompts": count, "num_clusters": 1, "per_cluster": count}
    for name, variant in compared.items():
        rehearsed = f"rehearsal_{name}" if variant.changes else None
        if rehearsed:
            drawn = at_random if name == "random" else {}
            add_rehearsal(run, name, with_changes(recipe, {**variant.changes, **drawn}))
        full = run.config.ppo if rehearsed else ppo_without_rehearsal(run)
        for coef in variants.REHEARSAL_KL_COEFS:
            policy, ppo = f"{name}_{coef:g}", set_kl(full, coef)
            add_policy(run, policy, ppo, "advantage_raw", rehearsed=rehearsed)


def risk_by_kl(run: Run) -> None:
    """PPO-max on the Advantage Model at several KL coefficients, with what may keep abilities:
    answers to what SFT was taught on rehearsed, uniformly and by risk, the KL penalty weighed by
    that risk, the pre-training loss; and with none of them. Weights by risk, and none, also where
    PPO's prompts share the forget set's families."""
    _add_risks(run, variants.RISKS)
    shared = replace(changed(run, variants.SHARED_FAMILIES), roles={})
    _add_risks(shared, variants.SHARED_RISKS)
    run.roles.update(shared.roles | run.roles)


def _add_risks(run: Run, compared: Mapping[str, Variant]) -> None:
    add_both_scorers(run)
    changes = {"prompts": "demonstrations", "cluster_policy_prompts": True}
    add_rehearsal(run, "demonstrations", with_changes(run.config.rehearsal, changes))
    uniform = {"ptx_coef": 0.0, "rehearsal_weights": "uniform", "kl_weights": "uniform"}
    for name, variant in compared.items():
        rehearsed = None if name.endswith(("nothing", "ptx")) else "rehearsal_demonstrations"
        for coef in variants.RISK_KL_COEFS:
            ppo = with_changes(set_kl(run.config.ppo, coef), {**uniform, **variant.changes})
            add_policy(run, f"{name}_{coef:g}", ppo, "advantage_raw", rehearsed=rehearsed)


def rehearsal_criteria(run: Run) -> None:
    """PPO-max without a KL penalty, rehearsing examples that are kept by other criteria."""
    add_both_scorers(run)
    shown = with_changes(run.config.rehearsal, {"prompts": "demonstrations"})
    ppo = set_kl(run.config.ppo, 0.0)
    add_policy(run, "without_0", ppo_without_rehearsal(run, kl_coef=0.0), "advantage_raw")
    for name, variant in variants.CRITERIA.items():
        add_rehearsal(run, name, with_changes(shown, variant.changes))
        add_policy(run, f"{name}_0", ppo, "advantage_raw", rehearsed=f"rehearsal_{name}")


def two_behaviour_policies(run: Run) -> None:
    """Four scorers of pairs that two policies wrote: a reward model, and the Advantage Model with
    all ratios 1, with importance weights, and with those as they are printed."""
    add_pairs_of_two_policies(run)
    config, label = run.seeded(run.config.reward_model), "reward model, two policies"
    add(run, "scorer_two", REWARD_MODEL, config, policy="policy_first", label=label)
    for name, (changes, behaviour) in variants.IMPORTANCE_WEIGHTS.items():
        weighing = with_changes(run.config.advantage_model, changes)
        add_weighed(run, f"scorer_{name}", weighing, behaviour, f"Advantage Model {name}")


def judges(run: Run) -> None:
    """Policies of every judge, and of people's labels; people's labels judge them all."""
    _add_feedback(run, variants.JUDGES_RIGHT)


def feedback(run: Run) -> None:
    """People's labels, as given and smoothed as a judge's are, and a judge as often right as they
    are; policies against each other."""
    _add_feedback(run, (AS_GOOD,))
    add_scorer(run, "smoothed", with_changes(AS_GIVEN, {"smooth": "all", "smoothing": 1 - AS_GOOD}))
    add_policy(run, "people_smoothed", ppo_without_rehearsal(run), "scorer_smoothed")
    ours = {"distilled": f"distilled_{AS_GOOD:g}", "direct": f"direct_{AS_GOOD:g}"}
    for name, policy in ours.items():
        add_comparison(run, f"{name}_versus_people", policy, "people_smoothed")
    add_comparison(run, "direct_versus_distilled", ours["direct"], ours["distilled"])


def _add_feedback(run: Run, accuracies: Sequence[float]) -> None:
    """Policies of people's labels, and of judges that are right so often: distilled and direct."""
    run = changed(run, {"judge_preferences": None, "ai_labels": None})
    add_scorer(run, "raw")
    ppo = ppo_without_rehearsal(run)
    add_policy(run, "people", ppo, "scorer_raw")
    for accuracy in accuracies:
        name, judge = f"{accuracy:g}", JudgeConfig(gold_accuracy=accuracy)
        _add_distilled_scorer(run, name, judge)
        add_policy(run, f"distilled_{name}", ppo, f"scorer_{name}")
        rated = with_changes(ppo, {"scoring": {"judge": judge}, "critic_init": "policy"})
        add_policy(run, f"direct_{name}", rated, None)


def _add_distilled_scorer(run: Run, name: str, judge: JudgeConfig) -> None:
    """`scorer_<name>`: a reward model on the judge's soft labels, as they are."""
    judged, labelled, how = f"judged_{name}", f"labelled_{name}", f", right in {name}"
    config = run.seeded(JudgePreferencesConfig(judge=judge))
    add(run, judged, JUDGE_PREFERENCES, config, label=f"judge{how}")
    label = f"AI labels{how}"
    add(run, labelled, AI_LABELS, AILabelsConfig(), judgements=judged, label=label)
    add(
        run,
        f"scorer_{name}",
        REWARD_MODEL,
        run.seeded(run.config.reward_model),
        policy=scorer_base(run),
        preferences=labelled,
        label=f"reward model{how}",
    )


def noise_treatments(run: Run, noise: str) -> None:
    """Reward models and Advantage Models by what is made of how often labels are wrong, and on
    right labels; noise: which labels of the world are wrong."""
    run = changed(run, {"comparisons": {"noise": noise}, "ensemble": {"votes": VOTES}})
    add_strength(run)
    compare_votes(run)
    if "calibrated" not in run.roles:
        add_calibrated_vote(run, "cross_fitted_")
    gold = run.seeded(JudgePreferencesConfig(judge=JudgeConfig(gold_accuracy=1.0)))
    add(run, "gold", JUDGE_PREFERENCES, gold, label="gold's votes")
    calibrated = StrengthConfig(mode="calibrated")
    add(run, "strength_of_gold", STRENGTH, calibrated, member=["gold"], label="strength of gold")
    votes = {"recipe": "strength", "right": "strength_of_gold"}
    config = run.config.advantage_model
    given = {"flip_rate": run.config.comparisons.flip_share}
    for name, variant in variants.NOISE_TREATMENTS.items():
        if name in variants.AT_GIVEN_RATE:
            variant = replace(variant, changes={**variant.changes, **given})
        vote = votes.get(name, "calibrated")
        add(run, f"pairs_{name}", RELABEL, treatment_of(run, variant), strength=vote)
        add_scorer_of_pairs(run, name)
        label = f"Advantage Model, pairs {name}"
        add_advantage_model(run, f"advantage_{name}", config, f"pairs_{name}", label)


def votes(run: Run) -> None:
    """Strength by the first M of ten members, in-sample and cross-fitted."""
    largest = changed(run, {"ensemble": {"size": max(SIZES), "votes": VOTES}})
    add_strength(largest)
    compare_votes(largest)
    for mode in VOTES:
        prefix = "" if mode == VOTES[0] else f"{mode}_"
        members = [f"{prefix}member_{index}" for index in range(max(SIZES))]
        for size in SIZES:
            if size == 1 and mode == "cross_fitted":
                continue  # it would have voted on one fold only
            role, label = f"strength_{mode}_{size}", f"strength {mode}, {size} members"
            add(run, role, STRENGTH, StrengthConfig(mode=mode), member=members[:size], label=label)


def planted_flips(run: Run) -> None:
    """Both votes, embedding models and length, with shares of planted flips."""
    for share in variants.FLIP_SHARES:
        changes = {"preferences": {"flip_share": share}, "ensemble": {"votes": VOTES}}
        flipped_run = replace(changed(run, changes), roles={})
        add_strength(flipped_run)
        add_embedding_models(flipped_run)
        compare_votes(flipped_run)
        run["preferences"] = flipped_run["preferences"]
        run.roles |= {f"{flipped(share)}{role}": flipped_run[role] for role in flipped_run.roles}
