"""How much is held at a time where no configuration has a say: trainers keep to it, plans count it.

Numbers, not bytes. Imports no torch, as plans do not.
"""

# Gradients that ranks with torch.distributed add up in one message (64 MiB of float32).
BUCKET = 2**24
# ZeRO's own: gradients in one message, and under stage 3 parameters that are whole at a time beside
# those of the layer that is run, fetched before it or kept for the next pass.
ZERO_BUCKET = 2**27
ZERO_LIVE = 2**28
ZERO_PREFETCH = 2**25
# Parameters of fewer numbers are whole on every rank (norms).
ZERO_WHOLE = 10**5
