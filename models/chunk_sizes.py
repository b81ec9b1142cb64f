"""How much is computed or sent at a time, where no setting decides it; plans count with it too.

Imports no torch, as plans do not.
"""

# Most tokens in one pass without gradient.
PASS_TOKENS = 8192
# Most tokens of key-value cache in generation.
CACHE_TOKENS = 32_768
# On a GPU as many as so large a share of the memory holds that is free at the time, but at most:
# tokens in one pass, each of which takes what a layer of 13 billion parameters has of it (float32,
# in bytes, rounded up); rows in generation.
GPU_PASS_TOKENS = 32_768
TOKEN_BYTES = 2**18
GPU_DECODING_ROWS = 512
FREE_SHARE = 0.5
# Vocabulary-wide rows a response has where a token is drawn: logits, these over temperature,
# probabilities, sorted values, their int64 places (two), cumulative sum, that without the value.
SAMPLING_ROWS = 8
# Most requests that a local judge answers in one batch.
REQUESTS_AT_ONCE = 64
# Most logits where log-probabilities are taken (a GiB): more are computed in turns, and again for
# the gradient. Probabilities and then the gradient take their place.
LOGITS_AT_ONCE = 2**28
# Numbers that ranks with torch.distributed add up in one message (64 MiB).
BUCKET = 2**24
# ZeRO's own: numbers of gradients in one message; under stage 3 of parameters that are whole at a
# time, kept for the next pass or fetched before they are needed. Smaller ones, norms, always are.
ZERO_BUCKET = 2**27
ZERO_LIVE = 2**28
ZERO_PREFETCH = 2**25
ZERO_WHOLE = 10**5
