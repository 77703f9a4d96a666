"""Tokenizing in processes of their own: where a GPU waits, one process cannot make Python objects fast enough.

A worker is a fresh Python without torch or transformers; it knows one tokenizer, gets lists of texts and gives back
flat arrays. It ends when its input does, so that none outlives the process that started it.
"""

import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import Any, BinaryIO

from thresher.tokenizing.fast import FastTokenizer
from thresher.tokenizing.read import read_texts
from thresher.tokenizing.tokens import Tokens

_SIZE = struct.Struct("<Q")
_SERVE = "from thresher.tokenizing.workers import serve; serve()"


class TokenizingProcesses:
    """`count` workers with one tokenizer. Any thread may call; each call is one worker's work."""

    def __init__(self, tokenizer: FastTokenizer, count: int) -> None:
        self.tokenizer, self.count, self._process = tokenizer, count, os.getpid()
        told = pickle.dumps(tokenizer, pickle.HIGHEST_PROTOCOL)
        self._workers = [_Worker(told) for _ in range(count)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._finalizer = weakref.finalize(self, _close, self._workers, self._process)

    def read(self, items: Sequence[Any], *, limit: int, cuts: str, pairs: bool | None) -> Tokens:
        """As `read_texts`. What a worker cannot do, because it was ended or cannot be sent an item, is done here."""
        if os.getpid() != self._process:  # the workers are those of the parent
            return read_texts(self.tokenizer, items, limit=limit, cuts=cuts, pairs=pairs)
        worker = self._idle.get()
        try:
            found = worker.ask((list(items), limit, cuts, pairs))
        except BaseException:  # half a message may be on its way: the next one would be answered with it
            worker.end()
            raise
        finally:
            self._idle.put(worker)
        return read_texts(self.tokenizer, items, limit=limit, cuts=cuts, pairs=pairs) if found is None else found

    def close(self) -> None:
        """End the workers; calls are then answered here."""
        self._finalizer()


class _Worker:
    """One process and its two pipes."""

    def __init__(self, told: bytes) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "TOKENIZERS_PARALLELISM": "false",  # there is a process for each core
        }
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            _send(self._pipe("stdin"), told)
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
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:  # what was not sent yet has no reader any more
                        pass
            process.kill()
            process.wait()

    def _pipe(self, name: str) -> BinaryIO:
        pipe: BinaryIO | None = getattr(self.process, name, None)
        if pipe is None:
            raise OSError("the worker has ended")
        return pipe


def serve() -> None:
    """What a worker does: a tokenizer first, then questions, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this; then the input ends
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be taken for an answer
    told = _receive(questions)
    if told is None:
        return
    tokenizer = pickle.loads(told)
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


def _close(workers: "list[_Worker]", process: int) -> None:
    if os.getpid() == process:
        for worker in workers:
            worker.end()
