"""Check the built wheel and sdist as a user meets them:  python tests/release/check_release.py dist

Contents and sizes of both files; then, in a clean environment of every supported Python on PATH: installation, a run,
its report, `verify` and `view`; every extra by itself; and a small `make demo`, with the embedded model. What this
machine does not allow is skipped loudly.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
MAX_WHEEL_MB, MAX_SDIST_MB = 4, 6
PRIVATE = re.compile(
    r"(^|/)(\.git|\.venv[^/]*|\.ci|\.github|dist|__pycache__|\.env)(/|$)|^(runs|build)/|\.(pem|key|pyc)$"
)
SECRET = re.compile(rb"BEGIN [A-Z ]*PRIVATE KEY|\bghp_[A-Za-z0-9]{36}\b|\bAKIA[0-9A-Z]{16}\b|\bhf_[A-Za-z]{34}\b")
NEEDED_IN_WHEEL = ("rollbook/py.typed", "rollbook/viewer/web/", "rollbook/environments/builtin/data/LICENSE.")
NEEDED_IN_SDIST = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", "src/rollbook/__init__.py")

EXTRAS = {
    "local": "import xllamacpp",
    "gym": "import reasoning_gym",
    "parquet": "import pyarrow.parquet",
    "plot": "import matplotlib",
    "schema": "import jsonschema",
    "ifeval": "import langdetect",
    "mcp": "import mcp",
    "tensorboard": "from rollbook.trackers import TensorboardTracker",
}
"""Extras that are installed by themselves, each with what must then work."""
RESOLVED = ("dataframes", "hf", "wandb", "mlflow", "ray")
"""Extras of hundreds of megabytes: only whether pip finds versions that fit together."""
FOR_PEOPLE = {"all", "dev"}

SUMS = """
from rollbook import Environment, Task


class Sums(Environment):
    def tasks(self):
        for i in range(20):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task, rollout):
        return rollout.text.strip().endswith(f" {task.answer}.")
"""


def skip(what: str, why: str) -> None:
    print(f"test-release: SKIPPED: {what}: {why}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    print(f"test-release: {text}", flush=True)


def clean_environ() -> dict[str, str]:
    """Return the environment without what changes where Python imports from."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*words: object, cwd: Path | None = None, within_s: float = 900.0) -> str:
    """Run a command without our own import path; return what it printed to standard output, or exit with its error."""
    command, env = [*map(str, words)], clean_environ()
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=within_s)
    if done.returncode:
        sys.exit(
            f"test-release: {' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}"[-4000:]
        )
    return done.stdout


def check_contents(name: str, contents: dict[str, bytes], needed: tuple[str, ...], size: int, max_mb: int) -> None:
    """Check that a file has what is needed, nothing private, and a sensible size."""
    missing = [each for each in needed if not any(path.startswith(each) for path in contents)]
    private = [path for path in contents if PRIVATE.search(path)]
    secret = [path for path, data in contents.items() if SECRET.search(data)]
    mb = size / 1e6
    note(f"{name}: {len(contents)} files, {mb:.1f} MB")
    if missing or private or secret or mb > max_mb:
        found = f"missing {missing[:5]}, private {private[:5]}, secrets in {secret[:5]}"
        sys.exit(f"test-release: {name}: {found}, at most {max_mb} MB")


def check_wheel(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    check_contents(path.name, contents, NEEDED_IN_WHEEL, path.stat().st_size, MAX_WHEEL_MB)
    outside = [name for name in contents if not name.startswith(("rollbook/", "rollbook-"))]
    if outside:
        sys.exit(f"test-release: the wheel installs more than rollbook: {outside}")


def check_sdist(path: Path) -> None:
    with tarfile.open(path) as file:
        members = [member for member in file.getmembers() if member.isfile()]
        contents = {m.name.partition("/")[2]: f.read() for m in members if (f := file.extractfile(m))}
    check_contents(path.name, contents, NEEDED_IN_SDIST, path.stat().st_size, MAX_SDIST_MB)


def find_python(version: str) -> str | None:
    """Return a Python of this version from PATH; a launcher that only says that it is not installed is none."""
    python = shutil.which(f"python{version}")
    probe = f"import sys, venv; sys.exit(sys.version_info[:2] != ({version.replace('.', ', ')}))"
    works = python and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0
    return python if works else None


def make_venv(python: str, folder: Path, requirement: str) -> Path:
    """Return the Python of a new environment with one requirement."""
    run(python, "-m", "venv", folder)
    made = folder / "bin" / "python"
    run(made, "-m", "pip", "--disable-pip-version-check", "-qq", "install", requirement)
    return made


def check_use(python: Path, folder: Path, version: str) -> None:
    """Run, report, verify, extend and view, with an endpoint that answers sums."""
    rollbook = python.with_name("rollbook")
    assert version in run(rollbook, "--version"), "the wheel has another version"
    (folder / "sums.py").write_text(SUMS)
    command = [str(python), str(ROOT / "tests" / "support" / "endpoint.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as endpoint:
        try:
            assert endpoint.stdout
            url = f"http://127.0.0.1:{json.loads(endpoint.stdout.readline())['port']}/v1"
            run(rollbook, "run", "sums.py", "-m", url, "-k", 4, "-o", "run", cwd=folder)
            run(rollbook, "extend", "run", "-k", 5, cwd=folder)
            run(rollbook, "run", "gsm8k", "-m", url, "-n", 4, "-o", "gsm8k", cwd=folder)
        finally:
            endpoint.kill()
    report = json.loads(run(rollbook, "report", "run", "--json", cwd=folder))
    assert (report["requested"], report["scored"], report["pending"]) == (100, 100, 0), report
    assert json.loads(run(rollbook, "verify", "run", "--json", cwd=folder))["damage"] == []
    run(rollbook, "view", "run", "-o", "run.html", cwd=folder)
    assert "sum-19" in (folder / "run.html").read_text()
    check_viewer(rollbook, folder)


def check_viewer(rollbook: Path, folder: Path) -> None:
    """Start the viewer and load its page, as a browser does first."""
    command = [str(rollbook), "view", "run", "--no-browser"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as viewer:
        try:
            assert viewer.stdout
            address = next(found[0] for line in viewer.stdout if (found := re.search(r"http://\S+", line)))
            open_page = build_opener(ProxyHandler({}), HTTPCookieProcessor()).open
            first = open_page(address, timeout=60).read().decode()
            home = re.search(r'src="(/[^/]+/)js/door.js"', first)
            assert home, first
            page = open_page(urljoin(address, home[1]), timeout=60).read().decode()
            assert "<html" in page, page
        finally:
            viewer.kill()


def check_demo(python: str, wheel: Path, folder: Path) -> None:
    """Do what `make demo` does first, on 2 sums: the embedded model answers, and every rollout is scored."""
    rollbook = make_venv(python, folder / "demo", f"{wheel}[local,gym]").with_name("rollbook")
    command, env = [str(rollbook), "local", "pull"], clean_environ()
    pull = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=1200)
    if pull.returncode:
        why = (pull.stderr.strip().splitlines() or ["no output"])[-1]
        skip("the demo in a clean environment", f"the embedded model cannot be had ({why[:200]})")
        return
    sums = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
    options = ("-n", 2, "-k", 2, "--max-tokens", 48, "--temperature", 0.7, "-o", "demo-sums")
    run(rollbook, "run", sums, *options, cwd=folder)
    report = json.loads(run(rollbook, "report", "demo-sums", "--json", cwd=folder))
    assert (report["requested"], report["scored"], report["failed"], report["pending"]) == (4, 4, {}, 0), report
    note("the demo in a clean environment: the embedded model answered 2 sums twice, all scored")


def check_extras(python: str, wheel: Path, folder: Path) -> None:
    """Install every light extra by itself; resolve the heavy ones."""
    declared = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert declared == {*EXTRAS, *RESOLVED, *FOR_PEOPLE}, "an extra is not checked: add it here"
    for extra, works in EXTRAS.items():
        made = make_venv(python, folder / extra, f"{wheel}[{extra}]")
        run(made, "-c", works)
        shutil.rmtree(folder / extra)
        note(f"extra {extra}: installed, {works}")
    resolver = make_venv(python, folder / "resolver", "pip")
    for extra in RESOLVED:
        run(resolver, "-m", "pip", "-qq", "install", "--dry-run", f"{wheel}[{extra}]")
        note(f"extra {extra}: pip finds versions that fit together")


def audit(tools: Path, python: Path) -> None:
    """Compare the installed versions with known vulnerabilities, where the advisories can be reached."""
    packages = run(python, "-m", "pip", "--disable-pip-version-check", "freeze", "--exclude", "rollbook")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(packages)
        file.flush()
        options = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json")
        command = [str(tools / "pip-audit"), *options, "-r", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)["dependencies"] if done.stdout else []
    vulnerable = [each for each in found if each.get("vulns")]
    skipped = [each for each in found if "skip_reason" in each]  # pip-audit calls that a success
    if vulnerable:
        sys.exit(f"test-release: known vulnerabilities: {json.dumps(vulnerable)}")
    if skipped or not found:
        why = skipped[0]["skip_reason"] if skipped else (done.stderr.strip().splitlines() or ["no output"])[-1]
        skip(f"pip-audit of {len(skipped)} of {len(found)} packages", f"no advisories can be had ({why[:160]})")
    else:
        note(f"pip-audit: no known vulnerability in {len(found)} packages")


def write_sbom(tools: Path, python: Path) -> None:
    """Write what an installation consists of to build/sbom.json, in CycloneDX's format."""
    out = ROOT / "build" / "sbom.json"
    out.parent.mkdir(exist_ok=True)
    run(tools / "cyclonedx-py", "environment", python, "--of", "JSON", "-o", out)
    names = {component["name"] for component in json.loads(out.read_text())["components"]}
    assert {"rollbook", "aiohttp", "msgspec", "numpy"} <= names, names
    note(f"SBOM of {len(names)} packages: build/sbom.json")


def main() -> None:
    """Check everything; the first thing that is wrong ends the program with its output."""
    dist, tools = Path(sys.argv[1]).resolve(), Path(sys.executable).parent
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    check_wheel(wheel)
    check_sdist(sdist)
    found = {each: python for each in PYTHONS if (python := find_python(each))}
    for each in set(PYTHONS) - found.keys():
        skip(f"Python {each}", f"python{each} is not on PATH")
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        for number, (each, python) in enumerate(found.items()):
            folder = Path(name) / each
            made = make_venv(python, folder, str(wheel))
            check_use(made, folder, version)
            note(f"Python {each}: installed, run, extended, reported, verified, viewed")
            if number == 0:
                audit(tools, made)
                write_sbom(tools, made)
        first = next(iter(found.values()))
        from_source = make_venv(first, Path(name) / "sdist", str(sdist))
        assert version in run(from_source.with_name("rollbook"), "--version")
        note("the sdist builds and installs")
        check_demo(first, wheel, Path(name))
        check_extras(first, wheel, Path(name))


if __name__ == "__main__":
    main()
