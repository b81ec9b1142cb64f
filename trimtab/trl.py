"""Trainers of TRL with what the papers change: in a script for TRL one import is another.

from trimtab.trl import RewardConfig, RewardTrainer  # in place of: from trl import ...
"""

from trimtab.models.training.trl_reward import RewardConfig, RewardTrainer

__all__ = ["RewardConfig", "RewardTrainer"]
