"""Which files of an image an entrypoint, a healthcheck or the first line of a script run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.containers.command_files import CommandFiles, find_command_files
from rollbook.containers.layers import Layers


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The layer of an image with bash and python3; no container has changed anything."""
    (tmp_path / "container/upper").mkdir(parents=True)
    for path in ("/usr/bin/bash", "/usr/local/bin/python3"):
        write(tmp_path / "image", path, "\0program")
    return tmp_path / "image"


def write(layer: Path, path: str, text: str, mode: int = 0o755) -> None:
    (layer / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    (layer / path[1:]).write_text(text)
    (layer / path[1:]).chmod(mode)


def find(image: Path, *words: str) -> CommandFiles:
    layers = Layers({"UpperDir": str(image.parent / "container/upper"), "LowerDir": str(image)})
    return find_command_files(layers, [words], ["/usr/local/bin", "/usr/bin"], "/app")


def list_paths(image: Path, *words: str) -> list[str]:
    """The code of a command, without the shell and Python."""
    found = find(image, *words).paths
    return sorted({*found} - {"/usr/bin/bash", "/usr/local/bin/python3"})


def test_scripts_of_an_entrypoint_and_what_they_name_are_code(image: Path) -> None:
    write(image, "/start.sh", "#!/usr/bin/bash\n. /opt/settings.sh\npython3 /opt/serve.py --data /data.txt\n")
    write(image, "/opt/settings.sh", "/opt/tool; /start.sh; /missing", 0o644)
    write(image, "/opt/serve.py", "", 0o644)
    write(image, "/data.txt", "", 0o644)
    write(image, "/opt/tool", "\0binary")
    expected = ["/opt/serve.py", "/opt/settings.sh", "/opt/tool", "/start.sh"]
    assert list_paths(image, "bash", "/start.sh") == expected
    assert list_paths(image, "bash", "-c", '. /start.sh; exec "$@"') == expected


def test_programs_of_the_search_path_are_named_by_commands_and_first_lines_but_not_by_the_rest_of_scripts(
    image: Path,
) -> None:
    write(image, "/usr/bin/start", "#!/usr/bin/env -S python3 -u\nbash curl")
    found = find(image, "start", "--port", "80")
    assert sorted(found.paths) == ["/usr/bin/start", "/usr/local/bin/python3"]
    assert found.programs == {"start", "python3"}
    assert find(image, "sh", "-c", "curl -f http://localhost/bash || exit 1").programs == set()
    assert find(image, "sh", "-c", "python3 -c 1 || exit 1").programs == {"python3"}


@pytest.mark.parametrize(
    "run",
    [
        'source "/opt/one"',
        "if true; then . /opt/one; fi",
        "source -- /opt/one",
        '. "${CONF:-/opt/one}"',
        "bash -x /opt/one",
        "exec python3.11 -u /opt/one --data /opt/two",
        "/bin/sh /opt/one",
    ],
)
def test_what_a_shell_reads_or_an_interpreter_runs_is_code_whatever_its_name(image: Path, run: str) -> None:
    write(image, "/start.sh", f"#!/bin/sh\n{run}; cat /opt/two.py")
    for name in ("one", "two", "two.py"):
        write(image, f"/opt/{name}", "x=1", 0o644)
    assert list_paths(image, "/start.sh") == ["/opt/one", "/start.sh"]
    assert list_paths(image, "sh", "-c", run) == ["/opt/one"]


def test_words_of_a_command_are_paths_and_names_as_they_are(image: Path) -> None:
    for path in ("/opt/my app/start", "/opt/a,b/start", "/usr/bin/7start"):
        write(image, path, "#!/bin/sh\n")
    write(image, "/opt/plain", "", 0o644)
    write(image, "/srv/tool/__main__.py", "", 0o644)
    assert list_paths(image, "/opt/my app/start") == ["/opt/my app/start"]
    assert list_paths(image, "/opt/a,b/start") == ["/opt/a,b/start"]
    assert list_paths(image, "7start") == ["/usr/bin/7start"]
    assert list_paths(image, "bash", "/opt/plain") == ["/opt/plain"]
    assert list_paths(image, "python3", "/srv/tool") == ["/srv/tool/__main__.py"]


def test_what_a_command_only_looks_at_is_work_of_the_agent(image: Path) -> None:
    write(image, "/opt/calc.py", "", 0o644)
    assert list_paths(image, "sh", "-c", "test -f /opt/calc.py && grep -q done /opt/calc.py") == []


def test_all_scripts_of_a_script_folder_run(image: Path) -> None:
    write(image, "/start.sh", "for each in /start.d/*.sh; do $each; done; ls /data /conf.d")
    write(image, "/start.d/10-first.sh", "/opt/helper")
    write(image, "/opt/helper", "")
    write(image, "/start.d/settings.conf", "", 0o644)
    write(image, "/data/tool", "")
    found = find(image, "/start.sh")
    assert sorted(found.paths) == ["/opt/helper", "/start.d/10-first.sh", "/start.sh"]
    assert found.folders == {"/start.d"}


def test_what_scripts_name_in_the_working_folder_is_work_of_the_agent(image: Path) -> None:
    write(image, "/app/start.sh", "/app/server; /apples/x")
    write(image, "/app/server", "")
    write(image, "/apples/x", "")
    assert list_paths(image, "/app/start.sh") == ["/app/start.sh", "/apples/x"]
    assert list_paths(image, "sh", "-c", "/app/server --check") == []


def test_a_link_of_the_image_is_followed_to_its_script(image: Path) -> None:
    (image / "start").symlink_to("/usr/local/start.sh")
    write(image, "/usr/local/start.sh", "/usr/local/more")
    write(image, "/usr/local/more", "")
    assert list_paths(image, "/start") == ["/start", "/usr/local/more"]
