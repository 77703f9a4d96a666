"""Everything the page needs, beside it: the run as two graphs, and onnxruntime-web and a tokenizer from npm.

python examples/browser/prepare.py runs/demo [--to FOLDER]

Needs `pip install 'thresher[export]'` and npm. The page is then served by any web server, for example
`python -m http.server --directory examples/browser`. Nothing leaves the browser.
"""

import argparse
import shutil
import subprocess
from pathlib import Path

import thresher

HERE = Path(__file__).resolve().parent
PAGE = ("index.html", "page.mjs")
PACKAGES = ("onnxruntime-web@1.30.0", "@huggingface/tokenizers@0.2.0")
TAKEN = {
    "onnxruntime-web/dist": ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
    "@huggingface/tokenizers/dist": ("tokenizers.min.mjs",),
}


def fetch_packages(folder: Path) -> None:
    """The few files of the packages that the page loads, into folder/vendor."""
    vendor, work = folder / "vendor", folder / "npm"
    vendor.mkdir(parents=True, exist_ok=True)
    work.mkdir(exist_ok=True)
    command = ["npm", "install", "--silent", "--no-save", "--ignore-scripts", "--prefix", str(work), *PACKAGES]
    subprocess.run(command, check=True)
    for place, names in TAKEN.items():
        for name in names:
            shutil.copy(work / "node_modules" / place / name, vendor / name)
    shutil.rmtree(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, default=HERE)
    options = parser.parse_args()
    fetch_packages(options.to)
    for name, ways in (("pruned", {"passed": True}), ("dense", {"dense": True})):
        thresher.export(options.run, out=options.to / "models" / name, batch_one=True, **ways)
    for name in PAGE:
        if options.to != HERE:
            shutil.copy(HERE / name, options.to / name)
    print(f"serve it: python -m http.server --directory {options.to}")


if __name__ == "__main__":
    main()
