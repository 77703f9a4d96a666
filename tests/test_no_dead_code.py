"""Nothing in the package waits for somebody to need it: every function, class and method has a caller beside tests."""

import ast
import re
from pathlib import Path

import thresher

ROOT = Path(__file__).parents[1]
# For whoever asks: what computes an accelerated model, which head a folder has, work before a server's first
# request, a server for Ray.
FOR_USERS = {"acceleration_of", "read_head", "warm_up", "deployment", "classify", "rank"}
FOR_LIBRARIES = {"capture_signals", "timeout_keep_alive_handler"}  # uvicorn calls them
READABLE_TWIN = re.compile(".*_reference")  # of a kernel, which tests compare


def used_in(tree: ast.AST) -> set[str]:
    """Names that are read, attributes, and words of strings: some classes are found by their names."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(re.findall(r"\w+", node.value) if len(node.value) < 100 else ())
    return found


def test_every_definition_is_used() -> None:
    package = {file: ast.parse(file.read_text("utf-8")) for file in (ROOT / "src").rglob("*.py")}
    benchmarks = [ast.parse(file.read_text("utf-8")) for file in (ROOT / "benchmarks").rglob("*.py")]
    used = set().union(*map(used_in, (*package.values(), *benchmarks)), FOR_USERS, FOR_LIBRARIES, thresher.__all__)
    unused = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name}"
        for file, tree in package.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and node.name not in used
        and not READABLE_TWIN.fullmatch(node.name)
        and not re.fullmatch("__.*__", node.name)
    ]
    assert not unused
