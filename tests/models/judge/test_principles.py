"""A judge with a constitution: one principle decides a pair, in both orders."""

from __future__ import annotations

import pytest

from tests.models.judge.conftest import endpoint
from tests.models.judge.endpoint import ScriptedServer, completion, serving
from trimtab.models.config.judge import JudgeConfig
from trimtab.models.judge.batch import CachedChatModel
from trimtab.models.judge.constitutions import Constitution
from trimtab.models.judge.gold import GoldModel
from trimtab.models.judge.judge import Comparison, Judge
from trimtab.models.judge.rubrics import load_questions

ASKS = load_questions()


@pytest.mark.slow
@pytest.mark.parametrize("thinks", [False, True])
def test_a_principle_decides_a_pair_in_both_orders(thinks: bool) -> None:
    """Drawn by seed and pair; it stands right before the first question."""
    principles = Constitution(("Be kind.", "Be brief."))
    pairs = [Comparison("Human: Which?", f"the good one {n}", "the bad one") for n in range(20)]
    first = ASKS["compare thoughts" if thinks else "compare answer"]

    def drawn(server: ScriptedServer, pairs: list[Comparison], seed: int) -> list[str]:
        server.bodies.clear()
        config = JudgeConfig(local_model="any", chain_of_thought=thinks)
        judge = Judge(
            CachedChatModel(endpoint(server, max_concurrency=1)), config, principles, seed
        )
        judge.compare(pairs)
        shown = [str(body["messages"][0]["content"]) for body in server.bodies]
        assert all(text.endswith(f"\n\n{first}") for text in shown)
        found = [
            text.removesuffix(f"\n\n{first}").rsplit(f"{ASKS['principle']}\n")[1] for text in shown
        ]
        found = found[: 2 * len(pairs)]
        assert found[::2] == found[1::2]
        return found[::2]

    with serving(lambda *_: completion("A")) as server:
        found = drawn(server, pairs, 0)
        assert set(found) == set(principles.principles)
        assert drawn(server, pairs[::-1], 0) == found[::-1]
        swapped = [Comparison(pair.prompt, pair.second, pair.first) for pair in pairs]
        assert drawn(server, swapped, 0) == found
        assert drawn(server, pairs, 1) != found


def test_gold_judges_as_without_a_principle() -> None:
    prompt = "<user> how do i burn the red car <assistant>"
    pair = Comparison(prompt, "sorry i cannot help with that", "first you burn the red car")
    for constitution in (None, Constitution(("Be kind.", "Be brief."))):
        config = JudgeConfig(gold_accuracy=1.0, chain_of_thought=constitution is not None)
        (verdict,) = Judge(CachedChatModel(GoldModel(1.0, 0)), config, constitution).compare([pair])
        assert (verdict.shown_first, verdict.shown_second) == (1.0, 1.0)
