"""Commands silence transformers for their process; other tests in this process keep what they had."""

from collections.abc import Iterator

import pytest
import transformers


@pytest.fixture(autouse=True)
def loud_libraries() -> Iterator[None]:
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)
