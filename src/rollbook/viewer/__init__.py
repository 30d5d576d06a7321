"""The web viewer, its one-file export and report.html.

`run_cache` keeps runs open and reads what was appended, `journal_index` finds every counted rollout, `snapshot` is a
run at one moment, the `*_pages` modules compute what each page shows, `server` checks access and serves them. `web/`
is the page itself: plain modules without a build step; `web/vendor` has its libraries with their licences. Everything
that a model or an environment wrote is untrusted and shown as text.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.viewer.export import export_run, write_report_page
    from rollbook.viewer.run_cache import RunCache, RunFolder
    from rollbook.viewer.server import view
    from rollbook.viewer.vocabulary import Vocabulary
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["RunCache", "RunFolder", "Vocabulary", "export_run", "view", "write_report_page"]
