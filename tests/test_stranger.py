"""A stranger follows README and the quickstart to the letter, from the built wheel, in an environment of its own.

Nothing is downloaded: the environment has links to what is installed here of the packages that the wheel asks for, and
to no other. thresher itself is the wheel's. The stranger has an encoder and a CSV file, as the pages ask for.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cli import tiny
from tests.serving.test_faults import until

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.S | re.M)
PAGES = ("README.md", "docs/quickstart.md")


@dataclass(frozen=True)
class Environment:
    """Where the wheel is installed, and what its programs are told."""

    folder: Path

    def told(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        told = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "80",
            "HF_HUB_OFFLINE": "1",
        }
        return {**kept, **told}

    def run(self, *words: str, inside: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, cwd=inside, env=self.told(), capture_output=True, text=True)


def done(words: tuple[str, ...], found: subprocess.CompletedProcess[str]) -> str:
    assert found.returncode == 0, f"{shlex.join(words)}\n{found.stdout[-2000:]}\n{found.stderr[-3000:]}"
    assert "Traceback" not in found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    words = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT))
    done(words, subprocess.run(words, capture_output=True, text=True))
    (file,) = out.glob("thresher-*.whl")
    return file


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    for words in (
        (sys.executable, "-m", "venv", "--without-pip", str(folder)),
        (sys.executable, "-m", "pip", "-q", "--python", str(folder), "install", "--no-deps", "--no-index", str(wheel)),
    ):
        done(words, subprocess.run(words, capture_output=True, text=True))
    (packages,) = folder.glob("lib/python*/site-packages")
    install(packages)
    return Environment(folder)


def install(packages: Path, *extras: str) -> None:
    for name in required("thresher", *extras):
        link(name, packages)


def required(name: str, *extras: str) -> set[str]:
    """All packages that installing this one brings; those of other platforms are not here."""
    found: set[str] = set()
    waiting = [(name, frozenset(extras))]
    seen = set(waiting)
    while waiting:
        package, wanted = waiting.pop()
        try:
            lines = distribution(package).requires or []
        except PackageNotFoundError:
            continue
        found.add(package)
        for need in map(Requirement, lines):
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*wanted, "")):
                following = (canonicalize_name(need.name), frozenset(need.extras))
                waiting += [following] if following not in seen else []
                seen.add(following)
    return found - {name}


def link(name: str, packages: Path) -> None:
    """Every file or folder that the package has laid at the top, and where several share a folder, all of it."""
    package = distribution(name)
    for top in {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", "__pycache__")}:
        if not (packages / top).exists():
            (packages / top).symlink_to(str(package.locate_file(top)))


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a stranger has, and makes of it."""
    folder = tmp_path_factory.mktemp("desk")
    tiny.save_model(folder / "my-encoder", tiny.config(), head=False)
    tiny.write_rows(folder / "my.csv", [{"text": text, "label": label} for text, label in tiny.sentences(96)])
    return folder


def blocks(page: str) -> list[tuple[str, str]]:
    """Code of a page in its order: commands of the shell, and Python. CSV is an example, and the demo has its tests."""
    found = FENCED.findall((ROOT / page).read_text("utf-8"))
    return [(kind, code) for kind, code in found if kind == "python" or (kind == "" and "make demo" not in code)]


@pytest.mark.slow
@pytest.mark.timeout(7200)  # fifteen programs, one after the other: an hour where the machine is very busy
def test_pages_to_the_letter(fresh: Environment, desk: Path) -> None:
    """README and then the quickstart; a command that both have is given once, for its run would be there already."""
    given: set[str] = set()
    for kind, code in [block for page in PAGES for block in blocks(page)]:
        if kind == "python":
            words: tuple[str, ...] = ("python", "-W", "error::DeprecationWarning:__main__", "-c", code)
            assert done(words, fresh.run(*words, inside=desk)).strip()
            continue
        for line in re.sub(r"\\\n\s*", "", code).splitlines():
            words = tuple(shlex.split(line, comments=True))
            if line in given:
                continue
            given.add(line)
            if words[:2] == ("pip", "install"):
                (extra,) = re.findall(r"\.\[(\w+)\]", line)
                install(next(fresh.folder.glob("lib/python*/site-packages")), extra)
                continue
            assert words[0] == "thresher"
            # To the letter but for its time: what it has is four minutes, and it takes what it needs of them.
            words += ("--seconds", "5") if words[1] == "bench" else ()
            out = done(words, fresh.run(*words, inside=desk))
            assert max(map(len, out.splitlines()), default=0) <= 80, f"{line}: wider than a terminal"
    assert len(given) >= 8
    for name in ("report.html", "runs/first/thresher.json", "runs/mine/thresher.json", "runs/again/thresher.json"):
        assert (desk / name).is_file()


@pytest.mark.slow
def test_the_wheel_is_what_runs_and_has_what_it_needs(fresh: Environment, tmp_path: Path) -> None:
    say = "import thresher, thresher.report; print(thresher.__file__, *thresher.report.__path__)"
    words = ("python", "-c", say)
    for path in done(words, fresh.run(*words, inside=tmp_path)).split():
        assert Path(path).is_relative_to(fresh.folder)
    package = next(fresh.folder.glob("lib/python*/site-packages/thresher"))
    assert (package / "report" / "page.html").is_file() and (package / "py.typed").is_file()
    assert not (package / "experiments").exists()
    words = ("thresher", "doctor")
    assert "thresher" in done(words, fresh.run(*words, inside=tmp_path))


@pytest.mark.slow
def test_a_server_starts_from_the_wheel_and_has_its_pages(fresh: Environment, tmp_path: Path) -> None:
    install(next(fresh.folder.glob("lib/python*/site-packages")), "serve")
    tiny.save_model(tmp_path / "classes", tiny.classifier_config())
    words = [str(fresh.folder / "bin" / "python"), "-m", "thresher", "serve", "classes", "--port", "0"]
    said = tmp_path / "said"
    with said.open("wb") as log:
        server = subprocess.Popen([*words, "--device", "cpu"], cwd=tmp_path, env=fresh.told(), stderr=log)
    try:
        assert until(lambda: "http://" in said.read_text("utf-8") or server.poll() is not None)
        (url,) = re.findall(r"http://\S+", said.read_text("utf-8"))
        for page in ("/", "/docs"):
            with urllib.request.urlopen(url + page, timeout=60) as reply:
                assert b"</html>" in reply.read()
        body = json.dumps({"inputs": "the film is good"}).encode()
        with urllib.request.urlopen(urllib.request.Request(url + "/predict", data=body), timeout=60) as reply:
            assert {row["label"] for row in json.load(reply)} == {"negative", "positive"}
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
