"""Coloured texts: every token once, in its layer's colour, and nothing of a text is obeyed by a browser."""

import json
import re
from html import unescape

from thresher.report.colours import colour_of, ink_on
from thresher.report.tokens import coloured_text, legend, slider, token_styles


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
