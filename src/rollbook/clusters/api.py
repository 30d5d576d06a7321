"""`rollbook.submit`: hand a run to a cluster from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.clusters import submission as submitting
from rollbook.clusters.job_files import ServerSpec, SubmissionOrder
from rollbook.clusters.profile import ClusterProfile, check_profile, read_profile
from rollbook.clusters.ray.runs import submit_to_ray
from rollbook.clusters.submission import Submission
from rollbook.core import JSON, Limits, Sampling, Settings
from rollbook.engine import Request, update_settings
from rollbook.errors import UsageError


def submit(
    env: str,
    model: str | Sequence[str] = (),
    *,
    on: Literal["slurm", "ray"] = "slurm",
    address: str = "auto",
    cluster: str | Path | ClusterProfile = ClusterProfile(),  # noqa: B008 - frozen
    workers: int | None = None,
    serve: Mapping[str, JSON] | None = None,
    pack: str | Path | None = None,
    install: bool = False,
    sandbox: bool = False,
    sandbox_packages: Sequence[str] = (),
    out: str | Path,
    model_name: str = "",
    samples: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
    data: str | None = None,
    template: str | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    **settings: JSON,
) -> Submission:
    """Freeze a run's plan and hand it to a cluster; returns as soon as that has taken it, with the ids.

    On Ray it is the cluster at `address`, or the one that this process is in already.

    `cluster` is the path of a profile, or one made here; what it says of samples, seed and workers holds where nothing
    else is given. `serve` has the fields of clusters.order.Serve, such as {"kind": "vllm", "model_path": "/models/m"}.
    `sandbox` is --with-sandbox, with the packages that code may import.
    """
    if on not in ("slurm", "ray"):
        raise UsageError(f"on={on!r}: slurm or ray; `rollbook.run` works on this machine")
    for name, value in (("workers", workers), ("samples", samples)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value}: give a number from 1 on")
    profile = check_profile(cluster, "cluster") if isinstance(cluster, ClusterProfile) else read_profile(cluster)
    count = workers or profile.workers or 1
    targets = [model] if isinstance(model, str) else list(model)
    request = Request(
        env=env,
        model=targets,
        model_name=model_name,
        samples=samples or profile.samples or 1,
        limit=limit,
        out=str(out),
        seed=seed if seed is not None else profile.seed or 0,
        data=data,
        template=template,
        sampling=sampling,
        limits=limits,
        settings=update_settings(Settings(), {**settings, "workers": count}),
    )
    order = SubmissionOrder(
        profile=profile,
        workers=count,
        serve=_make_server_spec(serve, targets, model_name),
        install=install,
        sandbox=sandbox,
        sandbox_packages=list(sandbox_packages),
        ray=address if on == "ray" else "",
    )
    if order.ray:
        return submit_to_ray(request, order, Path(pack) if pack else None, lambda _: None)
    return submitting.submit_request(request, order, Path(pack) if pack else None, lambda _: None)


def _make_server_spec(fields: Mapping[str, JSON] | None, targets: Sequence[str], name: str) -> ServerSpec | None:
    if fields is None:
        return None
    if targets:
        raise UsageError(f"model {targets[0]}: `serve` serves the model itself; give one of them")
    named = {"name": name or fields.get("model_path"), **fields}
    try:
        return msgspec.convert(named, ServerSpec)
    except msgspec.ValidationError as error:
        raise UsageError(f"serve: {error}") from None
