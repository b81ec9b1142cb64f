"""The ranges of numbers in configurations: each has a lower and an upper bound, and is finite.

Bounds are wide: they refuse what no run can have, not what is unusual. Imports no torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

# numpy and scikit-learn take no larger one.
LARGEST_SEED = 2**32 - 1
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
# Times 1,000 it is added to the seeds of the stages (`flows.config.seeded`).
RunSeed = Annotated[int, Field(ge=0, le=4_000_000)]

# Rows, pairs, prompts or answers.
Rows = Annotated[int, Field(gt=0, le=10_000_000)]
# Answers to one prompt, bootstrap resamples, clusters.
Several = Annotated[int, Field(gt=0, le=100_000)]
Steps = Annotated[int, Field(gt=0, le=1_000_000)]
# Passes over the data, or over all of a procedure.
Passes = Annotated[int, Field(gt=0, le=10_000)]
# Of one text.
Tokens = Annotated[int, Field(gt=0, le=1_048_576)]
Characters = Annotated[int, Field(gt=0, le=100_000_000)]

Share = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(ge=-1e6, le=1e6)]
LearningRate = Annotated[float, Field(gt=0, le=100)]
# Of sampling, or of similarities. Logits are divided by it.
Temperature = Annotated[float, Field(ge=1e-4, le=100)]
# Weight of a term, or another number that may be 0.
Weight = Annotated[float, Field(ge=0, le=1e6)]
# A scale, a clip or a slope. What is divided by it stays finite in float32.
Scale = Annotated[float, Field(ge=1e-6, le=1e6)]
