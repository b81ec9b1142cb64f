"""What every Python of the tests does as it starts: fewer searches for garbage.

Prefect, MLflow and torch leave a third of a million objects that live as long as a process: with
Python's own thresholds a fifth of the time that their imports take is spent looking through them.
"""

import gc

gc.set_threshold(50_000, 10, 10)
