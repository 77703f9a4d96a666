"""Tokenizing in processes of their own: where a GPU waits, one process cannot make Python objects fast enough.

A worker is a fresh Python without torch or transformers; it knows one tokenizer, gets lists of texts and gives back
flat arrays. It ends when its input does, so that none outlives the process that started it.
"""

import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any, BinaryIO

from thresher.tokenizing.fast import FastTokenizer
from thresher.tokenizing.read import read_texts
from thresher.tokenizing.tokens import Tokens

_SIZE = struct.Struct("<Q")
# Ctrl-C is for whoever started a worker, from its first moment on; its input ends then.
_SERVE = """import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from thresher.tokenizing.workers import serve
serve()"""
_READY = b"\0thresher is ready\0"


class TokenizingProcesses:
    """`count` workers with one tokenizer. Any thread may call; each call is one worker's work. Workers are started in
    the background, which takes a second or two; until the first is ready, calls are answered here."""

    def __init__(self, tokenizer: FastTokenizer, count: int) -> None:
        self.tokenizer, self._process = tokenizer, os.getpid()
        self._team = _Team(count)
        told = pickle.dumps(tokenizer, pickle.HIGHEST_PROTOCOL)
        threading.Thread(target=self._team.start, args=(told,), daemon=True, name="starting workers").start()
        self._finalizer = weakref.finalize(self, self._team.end, self._process)

    def wait(self) -> None:
        """Until all workers are ready."""
        self._team.ready.wait()

    def read(self, items: Sequence[Any], *, limit: int, cuts: str, pairs: bool | None) -> Tokens:
        """As `read_texts`. What a worker cannot do, because it was ended or cannot be sent an item, is done here."""
        # In a forked child the workers are those of the parent.
        worker = self._team.idle_worker() if os.getpid() == self._process else None
        found = None
        if worker is not None:
            try:
                found = worker.ask((list(items), limit, cuts, pairs))
            except BaseException:  # half a message may be on its way: the next one would be answered with it
                worker.end()
                raise
            finally:
                self._team.idle.put(worker)
        return read_texts(self.tokenizer, items, limit=limit, cuts=cuts, pairs=pairs) if found is None else found

    def close(self) -> None:
        """End the workers; calls are then answered here."""
        self._finalizer()


class _Team:
    """Workers, and which of them have nothing to do."""

    def __init__(self, count: int) -> None:
        self.count, self.workers = count, list[_Worker]()
        self.idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self.ready, self.ended = threading.Event(), threading.Event()

    def start(self, told: bytes) -> None:
        """All of them at once, and then wait for each."""
        try:
            for _ in range(self.count):
                if not self.ended.is_set():
                    self.workers.append(_Worker(told))
            for worker in self.workers:
                worker.greet()
                self.idle.put(worker)
        finally:
            self.ready.set()
        if self.ended.is_set():  # somebody was faster
            self._end_workers()

    def idle_worker(self) -> "_Worker | None":
        """One that has nothing to do, waited for once all are ready; before that, None where there is none yet."""
        try:
            return self.idle.get_nowait()
        except queue.Empty:
            return self.idle.get() if self.ready.is_set() and self.workers else None

    def end(self, process: int) -> None:
        if os.getpid() == process:
            self.ended.set()
            self._end_workers()

    def _end_workers(self) -> None:
        for worker in list(self.workers):
            worker.end()


class _Worker:
    """One process and its two pipes."""

    def __init__(self, told: bytes) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "TOKENIZERS_PARALLELISM": "false",  # there is a process for each core
        }
        try:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _SERVE,
                ],  # -P: without it, a file queue.py in this folder would be imported
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            _send(self._pipe("stdin"), told)
        except Exception:  # whatever it is, nobody may wait for this worker
            self.end()

    def greet(self) -> None:
        """Wait until it knows its tokenizer; one that does not say so is ended. What Python prints at its start, where
        somebody has it print, is passed over."""
        said = b""
        try:
            while not said.endswith(_READY):
                one = self._pipe("stdout").read(1)
                if not one:
                    self.end()
                    return
                said = said[-len(_READY) :] + one
        except (OSError, ValueError):
            self.end()

    def ask(self, question: Any) -> Tokens | None:
        """The answer; None where there is none to be had."""
        try:
            sent = pickle.dumps(question, pickle.HIGHEST_PROTOCOL)
        except Exception:  # items are the caller's, and may be anything
            return None
        try:
            _send(self._pipe("stdin"), sent)
            answer = _receive(self._pipe("stdout"))
        except (OSError, ValueError):
            answer = None
        if answer is None:
            self.end()
            return None
        found = pickle.loads(answer)
        return found if isinstance(found, Tokens) else None

    def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()  # first: a thread that reads from it holds the pipe until it ends
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not sent yet has no reader any more
                        pipe.close()

    def _pipe(self, name: str) -> BinaryIO:
        pipe: BinaryIO | None = getattr(self.process, name, None)
        if pipe is None:
            raise OSError("the worker has ended")
        return pipe


def serve() -> None:
    """What a worker does: a tokenizer first, then questions, until there are no more."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    told = _receive(questions)
    if told is None:
        return
    tokenizer = pickle.loads(told)
    answers.write(_READY)
    answers.flush()
    while (question := _receive(questions)) is not None:
        try:
            items, limit, cuts, pairs = pickle.loads(question)
            found: Tokens | None = read_texts(tokenizer, items, limit=limit, cuts=cuts, pairs=pairs)
        except Exception:  # classes that are not known here, among the items; whoever asked does it then
            found = None
        try:
            _send(answers, pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
        except OSError:
            return


def _send(pipe: BinaryIO, message: bytes) -> None:
    pipe.write(_SIZE.pack(len(message)))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: BinaryIO) -> bytes | None:
    """None at the end."""
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack(head)
    message = pipe.read(size)
    return message if len(message) == size else None
