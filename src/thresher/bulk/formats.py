"""Which files are read and written, by their names, and what the output of each is called."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from thresher.errors import ConfigError, DataError
from thresher.workplace import expanded, path_problem

KINDS = {"jsonl": "jsonl", "ndjson": "jsonl", "csv": "csv", "tsv": "tsv", "txt": "txt", "parquet": "parquet"}
PACKINGS = ("gz", "xz", "zst")
KNOWN = "jsonl, csv, tsv, txt (each also with .gz, .xz or .zst) or parquet"
WRITTEN = ("jsonl", "csv", "tsv", "parquet")
SEPARATORS = {"csv": ",", "tsv": "\t"}


@dataclass(frozen=True)
class Format:
    """A kind of file (jsonl, csv, tsv, txt, parquet) and how it is packed (gz, xz, zst, or not)."""

    kind: str
    packing: str = ""

    def __str__(self) -> str:
        return f"{self.kind}.{self.packing}" if self.packing else self.kind


@dataclass(frozen=True)
class Shard:
    """One input file and the name of its output."""

    source: Path
    format: Format
    target: Format
    name: str


def format_of(name: str) -> Format | None:
    """What a file's name says, if it says anything."""
    words = name.lower().split(".")[1:]
    packing = words.pop() if words and words[-1] in PACKINGS else ""
    kind = KINDS.get(words[-1]) if words else None
    return None if kind is None or (kind == "parquet" and packing) else Format(kind, packing)


def read_format(word: str) -> Format:
    """What --format asks for, such as jsonl or csv.gz."""
    found = format_of(f"x.{word.lstrip('.')}")
    if found is None or found.kind not in WRITTEN:
        raise ConfigError(
            f"--format {word} is not one of: {', '.join(WRITTEN)}; .gz, .xz or .zst may follow, but not parquet"
        )
    return found


def list_inputs(given: Sequence[str | Path]) -> tuple[list[Path], list[str]]:
    """The files that paths, folders and patterns name, in order, and what was left out of folders."""
    files: list[Path] = []
    others: list[str] = []
    for word in given:
        for path in _matching(str(word)):
            if path.is_dir():
                inside = sorted(file for file in path.iterdir() if file.is_file() and file.name[0] not in "._")
                known = [file for file in inside if format_of(file.name)]
                if not known:
                    raise DataError(f"{path} has no files to score; they must be {KNOWN}")
                files += known
                others += [file.name for file in inside if not format_of(file.name)]
            else:
                files.append(path)
    for path in files:
        if format_of(path.name) is None:
            raise DataError(f"{path} has an unknown extension; it must be {KNOWN}")
    return files, others


def _matching(word: str) -> list[Path]:
    path = Path(expanded(word))
    if problem := path_problem(path):
        raise DataError(f"{word[:80]!r} cannot be a path: {problem}; give the path of a file or folder")
    if path.exists():
        return [path]
    found = sorted(glob.glob(str(path))) if glob.has_magic(word) else []
    if not found:
        raise DataError(f"{word} does not exist; give the path of a file, or of a folder of files")
    return [Path(name) for name in found]


def plan_shards(files: Sequence[Path], out: Path, *, wanted: Format | None, as_folder: bool) -> list[Shard]:
    """What is read and what is written of it. One file becomes the file `out`; several become files in it."""
    if not as_folder:
        (file,) = files
        named, read = format_of(out.name), _known(file)
        if wanted is not None and named is not None and wanted != named:
            raise ConfigError(f"--format {wanted} and the name {out.name} contradict each other; give one of them")
        target = wanted or named or _written(read)
        if target.kind == "txt":
            raise ConfigError(f"--out {out.name}: text alone has no room for results; name it .jsonl, .csv or .parquet")
        return [Shard(file, read, target, out.name)]
    found: dict[str, Shard] = {}
    for file in files:
        read = _known(file)
        target = wanted or _written(read)
        name = file.name if target == read else f"{file.name.removesuffix(_suffix(file.name))}.{target}"
        if name in found:
            raise DataError(
                f"{found[name].source} and {file} would both be written to {out / name}; give them apart, or rename one"
            )
        found[name] = Shard(file, read, target, name)
    return list(found.values())


def _known(file: Path) -> Format:
    found = format_of(file.name)
    assert found is not None  # list_inputs refuses others
    return found


def _written(read: Format) -> Format:
    return Format("jsonl", read.packing) if read.kind == "txt" else read


def _suffix(name: str) -> str:
    """The ending that names the format: .jsonl.gz of a.b.jsonl.gz."""
    parts = name.rsplit(".", 2 if name.lower().rpartition(".")[2] in PACKINGS else 1)
    return "." + ".".join(parts[1:])
