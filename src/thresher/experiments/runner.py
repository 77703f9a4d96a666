"""Runs an experiment, in one call or several: rows whose key is in records.jsonl are not measured again."""

import functools
import json
import shutil
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thresher.errors import ConfigError, DataError, RunError
from thresher.experiments.answers import ANSWERS
from thresher.experiments.experiment import Experiment, Key, Places, Row, Setting, key_of
from thresher.interruption import interruptions
from thresher.methods import with_methods_today
from thresher.records import append_record, provenance, write_text

RECORDS, CONFIG = "records.jsonl", "config.toml"
COMMAND = "thresher reproduce {} --models models --data data"  # this machine's folders say nothing
MOST_ROWS = 256
FEWER = 4  # times, when rows that failed beside others are tried again
PATIENCE = 0.3  # seconds between two looks for an interruption
Measured = Row | Exception | None  # a row, why there is none, or nothing where the deadline came first
Each = Generator[tuple["Job", Measured], None, None]


@dataclass(frozen=True)
class Progress:
    """Rows measured by this call, rows in the file, rows still to do, and those of them that failed."""

    measured: int
    recorded: int
    left: int
    failed: int = 0


def read_config(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    if not file.is_file():
        raise RunError(f"{file} does not exist; call this in the repository's root, or name its folder with --folder")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


@dataclass(frozen=True, eq=False)
class Part:
    """What a call has to do for one experiment: the rows that are missing, and how many have a record."""

    experiment: Experiment
    folder: Path
    setting: Setting
    about: Row  # what every record says of this call
    missing: list[Key]
    recorded: int
    recording: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, eq=False)
class Job:
    """A row to measure."""

    part: Part
    key: Key
    setting: Setting


def part_of(
    experiment: Experiment, folder: Path, setting: Setting, keys: Sequence[Key], *, command: str, device: str
) -> Part:
    """Of these rows those that have no record. Records name `command` as their origin, unless a row names its own."""
    done = {key_of(row, experiment.KEY) for row in read_records(folder / RECORDS)}
    read_records(folder / ANSWERS)  # half a line there would spoil the next; its row has no record, and comes again
    missing = [key for key in keys if key_of(key, experiment.KEY) not in done]
    about = provenance(device=device, seed=None) | {"command": command}
    return Part(experiment, folder, setting, about, missing, recorded=len(done))


def run(
    experiment: Experiment,
    folder: Path,
    setting: Setting,
    *,
    command: str,
    device: str = "cpu",
    parallel: int = 1,
    only: Mapping[str, Sequence[str]] | None = None,
    keep: bool = False,
    on_row: Callable[[Key, Row], None] = lambda key, row: None,
    on_failure: Callable[[Key, Exception], None] = lambda key, error: None,
) -> Progress:
    """Measure the missing rows of one experiment, as `run_together` does. `only` names the values of a key's fields
    that are wanted now; the rows that this leaves out are neither measured nor counted."""
    keys = chosen_keys(experiment.keys(setting.config), only or {})
    part = part_of(experiment, folder, setting, keys, command=command, device=device)
    if part.missing:
        experiment.check(setting)
    (progress,) = run_together(
        [part],
        parallel=parallel,
        keep=keep,
        on_row=lambda part, key, row: on_row(key, row),
        on_failure=lambda part, key, error: on_failure(key, error),
    )
    join(experiment, folder, setting.config)
    return progress


def run_together(
    parts: Sequence[Part],
    *,
    parallel: int,
    keep: bool,
    on_row: Callable[[Part, Key, Row], None],
    on_failure: Callable[[Part, Key, Exception], None],
) -> list[Progress]:
    """Measure the missing rows of all parts until the deadline, with `parallel` places for all of them, and record
    them; the answers to every test row that a row may have go into a file of their own. While places are scarce, the
    rows of the first part come first. What fails is tried again at the end with fewer beside it, as memory may have
    been short. `keep` leaves the runs that rows were measured on in the work folder."""
    trying = [(part, key) for part in parts for key in part.missing]
    measured, failed, alone = Counter[Part](), list[tuple[Part, Key]](), parallel == 1
    for count in [parallel] if alone else [parallel, max(1, parallel // FEWER)]:
        places, stopping = Places(count), threading.Event()
        jobs = [
            Job(part, key, replace(part.setting, places=places, stopping=stopping, leftovers=[], rank=rank))
            for rank, (part, key) in enumerate(trying)
        ]
        if all(job.setting.over() for job in jobs):
            break
        failed = []
        with closing(_each(functools.partial(_measured, keep=keep), jobs, stopping, alone=alone)) as each:
            for job, row in each:
                if isinstance(row, Exception):
                    failed.append((job.part, job.key))
                    on_failure(job.part, job.key, row)
                elif row is not None:
                    measured[job.part] += 1
                    on_row(job.part, job.key, row)
        trying = failed
    failures = Counter(part for part, _ in failed)
    return [
        Progress(measured[part], part.recorded + measured[part], len(part.missing) - measured[part], failures[part])
        for part in parts
    ]


def _measured(job: Job, *, keep: bool) -> Measured:
    """Whoever measures a row also records it, and only then removes its run: nothing that happens loses both."""
    part, key, own = job.part, job.key, job.setting
    if own.over():
        return None
    began = time.monotonic()
    try:
        found = part.experiment.measure(key, own)
        if found is None:
            return None
        seconds = round(time.monotonic() - began, 1)
        row = {**part.about, "seed": key.get("seed"), **key, "seconds": seconds, **found}
        answers = row.pop("answers", None)
        with part.recording:
            if answers is not None:
                append_record(part.folder / ANSWERS, {**key, **answers})
            append_record(part.folder / RECORDS, row)
    except Exception as error:  # of any kind: the other rows are not to be lost for it
        return error
    for run_folder in [] if keep else own.leftovers:
        shutil.rmtree(run_folder, ignore_errors=True)  # what cannot be removed is in nobody's way
    return row


def chosen_keys(keys: Sequence[Key], only: Mapping[str, Sequence[str]]) -> list[Key]:
    """The keys whose fields have one of the values that `only` names for them; a value that no row has is refused."""
    for name, values in only.items():
        known = {str(key[name]) for key in keys if name in key}
        if not known:
            fields = ", ".join(dict.fromkeys(field for key in keys for field in key))
            raise ConfigError(f"--only {name}=...: no row has '{name}'; rows are told apart by: {fields}")
        if unknown := [value for value in values if value not in known]:
            raise ConfigError(
                f"--only {name}={','.join(unknown)}: no row has it; there are: {', '.join(sorted(known))}"
            )
    return matching(keys, only)


def matching(keys: Sequence[Key], only: Mapping[str, Sequence[str]]) -> list[Key]:
    """The keys that have all fields that `only` names, each with one of its values."""
    return [key for key in keys if all(name in key and str(key[name]) in only[name] for name in only)]


def _each(measure: Callable[[Job], Measured], jobs: Sequence[Job], stopping: threading.Event, *, alone: bool) -> Each:
    """What is measured for every job, as it comes: of one at a time, or of as many as there are places."""
    with interruptions(at_once=alone) as interrupted:
        each = _one_by_one(measure, jobs) if alone else _in_threads(measure, jobs, stopping, interrupted)
        with closing(each):
            yield from each


def _one_by_one(measure: Callable[[Job], Measured], jobs: Sequence[Job]) -> Each:
    """Without a thread, so that an interruption ends the work at once."""
    for job in jobs:
        row = measure(job)
        yield job, row
        if row is None:
            return


def _in_threads(
    measure: Callable[[Job], Measured], jobs: Sequence[Job], stopping: threading.Event, interrupted: Callable[[], bool]
) -> Each:
    """Rows as they come. Whatever ends this also ends what still runs."""
    with ThreadPoolExecutor(MOST_ROWS) as pool:  # most of them wait for a place, or for a run that they share
        try:
            running = {pool.submit(measure, job): job for job in jobs}
            while running:
                for future in wait(running, timeout=PATIENCE, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
                if interrupted():
                    raise KeyboardInterrupt
        finally:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)


def publish_recorded(experiment: Experiment, folder: Path, config: dict[str, Any]) -> list[Path]:
    """Tables and figures of what is recorded, where anything is; returns what was written."""
    rows = in_order(read_records(folder / RECORDS), experiment, config)
    return experiment.publish(rows, folder, config) if rows else []


def join(experiment: Experiment, folder: Path, config: dict[str, Any]) -> None:
    """Where an experiment's rows gain what other rows have measured, record them again with it. It says which ones in
    its function `joined`, if it has one; the last row of a key counts."""
    joined: Callable[[Path, dict[str, Any]], list[Row]] = getattr(experiment, "joined", lambda folder, config: [])
    for row in joined(folder, config):
        append_record(folder / RECORDS, row)


def read_records(file: Path) -> list[Row]:
    """All rows, with the present names of methods; a last line that an interruption left half written is taken out."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole, end, half = text.rpartition("\n")
    if half:
        write_text(file, whole + end)
    try:
        rows = [json.loads(line) for line in whole.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise DataError(f"{file} has a line that is not JSON: {error}; restore the file from git") from error
    return [with_methods_today(row, "method", "variant") for row in rows]


def in_order(rows: Sequence[Row], experiment: Experiment, config: dict[str, Any]) -> list[Row]:
    """The rows that the configuration asks for, in its order; the last of those with one key."""
    last = {key_of(row, experiment.KEY): row for row in rows}
    wanted = [key_of(key, experiment.KEY) for key in experiment.keys(config)]
    return [last[key] for key in wanted if key in last]
