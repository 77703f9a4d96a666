"""Where a run that is not finished keeps its state: beside the folder that appears when it is complete."""

from pathlib import Path

SAVED = ("state", "study.journal")  # what an interrupted `prune` and an interrupted `search` leave behind


def work_of(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def has_state(work: Path) -> bool:
    """Whether there is something to go on from."""
    return any((work / name).exists() for name in SAVED)
