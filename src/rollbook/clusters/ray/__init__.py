"""Workers as actors of a Ray cluster. Ray only starts them; state and behaviour are as everywhere else.

`actors` connects to a cluster and keeps one worker process per actor, `runs` runs, submits and resumes, `worker` and
`driver` are the modules that are run with `python -m`. Ray is imported when a cluster is joined, not before.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.clusters.ray.actors import import_ray
    from rollbook.clusters.ray.runs import (
        RayResume,
        is_detached,
        resume_detached,
        resume_here,
        run_on_ray,
        submit_to_ray,
    )
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["RayResume", "import_ray", "is_detached", "resume_detached", "resume_here", "run_on_ray", "submit_to_ray"]
