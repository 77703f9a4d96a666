"""A crew of Ray actors, one engine in each. They get rows and give back parts; files and manifests stay here.

These are plain actors and not a Ray Data pipeline: parts must be computed whole and alone, so that they are the same
here and there; a broken line must cost one row, where Ray Data's readers refuse the file; and our manifests know what
is done. Nothing of Ray Data would be left but its pool of actors. Machines need no common folder but the run's.
"""

import importlib
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from thresher import errors
from thresher.bulk.identity import run_fingerprint
from thresher.bulk.scorer import About, Computed, Heard, Part, Scorer, Setting
from thresher.errors import ConfigError, ModelError, RunError, ThresherError
from thresher.hardware import usable_cores

AHEAD = 2  # parts that an actor has: one to compute, one that waits
AGAIN = 3  # times that an actor may die, of too little memory for example, and be started anew
STORE_BYTES = 2**30  # of a Ray on this machine
LOCAL = "local"
ADDRESS = re.compile(r"(ray://)?[\w.-]+:\d+")


@dataclass(frozen=True)
class Failed:
    """An error that the user can act on, on its way from an actor."""

    kind: str
    message: str


class Worker:
    """One engine in a process of its own, loaded when it is first needed: after a death, too."""

    def __init__(self, setting: Setting, fingerprint: str, threads: int) -> None:
        self._setting, self._fingerprint, self._threads = setting, fingerprint, threads
        self._scorer: Scorer | None = None

    def about(self) -> About | Failed:
        try:
            return self._loaded().about
        except ThresherError as error:
            return Failed(type(error).__name__, str(error))

    def compute(self, part: Part) -> Computed | Failed:
        try:
            return self._loaded().compute(part)
        except ThresherError as error:
            return Failed(type(error).__name__, str(error))

    def _loaded(self) -> Scorer:
        if self._scorer is None:
            import torch

            torch.set_num_threads(self._threads)
            if run_fingerprint(self._setting.run) != self._fingerprint:
                raise ModelError(
                    f"{self._setting.run} has other files on {os.uname().nodename} than where the work was begun; "
                    "copy the run to the same path on every machine"
                )
            # The engine would take all of the machine's cores for tokenizing; an actor has its own CPUs.
            workers = None if self._threads >= usable_cores() else 0
            self._scorer = Scorer(replace(self._setting, workers=workers))
        return self._scorer


def places(nodes: Sequence[Mapping[str, float]], cpus: float, gpus: float) -> int:
    """How many actors of so many CPUs and GPUs the machines have room for. nodes: what each of them has."""
    total = 0
    for node in nodes:
        room = [node.get(name, 0.0) // need for name, need in (("CPU", cpus), ("GPU", gpus)) if need > 0]
        total += int(min(room, default=1.0))
    return total


def import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError('--ray needs the package ray; run: pip install "thresher[scale]"') from error


class Pool:
    """Actors for the length of a `with`; `about` is known inside."""

    about: About

    def __init__(
        self,
        setting: Setting,
        fingerprint: str,
        *,
        address: str,
        actors: int | None,
        cpus: float,
        gpus: float,
        note: Callable[[str], None],
    ) -> None:
        if address not in (LOCAL, "auto") and not ADDRESS.fullmatch(address):
            raise ConfigError(
                f"--ray {address} is no address; leave it out, or give auto, HOST:PORT or ray://HOST:PORT"
            )
        self._ray = import_ray()
        self._setting, self._fingerprint = setting, fingerprint
        self._address, self._count, self._note = address, actors, note
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._workers: list[Any] = []
        self._ours = False
        self._stack = ExitStack()

    def __enter__(self) -> "Pool":
        self._stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints of dead actors where results may be awaited
        try:
            self._connect()
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._ours:
                self._ray.shutdown()  # actors end with it
                return
            for worker in self._workers:
                self._ray.kill(worker)

    def run(self, parts: Iterator[Part], heard: Heard) -> Iterator[Computed]:
        """Parts in the order in which they are done; an actor takes part as soon as there is room for it."""
        first, *others = self._workers
        coming = {worker.about.remote(): worker for worker in others}
        busy: dict[Any, Any] = {}
        free, more = deque([first] * AHEAD), True
        while more or busy:
            while free and more:
                part = next(parts, None)
                more = part is not None
                if part is not None:
                    worker = free.popleft()
                    busy[worker.compute.remote(part)] = worker
            ready, _ = self._ray.wait([*busy, *coming], num_returns=1) if busy else ([], [])
            for reference in ready:
                if reference in coming:
                    self._result(reference)
                    free.extend([coming.pop(reference)] * AHEAD)
                else:
                    free.append(busy.pop(reference))
                    yield self._result(reference)

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if self._address == LOCAL:
            options |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._ray.init(address=self._address, **options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            why = str(error).strip().splitlines()
            raise RunError(
                f"no Ray at {self._address}: {why[0] if why else type(error).__name__}; start it, or leave it out"
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():  # Ray takes SIGTERM for itself
                for number, handler in before.items():
                    signal.signal(number, handler)
        self._ours = True

    def _start(self) -> None:
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        room = places(nodes, *self._needs.values())
        needs = " and ".join(f"{need:g} {name[4:-1].upper()}" for name, need in self._needs.items() if need)
        if room == 0:
            largest = max((node.get("CPU", 0) for node in nodes), default=0)
            raise ConfigError(
                f"no machine has the {needs} that an actor asks for; the largest has {largest:g} CPUs; give smaller "
                "--cpus-per-actor and --gpus-per-actor"
            )
        count = self._count or room
        if count > room:
            self._note(f"{count} actors of {needs} are asked for, {room} have room now; the others wait for it")
        self._workers = [self._worker()]
        self.about = self._result(self._workers[0].about.remote())
        # All compute as the first one does, whatever each would have chosen.
        self._setting = replace(self._setting, device=self.about.device, dtype=self.about.dtype)
        self._workers += [self._worker() for _ in range(count - 1)]

    def _worker(self) -> Any:
        kind = self._ray.remote(**self._needs, max_restarts=AGAIN, max_task_retries=AGAIN)(Worker)
        return kind.remote(self._setting, self._fingerprint, max(1, int(self._needs["num_cpus"])))

    def _result(self, reference: Any) -> Any:
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            raise RunError(
                "an actor died again and again, perhaps for want of memory; the same command goes on, better with "
                "fewer --actors"
            ) from error
        if isinstance(found, Failed):
            raise getattr(errors, found.kind)(found.message)
        return found
