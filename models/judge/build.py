"""Builds the judge or the chat model that a configuration describes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trimtab.models.config.judge import ChatModelConfig, JudgeConfig
from trimtab.models.judge.batch import AnswerCache, CachedChatModel
from trimtab.models.judge.budget import RUN_LEDGER_VARIABLE, Budget, Ledger, Limits
from trimtab.models.judge.chat import ChatModel
from trimtab.models.judge.client import Endpoint
from trimtab.models.judge.constitutions import load_constitution
from trimtab.models.judge.gold import GoldModel
from trimtab.models.judge.judge import Judge
from trimtab.models.judge.local import LocalModel

# The folder of answers that all runs share; `trimtab.infra.settings` sets it.
ANSWERS_VARIABLE = "TRIMTAB_ANSWERS"


def build_judge(
    config: JudgeConfig,
    workdir: Path,
    seed: int,
    stop_requested: Callable[[], bool] = lambda: False,
    constitution_folder: Path | None = None,
) -> Judge:
    """The judge of a configuration. `constitution_folder` holds the user's own constitution.

    Raises ConstitutionError, and as `build_chat_model` does.
    """
    constitution = None
    if config.constitution is not None:
        constitution = load_constitution(config.constitution, constitution_folder)
    chat = build_chat_model(config, workdir, seed, stop_requested)
    return Judge(chat, config, constitution, seed)


def build_chat_model(
    config: ChatModelConfig,
    workdir: Path,
    seed: int,
    stop_requested: Callable[[], bool] = lambda: False,
) -> CachedChatModel:
    """The chat model of a configuration.

    Answers are kept in the folder of TRIMTAB_ANSWERS, or in `workdir` if it is not set. The stage's
    ledger is always in `workdir`; that of the run is in the folder of TRIMTAB_JUDGE_LEDGER, if set.

    Raises EndpointError for a key that cannot be sent, and what loading a model raises.
    """
    budget = build_budget(config, workdir)
    model = _model_of(config, budget, seed)
    folder = Path(os.environ.get(ANSWERS_VARIABLE) or workdir / "answers")
    # An answer of the gold scorer takes longer to keep than to compute.
    cache = None if config.gold_accuracy is not None else AnswerCache(folder)
    return CachedChatModel(model, cache, budget, stop_requested)


def build_budget(config: ChatModelConfig, workdir: Path) -> Budget:
    """Limits and prices of an endpoint; a model in this process costs nothing and has no limit."""
    endpoint = config.endpoint
    if endpoint is None:
        return Budget()
    limits = Limits(endpoint.max_total_tokens, endpoint.max_cost)
    folder = os.environ.get(RUN_LEDGER_VARIABLE)
    run = [Ledger(Path(folder), limits, "the run's")] if folder else []
    prices = endpoint.input_price, endpoint.output_price
    return Budget([*run, Ledger(workdir, limits, "this stage's")], prices)


def _model_of(config: ChatModelConfig, budget: Budget, seed: int) -> ChatModel:
    if config.endpoint is not None:
        return Endpoint(config.endpoint, budget)
    if config.local_model is not None:
        return LocalModel.load(config.local_model)
    assert config.gold_accuracy is not None
    return GoldModel(config.gold_accuracy, seed)
