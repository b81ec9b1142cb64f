"""The tables and figures of the papers: `@exhibit` on the function that reads one from runs.

[RM] Secrets of RLHF Part II, arXiv 2401.06080. [PPO] Secrets of RLHF Part I, arXiv 2307.04964.
[AM] Stabilizing RLHF through Advantage Model and Selective Rehearsal, arXiv 2309.10202.
[RLAIF] RLAIF vs. RLHF, arXiv 2309.00267. [DPO] Direct Preference Optimization, arXiv 2305.18290.

The decorator, or a swept constant's row in CONSTANTS, is the one place that declares an exhibit; it
names the function of `flows/studies` that submits what the exhibit is read from. The stage `study`
imports the functions and takes them from READERS. Flows need every declaration, for Prefect's form,
the command line and the arms, and load no torch, which all these modules do
(`reporting.kit.artifacts` holds tensors). EXHIBITS are therefore read from the source of the
functions, as the code's version is read from its import statements.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from trimtab.models.studies import variants
from trimtab.models.studies.results import SeedResult
from trimtab.models.studies.variants import CONSTANTS

TITLES = {
    "part-1": "Secrets of RLHF Part I: PPO",
    "part-2": "Secrets of RLHF Part II: reward modeling",
    "advantage-model": "Stabilizing RLHF: Advantage Model and selective rehearsal",
    "human-votes": "Preference strength against people's votes",
    "rlaif": "RLAIF: how good a judge has to be",
    "methods": "Ways to optimise a policy, each at several strengths",
    "constants": "Constants, and what other values come to",
}
Remark = Callable[[Sequence[SeedResult]], str]
ReadT = TypeVar("ReadT", bound=Callable[..., SeedResult])


@dataclass(frozen=True)
class Exhibit:
    """A table, figure or swept constant: what it shows, the claim, and the paper's numbers.

    arms: the function of `flows/studies` that submits what it is read from. varied: what that
    function is handed, such as variants; None: nothing. in_world: whether the arms need the
    synthetic world.
    """

    paper: str
    name: str
    shows: str
    claim: str
    printed: str = "no numbers printed"
    arms: str = field(default="", compare=False)
    varied: Any = field(default=None, compare=False)
    in_world: bool = field(default=False, compare=False)

    @property
    def slug(self) -> str:
        """The name among those of all papers, as in `part-2-figure-3`."""
        return f"{self.paper}-{self.name}"

    @property
    def title(self) -> str:
        """The name as readers know it, as in `Figure 3`."""
        return self.name.replace("-", " ").capitalize()

    @property
    def description(self) -> dict[str, str]:
        """The fields that a scorecard holds."""
        names = ("paper", "name", "shows", "claim", "printed")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Reader:
    """The function from one seed's `Artifacts` to its result, and a sentence about all seeds."""

    read: Callable[[Any], SeedResult]
    remark: Remark | None = None


# By the exhibit's slug, those of the modules imported so far.
READERS: dict[str, Reader] = {}


def exhibits_in(paper: str) -> Callable[..., Callable[[ReadT], ReadT]]:
    """The decorator `exhibit` of the functions that read the exhibits of one paper.

    An exhibit is called as the function is, and shows what the first paragraph of its docstring
    says. The decorator's arguments are `remark` and those of `Exhibit`, literals or
    `variants.<NAME>`.
    """

    def exhibit(*, remark: Remark | None = None, **_fields: object) -> Callable[[ReadT], ReadT]:
        def register(read: ReadT) -> ReadT:
            READERS[f"{paper}-{_dashed(read.__name__)}"] = Reader(read, remark)
            return read

        return register

    return exhibit


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _declarations(source: str) -> Iterator[Exhibit]:
    """The exhibits that a module's functions read, in order; `exhibit` is their only decorator."""
    paper = ""
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(value=ast.Call(ast.Name("exhibits_in"), [name])):
                paper = ast.literal_eval(name)
            case ast.FunctionDef(decorator_list=[ast.Call(ast.Name("exhibit")) as call]):
                shows, *_ = (ast.get_docstring(node) or "").split("\n\n")
                shows = shows.replace("\n", " ").removesuffix(".")
                fields = {str(k.arg): _value(k.value) for k in call.keywords if k.arg != "remark"}
                yield Exhibit(paper, _dashed(node.name), shows, **fields)


def _value(node: ast.expr) -> Any:
    """A literal, or what `variants.py` has of that name."""
    if isinstance(node, ast.Attribute):
        return getattr(variants, node.attr)
    return ast.literal_eval(node)


AS_GOOD_AS_ANY = "The recipe's value is as good as any, on validation data"
_DECLARED = [
    declared
    for path in sorted(Path(__file__).parent.glob("*.py"))
    for declared in _declarations(path.read_text("utf-8"))
] + [
    Exhibit("constants", key, c.words, AS_GOOD_AS_ANY, c.printed, "sweep", key, c.in_world)
    for key, c in CONSTANTS.items()
]
EXHIBITS = tuple(declared for paper in TITLES for declared in _DECLARED if declared.paper == paper)


def _names() -> list[str]:
    """The names of all exhibits: figures and tables by number, then the others as declared."""

    def order(name: str) -> tuple[bool, str, int]:
        kind, _, number = name.rpartition("-")
        return (False, kind, int(number)) if number.isdigit() else (True, "", 0)

    return sorted(dict.fromkeys(declared.name for declared in EXHIBITS), key=order)


# For a form: one of these names.
Paper = Annotated[str, Field(json_schema_extra={"enum": [*TITLES]})]
ExhibitName = Annotated[str, Field(json_schema_extra={"enum": ["all", *_names()]})]


def exhibits_of(paper: str, name: str) -> list[Exhibit]:
    """The exhibit of a name, or `all` of a paper; empty where the paper has none of that name."""
    return [e for e in EXHIBITS if e.paper == paper and name in ("all", e.name)]
