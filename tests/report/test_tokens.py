"""Coloured texts: every token once, in its layer's colour, and nothing of a text is obeyed by a browser."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from tests.serving.browser import BROWSERS, browser, opened
from thresher.report.colours import colour_of, ink_on
from thresher.report.tokens import TOKEN_SCRIPT, back_in, coloured_text, legend, slider, token_styles


def test_every_token_has_its_layer() -> None:
    text = coloured_text([" [CLS]", " a", " film", "s"], [None, 1, None, 2], [3, 2])
    assert re.findall(r'<span class="(\w+|layer-\d)"', text) == ["kept", "layer-1", "kept", "layer-2"]
    assert re.sub(r"<sub>.*?</sub>|<[^>]+>", "", text) == " [CLS] a films"
    (left,) = re.findall(r'data-left="([^"]*)"', text)
    assert json.loads(unescape(left)) == [4, 3, 2]


def test_markup_and_marks_of_a_text_are_shown_and_not_obeyed() -> None:
    text = coloured_text([" <script>alert(1)</script>", " \u202eevil", ' "quoted"'], [None, 1, None], [2, 2])
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "\u202e" not in text and "\\u202e" in text
    assert '"quoted"' not in text


def test_colours_run_from_dark_red_to_yellow_and_can_be_read() -> None:
    assert colour_of(1, 12) == (178, 34, 52) and colour_of(12, 12) == (255, 235, 120)
    assert colour_of(1, 1) == (178, 34, 52)
    assert (ink_on(colour_of(1, 6)), ink_on(colour_of(6, 6))) == ("#fff", "#000")


def test_styles_know_every_layer_and_a_token_that_is_still_alive_has_none_of_them() -> None:
    styles = token_styles(24)
    assert all(f".layer-{layer} " in styles for layer in range(1, 25))
    assert styles.index(".layer-24 ") < styles.index(".tokens .alive {")
    assert legend(3).count("layer-") == 3
    assert 'max="24" value="24"' in slider(24)


def test_tokens_that_rejoin_are_underlined_from_that_layer_on() -> None:
    text = coloured_text([" [CLS]", " a", " film", "s"], [None, 1, None, 2], [3, 2, 4, 4])
    assert 'data-back="3"' in text and text.count("dropped by layer") == text.count(", back in layer 3") == 2
    assert re.findall(r'<span class="(kept|layer-\d back)"', text) == ["kept", "layer-1 back", "kept", "layer-2 back"]
    assert "taking part again from layer 3" in legend(4, 3) and "again" not in legend(4)


@pytest.mark.parametrize(
    ("dropped_at", "kept", "back"),
    [
        ([None, 1, 2], [2, 1, 3, 3], 3),
        ([None, 2, 2], [3, 1, 3], 3),
        ([None, 2, 1], [2, 1, 1], None),
        ([None], [1, 1], None),
    ],
)
def test_where_tokens_are_back(dropped_at: list[int | None], kept: list[int], back: int | None) -> None:
    assert back_in(dropped_at, kept) == back


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason=f"needs one of these browsers: {', '.join(BROWSERS)}")
def test_the_slider_brings_back_tokens_that_rejoin(tmp_path: Path) -> None:
    """Of two texts, only the first has layers that all tokens take part in again."""
    texts = [
        coloured_text([" a", " b", " c"], [None, 1, 2], [2, 1, 3, 3]),
        coloured_text([" d", " e"], [None, 2], [2, 1, 1, 1]),
    ]
    file = tmp_path / "page.html"
    file.write_text(
        f"<!doctype html><style>{token_styles(4)}</style>{legend(4, 3)}{slider(4)}"
        + "".join(f'<div>{text}<span class="left"></span></div>' for text in texts)
        + f"<script>{TOKEN_SCRIPT}</script>",
        encoding="utf-8",
    )
    kinds = "[...document.querySelectorAll('.tokens span')].map((one) => [...one.classList].slice(1).join(' '))"
    move = "(() => {{ range.value = {}; range.dispatchEvent(new Event('input')); }})()"
    with opened(file.as_uri()) as page:
        page.until("document.querySelector('.left').textContent")
        page.says("globalThis.range = document.querySelector('input'); 0")
        page.picture(tmp_path / "page.png")
        for step, classes, left in (
            (4, ["", "back", "back", "", ""], "3 of 3 tokens"),
            (3, ["alive", "back", "back", "alive", ""], "3 of 3 tokens"),
            (2, ["alive", "", "", "alive", ""], "1 of 3 tokens"),
            (1, ["alive", "", "alive", "alive", "alive"], "2 of 3 tokens"),
            (0, ["alive", "alive", "alive", "alive", "alive"], "3 of 3 tokens"),
        ):
            page.says(move.format(step))
            assert page.says(kinds) == classes and page.says("document.querySelector('.left').textContent") == left
