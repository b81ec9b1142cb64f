"""Readers: from files, folders and the hub to raw rows with their place, one at a time."""

import importlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from trimtab.models.data.files import KINDS, SUFFIXES, RawRow, SourceError, read_file
from trimtab.models.data.problems import shorten

HUB_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?(/[\w./-]+)?(:[\w.-]+)?")
# A copy that `datasets` keeps of a changed data set.
CACHE: Final = re.compile(r"cache-[0-9a-f]{16}\S*\.arrow")
# What `datasets.save_to_disk` and the hub write beside the data.
METADATA: Final = frozenset(
    {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where preference rows come from.

    path: a file of a kind in `files.KINDS`, a folder of them (one that `datasets.save_to_disk`
    wrote too), or a hub data set `owner/name[/folder][:config]`, of which the split "train" is
    read. category: for rows that have none. name: what messages and records call the source instead
    of its path; give one where the path is temporary, so that results do not depend on it. format,
    columns: how its rows are written (`trimtab.models.data.presets`).
    """

    path: str
    category: str | None = None
    name: str | None = None
    format: str = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name for people, always printable as UTF-8; unique in a list of sources."""
        return _printable(self.name or self.path)


def read_source(source: Source, ignored_files: list[str]) -> Iterator[RawRow]:
    """Yield the rows of a source; names of skipped files are added to `ignored_files`.

    Raises SourceError.
    """
    path, label = Path(source.path), source.label
    if source.path and path.is_dir():  # Path("") would be the current folder
        for file in _files_of_folder(path, source, ignored_files):
            yield from read_file(file, _name_in_folder(file, source))
    elif source.path and path.exists():
        yield from read_file(path, label)
    elif looks_like_hub_id(source.path):
        yield from _read_hub(source)
    else:
        allowed = "an existing file or folder, or a hub id owner/name[/folder][:config]"
        raise SourceError(label, 0, "missing_source", repr(source.path), allowed)


def _printable(path: str | Path) -> str:
    """Return a path as text that UTF-8 can hold, which file names need not be."""
    return os.fsencode(path).decode("utf-8", "replace")


def _name_in_folder(file: Path, source: Source) -> str:
    return f"{source.label.rstrip('/')}/{_printable(file.relative_to(source.path))}"


def looks_like_hub_id(path: str) -> bool:
    """Whether what is no file or folder here may be a data set of the hub."""
    is_local = path.startswith((".", "~")) or path.lower().endswith(SUFFIXES)
    return not is_local and HUB_ID.fullmatch(path) is not None


def _files_of_folder(folder: Path, source: Source, ignored_files: list[str]) -> list[Path]:
    """Return the folder's data files in order of name."""
    data: list[Path] = []
    others: list[Path] = []
    for file in sorted(_walk(folder)):
        is_data = file.is_file() and file.name.lower().endswith(SUFFIXES) and file.name[0] != "."
        is_data &= file.name not in METADATA and not CACHE.fullmatch(file.name)
        (data if is_data else others).append(file)
    ignored_files.extend(_name_in_folder(file, source) for file in others)
    if not data:
        names = shorten([file.name for file in others])
        raise SourceError(source.label, 0, "missing_source", names, KINDS)
    return data


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files below, and hidden folders (.git, .cache) as one entry each."""
    for place, folders, files in os.walk(folder):
        hidden = [name for name in folders if name.startswith(".")]
        yield from (Path(place, name) for name in files + hidden)
        folders[:] = [name for name in folders if name not in hidden]


def _read_hub(source: Source) -> Iterator[RawRow]:
    datasets = importlib.import_module("datasets")
    address, _, config = source.path.partition(":")
    owner_and_name, folder = "/".join(address.split("/")[:2]), "/".join(address.split("/")[2:])
    try:
        rows = datasets.load_dataset(
            owner_and_name, name=config or None, data_dir=folder or None, split="train"
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        shown = f"{shorten(source.path)} ({type(error).__name__}: {str(error)[:300]})"
        allowed = "an existing file or folder, or a data set of the hub that can be reached"
        raise SourceError(source.label, 0, "missing_source", shown, allowed) from error
    for number, row in enumerate(rows, start=1):
        yield RawRow(source.label, number, row, dict(row))
