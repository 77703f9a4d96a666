"""Families are known by name in one room only: whoever adds one adds its file and a line in the registry."""

import ast
from pathlib import Path

import pytest

import thresher
from thresher.models.registry import FAMILIES, NEAREST, family_named, supported_types

PACKAGE = Path(thresher.__file__).parent


def test_nothing_outside_models_knows_a_family_by_name() -> None:
    names, found = set(supported_types()), []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent == PACKAGE / "models":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in names:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {node.value}")
    assert not found


@pytest.mark.parametrize("name", sorted(NEAREST))
def test_what_is_near_is_supported_and_the_other_is_not(name: str) -> None:
    assert name not in supported_types()
    assert any(kind in NEAREST[name] for kind in supported_types())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model_types[0])
def test_every_type_has_one_family(family: object) -> None:
    assert [kind for kind in supported_types() if family_named(kind) is family] == list(family.model_types)  # type: ignore[attr-defined]
    assert len(set(supported_types())) == len(supported_types())
