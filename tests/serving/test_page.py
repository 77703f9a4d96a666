"""The page at /, in a browser without a screen: it loads nothing from elsewhere, computes, and can be read aloud."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serving.conftest import Alone

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
PAGES = Path(__file__).parents[2] / "src" / "thresher" / "serving" / "http" / "pages"


def browser() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


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


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason=f"needs one of these browsers: {', '.join(BROWSERS)}")
def test_the_page_computes_and_shows_layers(alone: Alone) -> None:
    client = alone("classes")
    found = dumped(f"{client.url}/?compute")
    assert "dropped by layer" in found and "kept to the end" in found
    assert re.search(r"Done: [\d.]+% of the tokens kept at dial 1", found)
    assert "positive" in found and "negative" in found and 'role="alert" class="problem" hidden' in found


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.skipif(browser() is None, reason=f"needs one of these browsers: {', '.join(BROWSERS)}")
def test_the_list_of_routes_shows_them_all(alone: Alone) -> None:
    found = dumped(alone("classes").url + "/docs")
    assert all(route in found for route in ("/predict", "/v2/rerank", "/v1/embeddings", "/answer", "/tag"))
