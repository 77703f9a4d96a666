"""Engines in processes forked once they are loaded; scenes are in a process of their own, which may be killed."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from thresher.engine.forks import check_process
from thresher.errors import ModelError

LIMIT = 300  # seconds; a child that hangs does so for ever, and a busy machine is slow

BEFORE = """
import os, threading
import torch

torch.set_num_threads(2)
from tests.cli.tiny import tokenizer
from tests.models.families import tiny_model
from thresher.engine.engine import Engine
from thresher.errors import ModelError

def answers(engine):
    return [round(found.probability, 5) for found in engine.classify(["good film", "bad bad film"] * 200)]

def exit_code_of(child):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

a = torch.rand(600, 600)
a @ a  # large enough for both threads
engine = Engine.from_model(tiny_model("bert"), tokenizer(), device="cpu", dtype="fp32")
expected = answers(engine)
"""

SCENES = {
    "the child answers as its parent does": """
        def child():
            a @ a
            assert answers(engine) == expected and torch.get_num_threads() == 1
            assert answers(Engine.from_model(tiny_model("bert"), tokenizer(), device="cpu", dtype="fp32")) == expected

        assert exit_code_of(child) == 0
        assert answers(engine) == expected and torch.get_num_threads() == 2
        """,
    "a stream that was begun before the fork says so": """
        stream = engine.predict(["film"] * 10, window=2)
        next(stream)

        def child():
            try:
                list(stream)
            except ModelError as error:
                assert "begin it anew" in str(error)
                return
            raise AssertionError("no error")

        assert exit_code_of(child) == 0
        assert len(list(stream)) == 9
        """,
    "so does one of tags": """
        tagger = Engine.from_model(tiny_model("bert", means="tags"), tokenizer(), device="cpu", dtype="fp32")
        stream = tagger.tag_stream(["film"] * 1500)
        next(stream)
        assert exit_code_of(child) == 0
        assert len(list(stream)) == 1499
        """,
    # The last: its thread never lets go.
    "a thread that tokenizes at the fork keeps nobody out of the child": """
        engine._stream.tokenizing._tokenizing.__enter__()
        assert exit_code_of(lambda: answers(engine)) == 0
        """,
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_forked_children() -> None:
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)]), "OMP_NUM_THREADS": "2"}
    scenes = [f"print({name!r}, flush=True)\n{textwrap.dedent(scene)}" for name, scene in SCENES.items()]
    script = "\n".join([BEFORE, *scenes])
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=root,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # with the child that hangs, which holds the pipe open
        pytest.fail(f"the child of the last of these hangs: {process.communicate()[0]}")
    assert process.returncode == 0, output


def test_an_engine_on_a_gpu_is_for_its_own_process() -> None:
    check_process(os.getpid(), "cuda")
    check_process(os.getpid() + 1, "cpu")
    with pytest.raises(ModelError, match="load the engine after the fork"):
        check_process(os.getpid() + 1, "cuda")
