"""What run.json says of environments, and what the stored names of earlier versions mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbook.core import (
    Chunks,
    EnvironmentSpec,
    Limits,
    Manifest,
    ModelSpec,
    Plan,
    Rescored,
    Sampling,
    make_part,
    scoring_digest,
    translate_target,
)
from rollbook.core.schema import SCHEMA_FOLDER, generate_schemas

OWN = EnvironmentSpec("sums.py:Sums", "sums:Sums", {"level": 1}, "d1")


@pytest.mark.parametrize(
    ("target", "digest", "stored"),
    [
        ("rollbook.environments.mcqa:MCQA", "8b0e5d5575cbe8b304ea12ab45e4c039245b9b8ddfd6328c62ba90561726b7fe", 1),
        ("rollbook.environments.openenv:OpenEnv", "440d7cc4562db66c" + "0" * 48, 1),
        ("rollbook.environments.openenv:OpenEnv", "540d7cc4562db66c" + "0" * 48, None),
    ],
)
def test_an_environment_of_an_early_run_is_read_by_the_name_it_has_today(
    target: str, digest: str, stored: int | None
) -> None:
    spec = EnvironmentSpec("x", target, digest=digest)
    assert spec.target == f"builtin:{target.partition(':')[2].lower()}"
    assert spec.digest == (digest if stored is None else scoring_digest(stored))
    assert (spec.target, spec.digest) == translate_target(target, digest)


def test_an_environment_of_a_user_keeps_its_name_and_digest() -> None:
    assert (OWN.target, OWN.digest) == ("sums:Sums", "d1")
    assert scoring_digest(2) == "scoring-version-2"


OTHERS = [
    EnvironmentSpec("x", "sums:Other", {"level": 1}, "d1"),
    EnvironmentSpec("x", "sums:Sums", {"level": 2}, "d1"),
    EnvironmentSpec("x", "sums:Sums", {"level": 1}, "d2"),
]


def make_manifest(rescored: Rescored | None) -> Manifest:
    environments = {"a": OWN, "b": OTHERS[0]}
    return Manifest(2, "r", 0.0, environments, ModelSpec("m"), Sampling(), 1, 0, Limits(), {}, rescored=rescored)


def test_scores_are_mixed_if_another_verifier_made_some_of_them() -> None:
    again = EnvironmentSpec("elsewhere.py:Sums", "sums:Sums", {"level": 1}, "d1", snapshot="s")
    assert OWN.is_same_source(again)
    assert not any(OWN.is_same_source(other) for other in OTHERS)
    assert make_manifest(None).mixed is False
    assert make_manifest(Rescored("failed", {"a": [again], "b": [OTHERS[0]]})).mixed is False
    assert make_manifest(Rescored("failed", {"a": [again, OTHERS[1]]})).mixed is True


def test_a_chunk_has_as_many_keys_as_its_size() -> None:
    chunks = Chunks(Plan(2, [make_part((0, 7), (0, 3), 1), make_part((7, 9), (1, 4), 2)]))
    assert [chunk.size for chunk in chunks] == [len(list(chunk)) for chunk in chunks]
    for outside in (-1, len(chunks)):
        with pytest.raises(IndexError):
            _ = chunks[outside]


def test_the_schemas_are_those_that_were_frozen() -> None:
    made = generate_schemas()
    assert made == {path.stem: json.loads(path.read_text()) for path in Path(SCHEMA_FOLDER).glob("*.json")}
    texts = [value for schema in made.values() for value in find_descriptions(schema)]
    assert any("\n" in text for text in texts)
    assert not any("\n " in text for text in texts)


def find_descriptions(value: object) -> list[str]:
    if isinstance(value, list):
        return [text for item in value for text in find_descriptions(item)]
    if not isinstance(value, dict):
        return []
    own = [value["description"]] if isinstance(value.get("description"), str) else []
    return own + [text for item in value.values() for text in find_descriptions(item)]
