"""`trimtab recipes`: what there is to run, what it takes, and how long it took on two cores."""

from __future__ import annotations

from trimtab.flows.checks import uncounted_plan
from trimtab.flows.recipes import MACHINES, ONLY_FLOW, RECIPES
from trimtab.infra.settings import Settings
from trimtab.models.estimates.machine import GIB

# Minutes, rounded up, of `trimtab run RECIPE` on two x86-64 cores without GPU; of people's data
# as many pairs as the recipe takes (docs/explanation/results.md), for `audit` 5,000. Others have
# not been timed.
MINUTES = {
    "smoke": 1,
    "default": 5,
    "papers": 10,
    "rlaif": 5,
    "constitutional": 5,
    "audit": 1,
    "hh-smollm2": 86,
}


def recipes_text(settings: Settings) -> str:
    """A line for each recipe, under headings."""
    lines = [("recipe", "memory", "two cores", "")]
    for name, make in RECIPES.items():
        config = make()
        about = (make.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        if (machine := MACHINES.get(name)) is not None:
            memory = f"{machine.num_devices} x {machine.memory / GIB:.0f} GiB"
        else:
            plan = uncounted_plan(config, ONLY_FLOW.get(name, "rlhf"), settings)
            memory = f"{max(map(plan.needed, plan.rows)) / GIB:.1f} GiB" if plan else "?"
        minutes = MINUTES.get(name)
        lines.append((name, memory, f"{minutes} min" if minutes else "not timed", about))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]
        )
        for line in lines
    )
