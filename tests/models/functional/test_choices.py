"""What a formula's parameter can be is checked in every formula alike."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from trimtab import functional
from trimtab.models.functional.group import LossMean, mean_loss
from trimtab.models.functional.ppo import kl_loss


def _choices() -> dict[str, tuple[Callable[..., Any], str, str]]:
    """Every parameter that is a Literal, of all public formulas."""
    parameters: dict[str, tuple[Callable[..., Any], str, str]] = {}
    for formula in map(functional.__dict__.__getitem__, functional.__all__):
        if inspect.isfunction(formula):
            for name, hint in get_type_hints(formula).items():
                for kind in (hint, *get_args(hint)):
                    if get_origin(kind) is Literal:
                        key = f"{formula.__name__}-{name}"
                        parameters[key] = (formula, name, get_args(kind)[0])
    return parameters


CHOICES = _choices()


@pytest.mark.parametrize("key", CHOICES)
def test_another_choice_is_refused(key: str) -> None:
    formula, name, allowed = CHOICES[key]
    others = {other: None for other in inspect.signature(formula).parameters if other != name}
    with pytest.raises(ValueError, match=rf"{name} must be one of {allowed}.*found 'nonsense'"):
        formula(**others, **{name: "nonsense"})


def test_there_are_choices() -> None:
    assert {"dpo_loss-loss", "kl_estimates-estimator", "doubt_weight-drop_against"} < set(CHOICES)


def test_another_mean_is_refused() -> None:
    mean: Any = "tokens"
    with pytest.raises(ValueError, match="found tokens"):
        mean_loss(torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool), LossMean(mean))


def test_one_kl_coefficient_is_that_of_all_responses() -> None:
    torch.manual_seed(0)
    logprobs, ref_logprobs = torch.randn(2, 3, 4)
    mask = torch.ones(3, 4, dtype=torch.bool)
    one, _ = kl_loss(logprobs, ref_logprobs, mask, 0.1, "k3")
    each, _ = kl_loss(logprobs, ref_logprobs, mask, torch.full((3,), 0.1), "k3")
    torch.testing.assert_close(one, each)
