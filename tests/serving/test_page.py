"""The page at /, in a browser without a screen: it loads nothing from elsewhere, computes, and can be read aloud."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.test_answers import character_tokenizer, model_for
from tests.serving.browser import BROWSERS, STATUS, Page, browser, opened
from tests.serving.conftest import Alone, Client, served, setting
from thresher.serving.house import House

PAGES = Path(__file__).parents[2] / "src" / "thresher" / "serving" / "http" / "pages"


def in_a_browser(test: Callable[..., None]) -> Callable[..., None]:
    needs = pytest.mark.skipif(browser() is None, reason=f"needs one of these browsers: {', '.join(BROWSERS)}")
    marked: Callable[..., None] = pytest.mark.browser(pytest.mark.slow(needs(test)))
    return marked


def dumped(url: str) -> str:
    """The page as it stands after its script has run."""
    words = [str(browser()), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    done = subprocess.run([*words, "--dump-dom", url], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-500:]
    return done.stdout


@pytest.mark.parametrize("name", ["index.html", "api.html"])
def test_pages_need_nothing_from_elsewhere_and_are_labelled(name: str) -> None:
    text = (PAGES / name).read_text("utf-8")
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text) and "@import" not in text and "url(" not in text
    assert '<html lang="en">' in text and "<title>" in text and "viewport" in text
    for field in re.findall(r"<(?:textarea|input|select)[^>]*id=\"([\w-]+)\"", text):
        assert f'for="{field}"' in text, f"{field} has no label"


def test_the_page_may_talk_to_its_own_server_only(alone: Alone) -> None:
    policy = alone("classes").get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy


@in_a_browser
def test_the_page_computes_and_shows_layers(alone: Alone) -> None:
    client = alone("classes")
    found = dumped(f"{client.url}/?compute")
    assert "dropped by layer" in found and "kept to the end" in found
    assert re.search(r"Done: [\d.]+% of the tokens kept at dial 1", found)
    assert "positive" in found and "negative" in found and 'role="alert" class="problem" hidden' in found


@in_a_browser
def test_who_takes_part_again_is_said(alone: Alone) -> None:
    """A calibrated embedder's dropped tokens are back in its last layers."""
    found = dumped(f"{alone('embedder').url}/?compute")
    assert re.search(r"dropped by layer \d, back in layer \d", found)


@in_a_browser
def test_the_list_of_routes_shows_them_all(alone: Alone) -> None:
    found = dumped(alone("classes").url + "/docs")
    assert all(route in found for route in ("/predict", "/v2/rerank", "/v1/embeddings", "/answer", "/tag"))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    place = tmp_path_factory.mktemp("page")
    model_for("span").save_pretrained(place / "span")
    character_tokenizer().save_pretrained(place / "span")
    with served(House([setting(place, "span")])) as client:
        yield client


def keep_picture(page: Page, name: str) -> None:
    """Where somebody wants to look at it: THRESHER_PICTURES names a folder."""
    if folder := os.environ.get("THRESHER_PICTURES"):
        page.picture(Path(folder) / f"{name}.png")


DONE = "document.getElementById('status').textContent.startsWith('Done')"


def focus(page: Page) -> str:
    return str(page.says("document.activeElement.id"))


@in_a_browser
def test_a_keyboard_is_enough(alone: Alone) -> None:
    """From field to field, a text, the button, and the dial, whose answers come without it."""
    with opened(alone("classes").url) as page:
        page.until("document.getElementById('first').value")
        found = []
        for _ in range(3):
            page.press("Tab")
            found.append(focus(page))
        assert found == ["first", "dial", "go"]  # a model of single texts has no second field
        assert page.says("getComputedStyle(document.activeElement).outlineStyle") == "solid", "focus is not seen"
        page.says("document.getElementById('first').focus()")
        page.write("a long cold film")
        page.press("Tab", 2)
        page.press("Enter")
        page.until(DONE)
        assert "at dial 1." in page.says(STATUS) and "film" in page.says("document.querySelector('.words').textContent")
        page.says("document.getElementById('dial').focus()")
        page.press("ArrowRight", 10)
        assert page.says("document.getElementById('dial-value').textContent") == "1.5"
        page.until(f"{DONE} && document.getElementById('status').textContent.endsWith('at dial 1.5.')")
        assert "At dial 1.5" in page.says("document.getElementById('results').textContent")
        keep_picture(page, "classes")
        page.dark()
        page.size(360, 800)
        keep_picture(page, "classes-dark-narrow")
        assert page.says("document.documentElement.scrollWidth <= 360"), "a narrow screen has to be scrolled sideways"


@in_a_browser
def test_letters_that_javascript_counts_twice_harm_no_words(alone: Alone) -> None:
    between = "[...document.querySelector('.words').childNodes].filter((one) => one.nodeType === 3)"
    with opened(alone("classes").url) as page:
        page.until("document.getElementById('first').value")
        page.says("document.getElementById('first').focus()")
        page.write("\U0001f600 a \U0001f600 long cold film")
        page.press("Tab", 2)
        page.press("Enter")
        page.until(DONE)
        assert page.says(f"{between}.map((one) => one.textContent).join('')").strip() == ""


@in_a_browser
def test_the_dial_drops_more_the_further_it_is_moved(alone: Alone) -> None:
    kept = "Number(/([\\d.]+)%/.exec(document.getElementById('status').textContent)[1])"
    with opened(f"{alone('classes').url}/?compute") as page:
        page.until(DONE)
        at_one = page.says(kept)
        page.says("document.getElementById('dial').focus()")
        page.press("End")
        page.until(f"{DONE} && document.getElementById('status').textContent.endsWith('at dial 3.')")
        assert page.says(kept) < at_one
        page.press("ArrowLeft", 60)
        page.until(f"{DONE} && document.getElementById('status').textContent.endsWith('at dial 0.')")
        assert page.says(kept) > at_one


@in_a_browser
def test_a_reranker_orders_documents(alone: Alone) -> None:
    with opened(f"{alone('reranker').url}/?compute") as page:
        page.until(DONE)
        assert page.says("document.getElementById('second-label').textContent") == "Documents"
        titles = page.says("[...document.querySelectorAll('#results h2')].map((one) => one.textContent)")
        assert titles == ["Document in place 1", "Document in place 2"]
        scores = page.says(
            "[...document.querySelectorAll('#results tbody td.number:nth-child(2)')].map((o) => o.textContent)"
        )
        numbers = [float(one) for one in scores if re.fullmatch(r"-?\d+\.\d{4}", one)]
        assert len(numbers) == 2 and numbers == sorted(numbers, reverse=True)
        keep_picture(page, "reranker")


@in_a_browser
def test_a_question_gets_its_answers(reader: Client) -> None:
    with opened(f"{reader.url}/?compute") as page:
        page.until(DONE)
        labels = page.says("[...document.querySelectorAll('label')].map((one) => one.textContent)")
        assert {"Question", "Context"} <= set(labels)
        assert page.says("document.querySelectorAll('#results tbody tr').length") >= 4
        keep_picture(page, "span")


@in_a_browser
def test_what_went_wrong_is_said_aloud(alone: Alone) -> None:
    with opened(alone("classes").url) as page:
        page.until("document.getElementById('first').value")
        page.says("document.getElementById('first').focus()")
        page.write(" ")
        page.press("Tab", 2)
        page.press("Enter")
        page.until("!document.getElementById('problem').hidden")
        assert "empty" in page.says("document.querySelector('[role=alert]').textContent")
