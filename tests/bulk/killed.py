"""A program that ends like kill -9 at every moment at which it touches the disk, one after the other, and goes on.

    python killed.py MODEL IN OUT

A forked child works until its disk call number N and is gone, without any cleaning up; then the next child does, with
N + 1, from what the first left behind or from nothing; last, one goes on to the end. Prints how many moments there
were, and each one after which the output differs from the uninterrupted one.
"""

import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thresher import records
from thresher.engine.engine import Engine
from thresher.jobs.score import score_files
from thresher.workplace import work_of

CALLS = ("replace", "fsync", "unlink", "rmdir")
GONE = 9


def child(work: Callable[[], object], last: int | None) -> int:
    """The exit code of a process that does the work, or is gone at its disk call number `last`."""
    pid = os.fork()
    if pid == 0:
        try:
            if last is not None:
                end_at(last)
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def end_at(last: int) -> None:
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == last:
                os._exit(GONE)
            return call(*args, **options)

        return run

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def digest(out: Path) -> str:
    files = sorted(out.rglob("*")) if out.is_dir() else [out]
    found = hashlib.sha256()
    for file in files:
        found.update(file.name.encode() + file.read_bytes())
    return found.hexdigest()


def clean(out: Path) -> None:
    for path in (out, work_of(out), out.with_name(out.name + ".manifest.json")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def main(model: str, source: str, out: Path) -> None:
    # Loading writes nothing to the disk, nor does Git: children have their parent's engine, and know its commit.
    Engine.load = staticmethod(functools.cache(Engine.load))  # type: ignore[method-assign]
    records.commit = functools.cache(records.commit)

    def work() -> None:
        score_files(model, inputs=source, out=out, part_rows=20, device="cpu", dtype="fp32")

    work()  # here, so that every child finds the libraries loaded
    expected, there = digest(out), sorted(path.name for path in out.parent.iterdir())
    clean(out)
    moments, wrong = 0, []
    while (code := child(work, moments + 1)) == GONE:
        moments += 1
        if moments % 5 == 0:  # and now and then another end soon after it
            child(work, 3)
        if child(work, None) != 0 or digest(out) != expected:
            wrong.append(moments)
        elif sorted(path.name for path in out.parent.iterdir()) != there:
            wrong.append(-moments)
        clean(out)
    print(json.dumps({"moments": moments, "wrong": wrong, "code": code}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
