"""The rooms of the package import only what the table allows, so that each can be read and changed on its own.

Every import counts: absolute or relative, inside a function, under TYPE_CHECKING, or import_module("a literal").
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "thresher"
SOURCE = Path(__file__).resolve().parents[1] / "src" / PACKAGE

OPEN_TO_ALL = {
    "config",
    "errors",
    "hardware",
    "interruption",
    "methods",
    "processes",
    "quiet",
    "records",
    "settings",
    "text",
    "workplace",
}
MAY_IMPORT: dict[str, set[str]] = {
    "config": set(),
    "errors": set(),
    "records": set(),
    "hardware": set(),
    "interruption": set(),
    "methods": set(),
    "processes": set(),
    "quiet": set(),
    "settings": set(),
    "text": set(),
    "workplace": set(),
    "tokenizing": set(),
    "core": set(),
    "models": {"core"},
    "engine": {"core", "models", "tokenizing"},
    "integrations": {"core", "models", "engine", "tokenizing"},
    "tasks": {"core", "tokenizing"},
    "training": {"core", "models", "tasks"},
    "baselines": {"core", "models", "training"},
    "exporting": {"core", "models", "engine"},
    "evaluation": {"core", "models", "engine", "exporting", "tasks", "baselines"},
    "report": set(),
    "bulk": {"core", "models", "engine"},
    "serving": {"core", "models", "engine", "tokenizing"},
    "scale": {"bulk", "serving"},
    "jobs": {
        *("core", "models", "engine", "exporting", "tasks", "training", "baselines", "evaluation", "report"),
        *("bulk", "scale", "serving"),
    },
}
MAY_IMPORT["experiments"] = set(MAY_IMPORT)  # all of the above, to measure it
ROOMS = set(MAY_IMPORT)
FRONT_DOOR = "__init__"  # thresher/__init__.py itself: the public names
MAY_IMPORT["cli"] = ROOMS | {FRONT_DOOR}
MAY_IMPORT[FRONT_DOOR] = set(ROOMS)
MAY_IMPORT["__main__"] = {"cli"}

HUGGING_FACE = {"accelerate", "datasets", "huggingface_hub", "tokenizers", "transformers"}
NEVER_IMPORTS: dict[str, set[str]] = {
    "core": HUGGING_FACE,
    "report": HUGGING_FACE | {"torch", "triton"},
    "jobs": {"typer"},
    "bulk": {"typer", "ray"},
    "serving": {"typer", "ray"},
    FRONT_DOOR: {"triton"},
}


@dataclass(frozen=True)
class Import:
    """One import: the full dotted name it asks for, its line, and whether it runs when the module is loaded."""

    target: str
    line: int
    at_load: bool


def module_name(path: Path, root: Path) -> str:
    """`root/core/gates.py` -> `thresher.core.gates`; an `__init__.py` is named like its folder."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join((PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imports_of(source: str, *, module: str, is_package: bool) -> list[Import]:
    """Every import in the source, relative ones resolved against the module's own name."""
    return list(_walk(ast.parse(source), module if is_package else module.rpartition(".")[0], at_load=True))


def _walk(node: ast.AST, package: str, *, at_load: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, node.lineno, at_load)
    elif isinstance(node, ast.ImportFrom):
        base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        start = ".".join((*base, *([node.module] if node.module else [])))
        # `from thresher import core` names a room, `from thresher.core import gates` need not: keep the full name.
        for alias in node.names:
            yield Import(f"{start}.{alias.name}", node.lineno, at_load)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = node.args[0].value
        if called in {"import_module", "__import__"} and isinstance(name, str) and not name.startswith("."):
            yield Import(name, node.lineno, at_load)

    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        at_load = False
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        at_load = False
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, package, at_load=at_load)


def room_of(name: str) -> str:
    """The room a dotted name of ours lies in; anything that is not a room belongs to the front door."""
    parts = name.split(".")
    known = ROOMS | {"cli", "__main__"}
    return parts[1] if len(parts) > 1 and parts[1] in known else FRONT_DOOR


def violations(root: Path) -> list[str]:
    """One line per broken rule, with file, line and the rule."""
    found = []
    for path in sorted(root.rglob("*.py")):
        module = module_name(path, root)
        room = FRONT_DOOR if module == PACKAGE else module.split(".")[1]
        where = path.relative_to(root).as_posix()
        if room not in MAY_IMPORT:
            found.append(f"{where}: '{room}' is in no row of the table; add it to MAY_IMPORT in tests/test_layering.py")
            continue
        allowed = MAY_IMPORT[room] | OPEN_TO_ALL | {room}
        is_package = path.name == "__init__.py"
        for item in imports_of(path.read_text(encoding="utf-8"), module=module, is_package=is_package):
            top = item.target.split(".")[0]
            place = f"{where}:{item.line}: {item.target}"
            if top != PACKAGE:
                if top in NEVER_IMPORTS.get(room, set()):
                    found.append(f"{place}: {room} never imports {top}")
                continue
            target = room_of(item.target)
            if target not in allowed:
                found.append(f"{place}: {room} may import {', '.join(sorted(allowed))}, not {target}")
            elif room == "cli" and item.at_load and target not in OPEN_TO_ALL | {"cli"}:
                found.append(f"{place}: cli imports {target} inside the command that needs it, so that --help is quick")
    return found


def test_table_has_only_rooms_that_exist() -> None:
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert set(MAY_IMPORT) == there


def test_rooms_import_only_what_the_table_allows() -> None:
    assert SOURCE.is_dir(), f"no package at {SOURCE}"
    assert violations(SOURCE) == []


def test_table_names_only_rooms_and_has_no_cycle() -> None:
    rooms = {room: allowed & ROOMS for room, allowed in MAY_IMPORT.items() if room in ROOMS}
    placed: set[str] = set()
    while len(placed) < len(rooms):
        ready = {room for room, allowed in rooms.items() if room not in placed and allowed <= placed}
        assert ready, f"the table has a cycle among {sorted(set(rooms) - placed)}"
        placed |= ready
    assert all(allowed <= ROOMS | {"cli", FRONT_DOOR} for allowed in MAY_IMPORT.values())
    assert not {room for room, allowed in MAY_IMPORT.items() if "cli" in allowed} - {"__main__"}


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("core/a.py", "from thresher.models.bert import Bert", "core may import"),
        ("core/a.py", "import thresher.models.bert as bert", "not models"),
        ("core/a.py", "from ..models import bert", "not models"),
        ("core/__init__.py", "from ..tasks.glue import load", "not tasks"),
        ("core/deep/a.py", "from ...training import trainer", "not training"),
        ("core/a.py", "from thresher import models", "not models"),
        ("core/a.py", "from .. import models", "not models"),
        ("core/a.py", "import thresher", "not __init__"),
        ("core/a.py", "from thresher import prune_", "not __init__"),
        ("core/a.py", "def f():\n    from thresher.models import bert", "a.py:2: thresher.models.bert"),
        ("core/a.py", "if TYPE_CHECKING:\n    from thresher.models import bert", "not models"),
        ("core/a.py", "import importlib\nimportlib.import_module('thresher.models')", "not models"),
        ("core/a.py", "import transformers", "core never imports transformers"),
        ("core/a.py", "from transformers.utils import logging", "core never imports transformers"),
        ("models/a.py", "from thresher.training import trainer", "not training"),
        ("models/a.py", "from thresher.tasks import glue", "not tasks"),
        ("tasks/a.py", "from thresher.models import bert", "not models"),
        ("training/a.py", "from thresher.evaluation import quality", "not evaluation"),
        ("training/a.py", "from thresher.cli import main", "not cli"),
        ("evaluation/a.py", "from thresher.jobs.rows import Rows", "not jobs"),
        ("jobs/a.py", "from thresher.cli.output import console", "not cli"),
        ("jobs/a.py", "import typer", "jobs never imports typer"),
        ("__init__.py", "from .cli import main", "not cli"),
        ("__init__.py", "import triton", "never imports triton"),
        ("config.py", "from thresher.core import gates", "not core"),
        ("report/a.py", "import torch", "report never imports torch"),
        ("cli/a.py", "from thresher.training import Trainer", "inside the command"),
        ("attic/a.py", "import os", "in no row of the table"),
        ("stray.py", "import os", "in no row of the table"),
    ],
)
def test_a_violation_is_detected(tmp_path: Path, file: str, source: str, complaint: str) -> None:
    found = violations(_write(tmp_path, file, source))
    assert len(found) == 1, found
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("core/a.py", "import torch\nfrom . import gates\nfrom .gates import hard\nfrom thresher.core import scores"),
        ("core/a.py", "from ..errors import ConfigError\nfrom thresher import config\nimport thresher.records"),
        ("core/a.py", "from thresher_extras import models"),
        ("models/a.py", "import transformers\nfrom ..core import gates"),
        ("training/a.py", "from thresher import core, models, tasks"),
        (
            "cli/a.py",
            "import typer\nfrom . import app\nfrom ..config import PruneConfig\ndef f():\n    import thresher",
        ),
        ("cli/a.py", "if TYPE_CHECKING:\n    from thresher.models import adapter"),
        ("__main__.py", "from thresher.cli import main"),
        ("__init__.py", "from importlib import import_module\nfrom .config import PruneConfig\nfrom . import models"),
    ],
)
def test_what_the_table_allows_passes(tmp_path: Path, file: str, source: str) -> None:
    assert violations(_write(tmp_path, file, source)) == []


def test_core_needs_nothing_but_torch() -> None:
    allowed = sys.stdlib_module_names | {PACKAGE, "torch"}
    for path in sorted((SOURCE / "core").rglob("*.py")):
        module = module_name(path, SOURCE)
        names = imports_of(path.read_text(encoding="utf-8"), module=module, is_package=path.name == "__init__.py")
        foreign = {item.target.split(".")[0] for item in names} - allowed
        assert not foreign, f"{path.name} imports {sorted(foreign)}; core is tensor maths on torch alone"


def _write(root: Path, file: str, source: str) -> Path:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source + "\n", encoding="utf-8")
    return root
