"""The package as a user meets it: a light import, public names that resolve, one version, a help page."""

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import thresher
from thresher.records import thresher_version

ROOT = Path(__file__).resolve().parents[1]

# Each of these takes from half a second to several seconds to import; triton also wants a GPU driver.
HEAVY = {"triton", "transformers", "sklearn", "scipy", "accelerate", "datasets", "pyarrow", "matplotlib"}

REPORT = """
import json, sys
import thresher
torch = sys.modules.get("torch")
tops = sorted({name.split(".")[0] for name in sys.modules})
print(json.dumps({"modules": tops, "cuda": torch is not None and torch.cuda.is_initialized()}))
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((sys.executable, *arguments), capture_output=True, text=True)


def test_import_is_light_and_leaves_the_gpu_alone() -> None:
    done = run_python("-W", "error", "-c", REPORT)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert not HEAVY & set(seen["modules"]), "importing thresher must not import these"
    assert seen["cuda"] is False
    assert done.stderr == ""


def test_public_names_are_listed_once() -> None:
    names = list(thresher.__all__)
    assert names
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", thresher.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(thresher, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = thresher.no_such_name


def test_names_are_listed_before_they_are_loaded() -> None:
    done = run_python("-c", "import thresher, json; print(json.dumps(dir(thresher)))")
    listed = json.loads(done.stdout)
    assert [name for name in listed if not name.startswith("__")] == sorted(thresher.__all__)
    assert {"__all__", "__doc__", "__version__"} <= set(listed)


def test_the_documented_way_to_a_rival_method_works_without_another_import() -> None:
    page = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"`(thresher\.Trainer\(.*)`", page)
    program = f"""
import sys, thresher
sys.path.insert(0, {str(ROOT)!r})
from tests.training.tiny import gated_model, keyword_task, quick, tiny_tokenizer
assert "thresher.baselines" not in sys.modules
model, tokenizer, task = gated_model(layers=6), tiny_tokenizer(), keyword_task()
config = quick(method="spatten", target_flops=0.8)
print({line}.method.name)
"""
    done = run_python("-c", program)
    assert done.stdout == "spatten\n", done.stderr


def test_version_is_the_one_of_pyproject_and_has_a_changelog_entry() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if thresher_version() == "source":
        pytest.skip("the package runs from its source tree, without installation")
    assert thresher_version() == version, "the installed package is older than pyproject.toml; run make test"
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_tested_versions_lie_in_the_ranges_that_can_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    ranges = [Requirement(line) for group in groups for line in group]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    on_the_gpu = {"torch": "2.11", "transformers": "5.17"}
    for wanted in ranges:
        for versions in (tested, on_the_gpu):
            assert versions.get(wanted.name, "") == "" or versions[wanted.name] in wanted.specifier, wanted
    bounded = {wanted.name for wanted in ranges if any(part.operator == "<" for part in wanted.specifier)}
    assert {"torch", "transformers", "tokenizers", "numpy"} <= bounded, "thresher looks inside these"


def installed_size(names: list[str], seen: set[str]) -> int:
    """Bytes of packages and all that they need, each once."""
    size = 0
    for name in names:
        name = name.lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        found = metadata.distribution(name)
        size += sum(file.size or 0 for file in found.files or ())
        needs = [Requirement(line) for line in found.requires or ()]
        wanted = [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
        size += installed_size(wanted, seen)
    return size


def test_the_size_that_readme_promises() -> None:
    import torch

    if torch.version.cuda is not None:
        pytest.skip("README tells the size with a CPU build of torch")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    size = installed_size([Requirement(line).name for line in project["dependencies"]], set())
    assert "about 1 GB with a CPU build of torch" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert 0.8e9 < size < 1.3e9


def test_package_is_typed() -> None:
    assert resources.files("thresher").joinpath("py.typed").is_file()


def test_module_runs_as_a_command() -> None:
    done = run_python("-m", "thresher", "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout
