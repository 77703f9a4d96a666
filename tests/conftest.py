"""What every test needs: no network, no progress bars, few threads, and GPU tests only where there is a GPU."""

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Iterator

# The libraries and all tests are a million objects that stay. Without this the collector of garbage looks through them
# again and again, while they are loaded and later.
gc.disable()

# The Hugging Face libraries read these when they are imported, and subprocesses inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# Models in tests are tiny: more threads cost more in hand-over than they compute, and CI runners share their cores.
THREADS = 1  # tiny models: a second thread only waits, and far longer on a busy machine
os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
# Where a test needs two, they sleep while they wait: spinning beside another process is a hundred times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest  # noqa: E402  (the environment above must be set before anything imports the libraries)
import torch  # noqa: E402

# Without a GPU the kernels are interpreted. Triton reads this when it is first imported, by whichever test that is.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure() -> None:
    torch.set_num_threads(THREADS)


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)  # long ones first: nobody waits at the end
    if torch.cuda.is_available():
        for item in items:  # interpreted elsewhere, so that they are not marked by hand
            if isinstance(item, pytest.Function) and getattr(item.module, "DEVICE", None) == "cuda":
                item.add_marker(pytest.mark.gpu)
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and torch sees none here")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """All that tests import when they are loaded is there; with the package's kernels, Triton."""
    gc.enable()
    gc.freeze()
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") == "1":
        from tests.interpreting import replace_language_once_

        replace_language_once_()


@pytest.fixture(autouse=True)
def device_chosen_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """accelerate remembers a process's first device; after a test on the GPU, the next one may want another."""
    yield
    if request.node.get_closest_marker("gpu"):
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True, scope="session")
def heard_interruptions() -> None:
    """A shell lets its background jobs ignore SIGINT, and tests of what it does would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_dangling_signal_stack() -> None:
    """A library that `bench` loads for a rival leaves the main thread a signal stack that is unmapped: the next signal
    that a test sends would end the process without a word."""
    if sys.platform == "linux":
        stack = SignalStack(None, SS_DISABLE, 0)
        ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None)


SS_DISABLE = 2


class SignalStack(ctypes.Structure):
    """stack_t, as Linux has it."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))
