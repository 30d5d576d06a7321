"""The mailbox."""

from __future__ import annotations

from rollbook.core.json import JSON
from rollbook.environments.environment import Environment, tool
from rollbook.environments.workplace.names import ME
from rollbook.environments.workplace.world import Record, World


def _sent(world: World, to: list[str], subject: str, body: str, answers: str = "") -> str:
    if not to:
        raise ValueError("a mail needs at least one address in `to`")
    record = {
        "folder": "sent",
        "sender": ME,
        "to": sorted({world.address(email) for email in to}),
        "subject": subject,
        "body": body,
        "date": world.now,
        "labels": [],
        "answers": answers,
    }
    return f"Sent {world.add('mails', record)}."


def _listed(name: str, mail: Record) -> Record:
    kept = ("folder", "sender", "to", "subject", "date", "labels")
    return {"id": name, **{field: mail[field] for field in kept}}


class Mail(Environment):
    """Reading does no harm; what is sent is sent."""

    @tool
    def search_mail(self, state: World, text: str = "", sender: str = "", folder: str = "") -> JSON:
        """List mails, the newest first, without their bodies.

        Args:
            text: A part of the subject or body.
            sender: A part of the sender's address.
            folder: inbox, sent or archive; leave it out for all.
        """
        found = [
            _listed(name, mail)
            for name, mail in state.tables["mails"].items()
            if text.lower() in f"{mail['subject']}\n{mail['body']}".lower()
            and sender.lower() in mail["sender"]
            and folder.lower() in ("", mail["folder"])
        ]
        return sorted(found, key=lambda mail: (mail["date"], mail["id"]), reverse=True)

    @tool
    def read_mail(self, state: World, mail_id: str) -> JSON:
        """A whole mail. Reading changes nothing."""
        return {"id": mail_id, **state.get("mails", mail_id)}

    @tool
    def send_mail(self, state: World, to: list[str], subject: str, body: str) -> str:
        """Send one mail.

        Args:
            to: Mail addresses; all of them get the same mail.
            subject: Its subject.
            body: Its text.
        """
        return _sent(state, to, subject, body)

    @tool
    def reply_mail(self, state: World, mail_id: str, body: str) -> str:
        """Answer a mail to its sender; the subject follows from it."""
        mail = state.get("mails", mail_id)
        return _sent(state, [mail["sender"]], f"Re: {mail['subject']}", body, mail_id)

    @tool
    def forward_mail(self, state: World, mail_id: str, to: list[str]) -> str:
        """Pass a mail on as it is."""
        mail = state.get("mails", mail_id)
        return _sent(state, to, f"Fwd: {mail['subject']}", mail["body"], mail_id)

    @tool
    def archive_mail(self, state: World, mail_id: str) -> str:
        """Move a mail from the inbox to the archive."""
        mail = state.get("mails", mail_id)
        if mail["folder"] != "inbox":
            raise ValueError(f"{mail_id} is not in the inbox but in {mail['folder']}")
        mail["folder"] = "archive"
        return f"Archived {mail_id}."

    @tool
    def label_mail(self, state: World, mail_id: str, label: str) -> str:
        """Put a label on a mail."""
        mail = state.get("mails", mail_id)
        mail["labels"] = sorted({*mail["labels"], label})
        return f"Labelled {mail_id}."

    @tool
    def delete_mail(self, state: World, mail_id: str) -> str:
        """Delete a mail for good; one that was sent stays."""
        if state.get("mails", mail_id)["folder"] == "sent":
            raise ValueError(f"{mail_id} was sent, and what is sent cannot be deleted")
        state.remove("mails", mail_id)
        return f"Deleted {mail_id}."
