"""Trainers of TRL with what the papers change: in a script for TRL one import is another.

from trimtab.trl import RewardConfig, RewardTrainer  # in place of: from trl import ...
"""

try:
    from trimtab.models.training.trl_reward import RewardConfig, RewardTrainer
except ModuleNotFoundError as error:
    if error.name != "trl":
        raise
    raise ModuleNotFoundError(
        "TRL is not installed: pip install 'trimtab[trl]'", name="trl"
    ) from error

__all__ = ["RewardConfig", "RewardTrainer"]
