"""What there is to read in a text, and how it is shown."""

import json

import pytest

from thresher.text import half_character, is_blank, visible


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \t\n",
        "\x00",
        "\u200b",
        "\ufeff",
        "\xad",
        "\ufffd",
        "\u00a0",
        "\x1b",
        " \ufffd\u200b\x00 ",
        "\ufe0f",
        "\u3164",
    ],
)
def test_nothing_to_read(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", [" . ", "\U0001f600", "a\x00", "\ufffd!", "0", "\u0301"])
def test_something_to_read(text: str) -> None:
    assert not is_blank(text)


def test_half_a_character() -> None:
    assert half_character("cut \ud83d") == "\\ud83d"
    assert half_character("whole \U0001f600") is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 漢, \U0001f600\n\tand lines", "plain, é, 漢, \U0001f600\n\tand lines"),
        ("\x1b[31mred\x1b]0;title\x07", "\\u001b[31mred\\u001b]0;title\\u0007"),
        ("\x9b2J \x7f \r", "\\u009b2J \\u007f \\u000d"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("half \udc80", "half \\udc80"),
        ("\\u001b", "\\u001b"),
    ],
)
def test_nothing_for_the_terminal_to_obey(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown, "it may be called twice"


def test_json_stays_what_it_says() -> None:
    value = {"label": "\x9b31m\x1b\u202e é \ud83d"}
    assert json.loads(visible(json.dumps(value, ensure_ascii=False))) == value
