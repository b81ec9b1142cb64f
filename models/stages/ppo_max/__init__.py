"""Stage `ppo_max`: PPO-max with selective rehearsal [PPO section 5.4, AM eq. 9]."""

from trimtab.models.stages.ppo_max.trainer import run

__all__ = ["run"]
