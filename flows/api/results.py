"""What the calls of `trimtab` return: numbers, files, a page to show, a table for notebooks."""

from __future__ import annotations

import html
import json
import sys
import webbrowser
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.flows.api.process import name_arguments
from trimtab.flows.cli.export import export
from trimtab.flows.config.errors import ConfigError
from trimtab.infra.settings import Settings
from trimtab.models.reporting.kit.html import new_environment
from trimtab.models.statistics.measured import Estimate

if TYPE_CHECKING:
    import pandas

    from trimtab.models.training.reward_function import RewardModel

HEIGHT = 800  # pixels of a page in a notebook


@dataclass(frozen=True)
class RunResult:
    """A finished run: its name, its numbers, its report.

    name: as `trimtab report` lists it. folder: of its report.
    """

    name: str
    folder: Path

    @cached_property
    def scorecard(self) -> dict[str, Any]:
        """Every number of the report, as `scorecard.json` holds it."""
        card: dict[str, Any] = json.loads((self.folder / "scorecard.json").read_text("utf-8"))
        return card

    @property
    def report(self) -> Path:
        """The report, one HTML file."""
        return self.folder / "report.html"

    @property
    def page(self) -> Path:
        """The page that `show` shows."""
        return self.report

    @property
    def verdict(self) -> str:
        """The run's answer in a sentence; empty for a comparison of methods, which has none."""
        return str(self.scorecard.get("verdict", {}).get("sentence", ""))

    @property
    def summary(self) -> str:
        """The verdict, what it stands on, and warnings: the text that the command ends with."""
        return "\n".join([*self._answer(), *self._warnings()])

    def _answer(self) -> list[str]:
        verdict = self.scorecard.get("verdict", {})
        return list(filter(None, [self.verdict, *verdict.get("details", ())]))

    def _warnings(self) -> list[str]:
        return [f"Warning: {warning}" for warning in self.scorecard.get("warnings", ())]

    def show(self) -> Path:
        """Open the page in a browser, or in a notebook below the cell; its path."""
        if not _is_notebook():
            webbrowser.open(self.page.as_uri())
            return self.page
        from IPython.display import HTML, display

        text = html.escape(self.page.read_text("utf-8"))
        # Apart from the notebook's own page: no script of the one reaches the other.
        kept = 'sandbox="allow-scripts allow-downloads allow-popups"'
        frame = f'<iframe srcdoc="{text}" {kept} width="100%" height="{HEIGHT}"></iframe>'
        display(HTML(f"<div>{frame}</div>"))  # IPython warns of a frame by itself
        return self.page

    def export(self, role: str, to: str | Path, *, push: str | None = None) -> Path:
        """Write a model or the pairs to a new folder, as `trimtab export` does; the folder.

        role: policy, reward_model, advantage_model, ensemble, pairs, or another role of the run.
        push: a repository of the Hub to upload it to as well, private. Raises ConfigError for an
        unknown role and a folder with files, CommandError where it cannot be written.
        """
        try:
            return export(self.name, role, Path(to), push, Settings.from_env())
        except ConfigError as error:
            raise ConfigError(name_arguments(str(error))) from error

    def __repr__(self) -> str:
        try:
            summary = self.summary
        except OSError as error:  # somebody removed the report
            summary = f"no report: {error}"
        return f"<{type(self).__name__} {self.name}>\n{summary}"

    def _rows(self) -> list[tuple[str, str]]:
        """Of the table that a notebook shows."""
        return [(claim["status"], claim["statement"]) for claim in self.scorecard.get("claims", ())]

    def _repr_html_(self) -> str:
        """The answer, a small table, warnings, and where the page is."""
        first, *details = self._answer() or [self.name]
        template = new_environment().get_template("notebook.html.j2")
        lines = [*details, *self._warnings()]
        return template.render(title=first, rows=self._rows(), lines=lines, page=self.page)


@dataclass(frozen=True, repr=False, eq=False)
class AuditResult(RunResult):
    """What an audit says of the labels.

    numbers: as `trimtab audit --json` prints them, such as `num_looks_wrong` and `share_wrong`.
    """

    numbers: Mapping[str, Any]

    @property
    def page(self) -> Path:
        """The page to look through the labels."""
        return self.folder / "audit.html"

    @property
    def pairs(self) -> Path:
        """The annotated pairs, audited.parquet."""
        return self.folder / "audited.parquet"

    def to_pandas(self) -> pandas.DataFrame:
        """The annotated pairs, a row each.

        `mean preference difference` is the log-odds that the label is as given: below 0 it looks
        wrong. `differences` has what each voter says.
        """
        import pandas

        return pandas.read_parquet(self.pairs)

    def _rows(self) -> list[tuple[str, str]]:
        numbers = self.numbers
        count, wrong = int(numbers["num_pairs"]), int(numbers["num_looks_wrong"])
        rows = [("labels", f"{count:,}"), ("look wrong", f"{wrong:,} ({wrong / count:.1%})")]
        shares = {"share_wrong": "wrong, estimated", "self_test_recall": "found by the self-test"}
        for name, words in shares.items():
            if name in numbers:
                low, high = numbers[f"{name}_low"], numbers[f"{name}_high"]
                rows.append((words, f"{numbers[name]:.1%} [{low:.1%}, {high:.1%}]"))
        if refused := numbers.get("rows", {}).get("refused"):
            rows.append(("rows refused", f"{refused:,}"))
        return rows


@dataclass(frozen=True, repr=False)
class RewardResult(RunResult):
    """A trained reward model.

    model: its folder, for `RewardModel.load`, transformers and TRL. accuracy: agreement with the
    labels of pairs that it was not trained on. calibration_error: expected calibration error on
    them, 10 bins of equal width. Both None where no pair was held out.
    """

    model: Path
    accuracy: Estimate | None
    calibration_error: Estimate | None
    num_trained_pairs: int

    def load(self) -> RewardModel:
        """The reward model, as `RewardModel.load` of its folder."""
        from trimtab.models.training.reward_function import RewardModel

        return RewardModel.load(self.model)

    def _answer(self) -> list[str]:
        accuracy = f"accuracy {self.accuracy}, " if self.accuracy else ""
        pairs = f"trained on {self.num_trained_pairs:,} pairs"
        return [f"Reward model: {accuracy}{pairs}: {self.model}", *super()._answer()]

    def _rows(self) -> list[tuple[str, str]]:
        measures = {
            "accuracy": self.accuracy,
            "calibration error": self.calibration_error,
        }
        measured = [(name, value) for name, value in measures.items() if value is not None]
        return [(name, f"{value} on {value.count:,} test pairs") for name, value in measured]


def _is_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None
