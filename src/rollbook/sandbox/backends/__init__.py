"""How a guest is started: forked from a zygote, with bubblewrap, or on a remote sandbox server."""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.sandbox.backends.remote import RemoteSandbox
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["RemoteSandbox"]
