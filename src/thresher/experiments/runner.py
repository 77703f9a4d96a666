"""Runs an experiment in chunks of a few minutes: rows whose key is in records.jsonl are not measured again."""

import json
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thresher.errors import ConfigError, DataError, RunError, ThresherError
from thresher.experiments.experiment import Experiment, Key, Row, Setting
from thresher.records import append_record, provenance, write_text

RECORDS, CONFIG = "records.jsonl", "config.toml"
MOST_ROWS = 256
Measured = Row | ThresherError | None  # a row, why there is none, or nothing where the deadline came first


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


def run(
    experiment: Experiment,
    folder: Path,
    setting: Setting,
    *,
    command: str,
    device: str = "cpu",
    parallel: int = 1,
    on_row: Callable[[Key, Row], None] = lambda key, row: None,
    on_failure: Callable[[Key, ThresherError], None] = lambda key, error: None,
) -> Progress:
    """Measure the missing rows until the deadline, `parallel` at a time; one that fails does not stop the others.
    `command` is what the records name as their origin, unless a row names its own.
    """
    file = folder / RECORDS
    done = {_key(row, experiment) for row in read_records(file)}
    missing = [key for key in experiment.keys(setting.config) if _key(key, experiment) not in done]
    if missing:
        experiment.check(setting)
    setting = replace(setting, places=threading.Semaphore(parallel))
    about = provenance(device=device, seed=None) | {"command": command}

    def measure(key: Key) -> Measured:
        if time.monotonic() >= setting.deadline:
            return None
        began = time.monotonic()
        try:
            found = experiment.measure(key, setting)
        except ThresherError as error:
            return error
        if found is None:
            return None
        seconds = round(time.monotonic() - began, 1)
        return {**about, "seed": key.get("seed"), **key, "seconds": seconds, **found}

    measured = failed = 0
    for key, row in _each(measure, missing, parallel):
        if isinstance(row, ThresherError):
            failed += 1
            on_failure(key, row)
        elif row is not None:
            append_record(file, row)
            measured += 1
            on_row(key, row)
    return Progress(measured, len(done) + measured, len(missing) - measured, failed)


def _each(measure: Callable[[Key], Measured], keys: Sequence[Key], parallel: int) -> Iterator[tuple[Key, Measured]]:
    """Rows as they come. One at a time needs no thread, and an interruption then ends the work at once."""
    if parallel == 1:
        for key in keys:
            row = measure(key)
            yield key, row
            if row is None:
                return
        return
    with ThreadPoolExecutor(MOST_ROWS) as pool:  # most of them wait for a place, or for a run that they share
        running = {pool.submit(measure, key): key for key in keys}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def read_records(file: Path) -> list[Row]:
    """All rows; a last line that an interruption left half written is taken out of the file."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole, end, half = text.rpartition("\n")
    if half:
        write_text(file, whole + end)
    try:
        return [json.loads(line) for line in whole.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise DataError(f"{file} has a line that is not JSON: {error}; restore the file from git") from error


def in_order(rows: Sequence[Row], experiment: Experiment, config: dict[str, Any]) -> list[Row]:
    """The rows that the configuration asks for, in its order, whatever order they were measured in."""
    place = {_key(key, experiment): number for number, key in enumerate(experiment.keys(config))}
    known = [row for row in rows if _key(row, experiment) in place]
    return sorted(known, key=lambda row: place[_key(row, experiment)])


def _key(row: Row, experiment: Experiment) -> tuple[Any, ...]:
    return tuple(row[name] for name in experiment.KEY)
