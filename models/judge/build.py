"""From a configuration to a judge that can be asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from models.config.judge import ChatModelConfig, JudgeConfig
from models.judge.asking import Asker
from models.judge.budget import LEDGER_NAME, Budget, Ledger
from models.judge.cache import AnswerCache
from models.judge.chat import ChatModel
from models.judge.client import Endpoint
from models.judge.constitutions import load_constitution
from models.judge.gold import GoldModel
from models.judge.judge import Judge
from models.judge.local import LocalModel

# The folder of answers that all runs share (`infra.settings` gives it a place).
ANSWERS_VARIABLE = "TRIMTAB_ANSWERS"


def open_judge(
    config: JudgeConfig,
    workdir: Path,
    seed: int,
    stop_requested: Callable[[], bool] = lambda: False,
    principles: Path | None = None,
) -> Judge:
    """The judge of a configuration; `principles`: the folder of a constitution of one's own.

    Raises ConstitutionError, and as `open_asker` does.
    """
    constitution = None
    if config.constitution is not None:
        constitution = load_constitution(config.constitution, principles)
    asker = open_asker(config, workdir, seed, stop_requested)
    return Judge(asker, config, constitution, seed)


def open_asker(
    config: ChatModelConfig,
    workdir: Path,
    seed: int,
    stop_requested: Callable[[], bool] = lambda: False,
) -> Asker:
    """The chat model of a configuration; without a shared folder its answers are in `workdir`.

    There the ledger is, always: what it has spent is the stage's own.

    Raises EndpointError for a key that cannot be sent, and what loading a model raises.
    """
    budget = budget_of(config, Ledger(workdir / LEDGER_NAME))
    model = _chat_model(config, budget, seed)
    folder = Path(os.environ.get(ANSWERS_VARIABLE) or workdir / "answers")
    # What the gold scorer says takes longer to keep than to find again.
    cache = None if config.gold_accuracy is not None else AnswerCache(folder)
    return Asker(model, cache, budget, stop_requested)


def budget_of(config: ChatModelConfig, ledger: Ledger) -> Budget:
    """The limits and prices of a judge's endpoint; none for other judges, which cost nothing."""
    endpoint = config.endpoint
    if endpoint is None:
        return Budget()
    return Budget(
        max_tokens=endpoint.max_total_tokens,
        max_cost=endpoint.max_cost,
        input_price=endpoint.input_price,
        output_price=endpoint.output_price,
        ledger=ledger,
    )


def _chat_model(config: ChatModelConfig, budget: Budget, seed: int) -> ChatModel:
    if config.endpoint is not None:
        return Endpoint(config.endpoint, budget)
    if config.local_model is not None:
        return LocalModel.load(config.local_model)
    assert config.gold_accuracy is not None
    return GoldModel(config.gold_accuracy, seed)
