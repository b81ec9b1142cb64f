"""A table or figure of a paper. Imports no torch.

[RM] Secrets of RLHF Part II, arXiv 2401.06080. [PPO] Secrets of RLHF Part I, arXiv 2307.04964.
[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.
[RLAIF] RLAIF vs. RLHF, arXiv 2309.00267. [DPO] Direct Preference Optimization, arXiv 2305.18290.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.config.reporting import Paper

TITLES: dict[Paper, str] = {
    "part-1": "Secrets of RLHF Part I: PPO",
    "part-2": "Secrets of RLHF Part II: reward modeling",
    "advantage-model": "Stabilizing RLHF: Advantage Model and selective rehearsal",
    "people": "Preference strength against people's votes",
    "rlaif": "RLAIF: how good a judge has to be",
    "optimisers": "Ways to optimise a policy, each at several strengths",
    "constants": "Constants that the papers do not publish",
}


@dataclass(frozen=True)
class Exhibit:
    """A table, figure or swept constant: what it shows, the claim, and the paper's numbers."""

    paper: Paper
    name: str
    shows: str
    claim: str
    printed: str = "no numbers printed"

    @property
    def slug(self) -> str:
        """Its name among those of all papers, as in `part-2-figure-3`."""
        return f"{self.paper}-{self.name}"

    @property
    def title(self) -> str:
        """Its name as a reader knows it, as in `Figure 3`."""
        return self.name.replace("-", " ").capitalize()
