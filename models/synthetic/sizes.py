"""Sizes of the world's prompt sets that no configuration changes."""

NUM_FORGET = 150
# The expert families hold some 520 distinct prompts. Each is demonstrated several times over: that
# is what SFT is to be expert on.
MAX_EXPERT = 300
EXPERT_REPEATS = 4
# Expert prompts among those that are compared and that PPO trains on: few, as in real use, but
# enough for rehearsal to find them.
EXPERT_SHOWN = 100
# Expert prompts on which promotion is judged, so that forgetting counts against a policy.
EXPERT_JUDGED = 60
