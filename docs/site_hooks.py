"""Hooks of mkdocs: pages that are made when the site is built, and links to files of the root.

`CONTRIBUTING.md`, `CHANGELOG.md` and `SECURITY.md` are pages of the site too, and so is every
notebook, with its outputs. reference/settings.md is made of the configuration's own descriptions,
reference/api.md and reference/functional.md of docstrings, which are read and not imported.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import trimtab
from trimtab.flows.cli.fields import Setting, settings_of
from trimtab.flows.config.config import RunConfig
from trimtab.flows.config.paths import section_of

ROOT = Path(__file__).parents[1]
ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
TRL = "trimtab.models.training.trl_reward"
WIDTH = 96
Definition = ast.FunctionDef | ast.ClassDef
SETTINGS = """# All settings

Every field of a recipe, by path, with the default of the configuration. Recipes set values of their
own, which `trimtab fields WORD --recipe RECIPE` and `trimtab run RECIPE --print-config` print. A
section whose default is `null` is off.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    made = {"settings": settings_page, "api": api_page, "functional": functional_page}
    for name, page in made.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    for path in NOTEBOOKS:
        files.append(File.generated(config, _page_of(path), content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to pages of the root lead to their place in the site, and to notebooks' pages."""
    if page.file.src_uri not in {_page_of(path) for path in NOTEBOOKS}:
        markdown = re.sub(r"\]\(([^)]+)\.ipynb\)", r"](\1.md)", markdown)
    to_root = "../" * page.file.src_uri.count("/")
    return re.sub(rf"\]\((?:\.\./)+({'|'.join(ROOT_PAGES)})", rf"]({to_root}\1", markdown)


def _page_of(notebook: Path) -> str:
    return notebook.relative_to(ROOT / "docs").with_suffix(".md").as_posix()


def notebook_page(path: Path) -> str:
    """A notebook in Markdown: its texts, code and outputs, and where to get it."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
        else:
            parts += [f"```python\n{text}\n```", *map(_output, cell["outputs"])]
    return "\n\n".join([*parts, f"[The notebook]({path.name}), to run it."])


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        image = "".join(data["image/png"].split())
        return (
            f'<img alt="the figure that the code above draws" src="data:image/png;base64,{image}">'
        )
    if "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()
        body = "\n".join(line.strip() for line in lines if line.strip())  # no empty line: Markdown
        return f"<div>\n{body.removesuffix('<p>')}\n</div>"  # transformers leaves its <p> open
    return f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def settings_page() -> str:
    """All settings in Markdown, a section for each of the configuration's."""
    settings = settings_of(RunConfig)
    parts = [SETTINGS, _table([setting for setting in settings if "." not in setting.path])]
    for name, field in RunConfig.model_fields.items():
        section = section_of(field)
        if section:
            table = _table([s for s in settings if s.path.startswith(f"{name}.")])
            parts.append(f"## {name}\n\n{_cell(section.__doc__)}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def api_page() -> str:
    """What `import trimtab` gives, from the docstrings: calls, results, methods."""
    parts = ["# Python API\n\n[From Python](python.md) shows it at work."]
    for module, names in trimtab._MODULES.items():
        definitions = _definitions(module)
        for name in names:
            parts += _described(definitions, name, "##", f"trimtab.{name}")
    parts += [
        "## trimtab.trl",
        *_described(_definitions(TRL), "RewardConfig", "###", "RewardConfig"),
    ]
    parts += _described(_definitions(TRL), "RewardTrainer", "###", "RewardTrainer")
    return "\n\n".join(parts) + "\n"


def functional_page() -> str:
    """Every function of `trimtab.functional`, a section for each module."""
    parts = ["# Formulas\n\n`from trimtab import functional`: functions of torch tensors."]
    for path in sorted((ROOT / "models" / "functional").glob("[a-z]*.py")):
        module = ast.parse(path.read_text("utf-8"))
        parts.append(f"## {path.stem}\n\n{_prose(ast.get_docstring(module))}")
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                parts += _described({node.name: node}, node.name, "###", node.name)
    return "\n\n".join(parts) + "\n"


def _definitions(module: str) -> dict[str, Definition]:
    """The functions and classes of a module, by name."""
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text("utf-8")).body
    return {node.name: node for node in body if isinstance(node, Definition)}


def _described(
    definitions: dict[str, Definition], name: str, heading: str, title: str
) -> Iterator[str]:
    """Heading, signature and docstring; of a class its public members too, with inherited ones."""
    node = definitions[name]
    yield f"{heading} {title}"
    if not isinstance(node, ast.ClassDef):
        yield f"```python\n{_signature(node)}\n```"
        yield _prose(ast.get_docstring(node))
        return
    yield _prose(ast.get_docstring(node))
    if fields := list(_settings(node)):
        yield "\n".join(fields)
    members: dict[str, ast.FunctionDef] = {}
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    for parent in [*(definitions[base] for base in bases if base in definitions), node]:
        if isinstance(parent, ast.ClassDef):
            members |= {m.name: m for m in parent.body if isinstance(m, ast.FunctionDef)}
    for member in members.values():
        if not member.name.startswith("_") or member.name == "__call__":
            yield from _described({member.name: member}, member.name, f"{heading}#", member.name)


def _settings(node: ast.ClassDef) -> Iterator[str]:
    """The fields of a class that say what they are."""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
            default, about = map(ast.unparse, field.value.args)
            name = f"{ast.unparse(field.target)}: {ast.unparse(field.annotation)} = {default}"
            yield f"- `{name}`: {ast.literal_eval(about)}"


def _signature(node: ast.FunctionDef) -> str:
    """As it is called: a property by its name and type, all others with their arguments."""
    kinds = {getattr(decorator, "id", "") for decorator in node.decorator_list}
    returns = ast.unparse(node.returns) if node.returns else "None"
    if kinds & {"property", "cached_property"}:
        return f"{node.name}: {returns}"
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ")
    arguments = "" if arguments in ("self", "cls") else arguments
    text = f"{node.name}({arguments}) -> {returns}"
    if len(text) <= WIDTH:
        return text
    one_a_line = re.sub(r", (?![^\[(]*[\])])", ",\n    ", arguments)
    return f"{node.name}(\n    {one_a_line},\n) -> {returns}"


def _prose(text: str | None) -> str:
    """A docstring as Markdown: examples in a block, a list of what begins a line with its name."""
    text = re.sub(r"((?:^>>> .*\n?)+)", r"```python\n\1```\n", text or "", flags=re.MULTILINE)
    text = re.sub(r"^>>> ", "", text, flags=re.MULTILINE)
    return re.sub(r"^([a-z_]+(?:, [a-z_]+)*): ", r"\n- `\1`: ", text, flags=re.MULTILINE)


def _table(settings: Sequence[Setting]) -> str:
    rows = [
        f"| `{setting.path}` | `{_cell(setting.default)}` | {_cell(setting.allowed)} | "
        f"{_cell(setting.description)} |"
        for setting in settings
    ]
    head = ["| setting | default | allowed | |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")
