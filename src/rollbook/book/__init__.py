"""The run directory ("book"): everything about a run, in plain files.

`Book` opens a run directory and `BookDraft` creates one. `Journal` appends lines durably, `ChunkClaimer` claims chunks
by lease, `CountedLines` decides which line of a key counts, `rollouts` streams the counted lines. The package imports
core, processes and tokens, and contains nothing about models and environments.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.book.book import Book, BookDraft, missing_run_error, refuse_occupied, refuse_url, remove_unused_run
    from rollbook.book.claim_order import TaskLengths, find_lengths, open_ordered_round, open_profile, write_lengths
    from rollbook.book.claims import (
        MAX_WORKER_DEATHS,
        REFRESH_S,
        ChunkClaimer,
        Claim,
        KeyHistory,
        is_closed,
        is_finished,
    )
    from rollbook.book.counted_lines import (
        ContestedLines,
        CountedLines,
        FailedLineHeader,
        FinalFailures,
        KeyMap,
        LineIndex,
        LineRules,
        ScoredLineHeader,
        is_still_final,
        iterate_parts,
        list_journals,
        read_line_before,
        read_turns,
        rollouts,
        sidecar_path,
        unplanned_key_error,
        worker_of_journal,
    )
    from rollbook.book.durable_files import (
        advise_on_disk,
        explain_disk_errors,
        lock_run,
        make_unwritable,
        sync_folder,
        write_atomically,
        write_new,
    )
    from rollbook.book.heartbeats import (
        HEARTBEAT_S,
        InFlightKeys,
        WorkerGone,
        count_workers,
        make_presence,
        next_heartbeat_s,
        publish_worker_gone,
        read_presences,
        write_heartbeat,
    )
    from rollbook.book.journal import Journal, JournalEntry
    from rollbook.book.json_lines import (
        DamagedLine,
        LineChecker,
        LineReader,
        number_damaged_lines,
        read_line_blocks,
        read_whole_lines,
    )
    from rollbook.book.leases import Leases, PeerMonitor, WorkerMonitor, remove_dead_claim_files
    from rollbook.book.media import (
        MEDIA_FOLDER,
        MediaStore,
        list_media,
        put_media_in,
        read_files_into,
    )
    from rollbook.book.seals import SealedExtents, Seals, find_reopened_kinds, write_seals
    from rollbook.book.source_copies import digest_source, is_source_edited, list_source_files
    from rollbook.book.status import GroupStatus, RunStatus, has_pending, name_state, read_exact_status, read_status
    from rollbook.book.task_groups import TaskGroups, is_reported_by_field
    from rollbook.book.tasks import TaskFile, read_rows, store_task_media
    from rollbook.book.token_counts import SpentTokens
    from rollbook.book.verification import Damage, RunVerification, verify_run
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "HEARTBEAT_S",
    "MAX_WORKER_DEATHS",
    "MEDIA_FOLDER",
    "REFRESH_S",
    "Book",
    "BookDraft",
    "ChunkClaimer",
    "Claim",
    "ContestedLines",
    "CountedLines",
    "Damage",
    "DamagedLine",
    "FailedLineHeader",
    "FinalFailures",
    "GroupStatus",
    "InFlightKeys",
    "Journal",
    "JournalEntry",
    "KeyHistory",
    "KeyMap",
    "Leases",
    "LineChecker",
    "LineIndex",
    "LineReader",
    "LineRules",
    "MediaStore",
    "PeerMonitor",
    "RunStatus",
    "RunVerification",
    "ScoredLineHeader",
    "SealedExtents",
    "Seals",
    "SpentTokens",
    "TaskFile",
    "TaskGroups",
    "TaskLengths",
    "WorkerGone",
    "WorkerMonitor",
    "advise_on_disk",
    "count_workers",
    "digest_source",
    "explain_disk_errors",
    "find_lengths",
    "find_reopened_kinds",
    "has_pending",
    "is_closed",
    "is_finished",
    "is_reported_by_field",
    "is_source_edited",
    "is_still_final",
    "iterate_parts",
    "list_journals",
    "list_media",
    "list_source_files",
    "lock_run",
    "make_presence",
    "make_unwritable",
    "missing_run_error",
    "name_state",
    "next_heartbeat_s",
    "number_damaged_lines",
    "open_ordered_round",
    "open_profile",
    "publish_worker_gone",
    "put_media_in",
    "read_exact_status",
    "read_files_into",
    "read_line_before",
    "read_line_blocks",
    "read_presences",
    "read_rows",
    "read_status",
    "read_turns",
    "read_whole_lines",
    "refuse_occupied",
    "refuse_url",
    "remove_dead_claim_files",
    "remove_unused_run",
    "rollouts",
    "sidecar_path",
    "store_task_media",
    "sync_folder",
    "unplanned_key_error",
    "verify_run",
    "worker_of_journal",
    "write_atomically",
    "write_heartbeat",
    "write_lengths",
    "write_new",
    "write_seals",
]
