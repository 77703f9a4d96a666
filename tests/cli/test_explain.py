"""What explain prints reads as the text."""

import io

from rich.console import Console

from thresher.cli.explain import print_explanation
from thresher.evaluation.explain import Explanation


def test_pieces_are_printed_as_text_with_spaces_where_words_begin() -> None:
    found = Explanation(
        tokens=["<s>", "le", "ĠcafÃ©", "s", "Ġ[b]", "</s>"],
        pieces=[" <s>", " le", " café", "s", " [b]", " </s>"],
        dropped_at=[None, 1, 2, None, 2, 2],
        kept_per_layer=[5, 2],
        layers=2,
        label="good",
        probability=0.75,
        value=None,
        relative_flops=0.5,
        truncated=False,
    )
    screen = Console(file=io.StringIO(), width=100)
    print_explanation(screen, found)
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().splitlines()[0] == "<s> le₁ café₂s [b]₂ </s>₂"
