"""Artifacts of a rollout on this machine; no container is needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rollbook.environments.harbor.artifacts import keep_artifacts


class HandleWithoutFiles:
    async def download(self, source: str, folder: Path, *, max_bytes: int) -> list[str]:
        raise FileNotFoundError(source)


@pytest.mark.parametrize("has_run", [True, False])
def test_a_run_leaves_no_folder_for_artifacts_elsewhere_if_its_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    handle: Any = HandleWithoutFiles()

    async def main() -> None:
        async with keep_artifacts(handle, ["/app"], tmp_path / "run" if has_run else None) as collected:
            assert collected.missing == ["/app", "/logs/artifacts"]
            assert len(list(temporary.glob("*/*"))) == (0 if has_run else 1)
        assert list(temporary.glob("*/*")) == []

    asyncio.run(main())
