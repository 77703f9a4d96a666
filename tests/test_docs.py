"""The documentation says what the code does: settings are generated, links work. test_examples.py runs the examples."""

import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from thresher.config import PruneConfig, TrainConfig

ROOT = Path(__file__).parents[1]
ROOMS = ("docs", "experiments", "benchmarks")


def settings_table() -> str:
    """Every setting with its default and help, straight from the configuration classes."""
    lines = []
    for table, kind in (("prune", PruneConfig), ("train", TrainConfig)):
        lines += [f"| `[{table}]` | default | |", "|---|---|---|"]
        for item in fields(kind):
            default = list(item.default) if isinstance(item.default, tuple) else item.default
            lines.append(f"| `{item.name}` | `{default}` | {item.metadata['help']} |")
        lines.append("")
    return "\n".join(lines).strip()


def test_settings_in_the_docs_are_the_settings_in_the_code() -> None:
    """To write the table anew: THRESHER_WRITE_DOCS=1 python -m pytest tests/test_docs.py"""
    file = ROOT / "docs" / "method.md"
    before, _, rest = file.read_text(encoding="utf-8").partition("<!-- settings -->\n")
    found, mark, after = rest.partition("\n<!-- end -->")
    if os.environ.get("THRESHER_WRITE_DOCS"):
        file.write_text(f"{before}<!-- settings -->\n{settings_table()}\n<!-- end -->{after}", encoding="utf-8")
        return
    assert mark and found.strip() == settings_table()


def anchors(page: Path) -> set[str]:
    """What links into a page may name: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(page for room in ROOMS for page in (ROOT / room).rglob("*.md"))):
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            if link.startswith("http"):
                continue
            target, _, heading = link.partition("#")
            place = page.parent / target if target else page
            assert place.exists(), f"{page.name}: {link}"
            assert not heading or heading in anchors(place), f"{page.name}: {link} names no heading there"


def test_lines_of_pages_can_be_read() -> None:
    """Tables are as wide as they are, and so is code in a sentence that would break."""
    for page in sorted(ROOT.glob("*.md")) + sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.md")):
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
            assert len(line) <= 100 or line.startswith("|") or len(prose) <= 60, f"{page.name}:{number} is too long"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_what_you_get_and_a_command(page: Path) -> None:
    opening = page.read_text(encoding="utf-8").split("\n## ")[0].splitlines()[:14]
    assert any("what you get" in line.lower() for line in opening[:5]), "nobody knows yet why to read on"
    code = any(line.startswith(("```", "    ")) for line in opening)
    assert code or page.name == "README.md", "a page begins with something to type"
