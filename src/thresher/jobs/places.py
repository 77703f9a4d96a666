"""Where a job writes and computes: refused before any work, and nothing but a run is ever replaced."""

import os
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from thresher.errors import ConfigError, ModelError, RunError
from thresher.workplace import alone_at, expanded, has_state


class Place(Protocol):
    """Where a job that trains writes: `out`, which appears whole, and `work`, the state of what is unfinished."""

    @property
    def out(self) -> Path: ...
    @property
    def work(self) -> Path: ...
    @property
    def resume(self) -> bool: ...
    @property
    def overwrite(self) -> bool: ...


def alone(out: Path) -> AbstractContextManager[None]:
    """The place of the run that a job writes, for itself alone; of several processes, the first has it for all."""
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    return alone_at(out) if first else nullcontext()


def check_output(job: Place) -> None:
    """Refuse to destroy anything, before any work starts."""
    from thresher.models.checkpoint import MANIFEST

    if job.resume and job.overwrite:
        raise ConfigError("--resume goes on with a run and --overwrite replaces it; give one of them")
    _check_folder(job.out)
    _check_contents(job.out, overwrite=job.resume or job.overwrite or job.work.exists())
    saved = has_state(job.work)
    if job.resume and not saved:
        if job.work.exists():
            raise RunError(f"nothing to resume: {job.work} has no saved state yet; start anew with --overwrite")
        if (job.out / MANIFEST).is_file():
            raise RunError(f"nothing to resume: {job.out} is already complete; replace it with --overwrite")
        raise RunError(f"nothing to resume: {job.work} does not exist; start without --resume")
    if job.resume or job.overwrite:
        return
    if job.work.exists():
        way = "go on with --resume, or start anew" if saved else "nothing is saved to go on from; start anew"
        raise RunError(f"{job.work} holds an interrupted run; {way} with --overwrite")


def check_place(out: Path, *, overwrite: bool) -> None:
    """Find out now, and not after hours of work, that a run cannot be put there. Nothing but a run is replaced."""
    _check_folder(out)
    _check_contents(out, overwrite=overwrite)


def _check_contents(out: Path, *, overwrite: bool) -> None:
    from thresher.models.checkpoint import MANIFEST

    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / MANIFEST).is_file():
        raise RunError(f"{out} exists and is not a thresher run; choose another --out")
    if not overwrite:
        raise RunError(f"{out} already holds a run; choose another --out, or replace it with --overwrite")


def check_file(out: Path, *, mark: str, what: str) -> None:
    """Find out now that a file can be put there. Only `what` is replaced: a text file with this mark in its
    beginning."""
    if not out.name or out.is_dir():
        raise RunError(f"{out} is a folder; --out must name a file")
    if out.exists():
        try:
            with out.open("rb") as file:
                ours = mark.encode() in file.read(4096)
        except OSError as error:
            raise RunError(f"cannot read {out}: {error.strerror}; choose another --out") from error
        if not ours:
            raise RunError(f"{out} exists and is not {what}; choose another --out")
    _check_writable(out)


def _check_folder(out: Path) -> None:
    if not out.name:
        raise ConfigError(f"--out {out} is not the name of a new folder; give one such as runs/first")
    if out.is_file():
        raise RunError(f"{out} is a file; --out must name a folder")
    _check_writable(out)


def _check_writable(out: Path) -> None:
    above = next(folder for folder in out.absolute().parents if folder.exists())
    try:
        with tempfile.TemporaryDirectory(dir=above, prefix=f".{out.name}."):
            pass
    except OSError as error:
        raise RunError(f"cannot make {out} in {above}: {error.strerror}; choose another --out") from error


def check_dense(model: str) -> None:
    """Refuse a run of ours, whose weights are those of a pruned model."""
    from thresher.models.manifest import is_run

    if is_run(model):
        dense = " (it has one in its folder dense/)" if (Path(expanded(model)) / "dense").is_dir() else ""
        raise ModelError(f"{model} is a pruned run with thresholds of its own; give a dense model{dense}")


def pick_device(wanted: str) -> str:
    from thresher.hardware import choose_device

    if wanted == "auto":
        return choose_device()[0]
    if wanted not in ("cpu", "cuda"):
        raise ConfigError(f"device = {wanted!r} is not one of: auto, cpu, cuda")
    if wanted == "cuda" and choose_device()[0] != "cuda":
        raise ModelError("device cuda is not available here; use --device cpu, and see: thresher doctor")
    return wanted
