"""The gateway: any agent program, in any language, calls a model through it and is recorded turn by turn.

`protocol` is the common form of a request; `chat_completions`, `responses` and `anthropic` translate each API to it and
back without I/O. `recorder` finds which call continues which and records one rollout, `server` answers over HTTP, and
`standalone` serves many programs at once.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.gateway.recorder import Record
    from rollbook.gateway.server import LocalGateway
    from rollbook.gateway.standalone import GatewayOptions, RolloutDefaults, serve_gateway
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["GatewayOptions", "LocalGateway", "Record", "RolloutDefaults", "serve_gateway"]
