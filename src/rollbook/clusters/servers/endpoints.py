"""RUN/endpoints/NONCE.json: where a server of this run listens. Whole or absent; gone with its server."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.book.durable import write_whole, writing
from rollbook.core.json import pretty


class Endpoint(msgspec.Struct, frozen=True):
    """A server that is ready. `shared`: any worker of the run may ask it."""

    nonce: str
    host: str
    port: int
    name: str
    pid: int
    shared: bool
    job: str = ""

    @property
    def url(self) -> str:
        """What a worker asks."""
        return f"http://{self.host}:{self.port}/v1"


_decoder = msgspec.json.Decoder(Endpoint)


def publish(run: Path, endpoint: Endpoint) -> None:
    """Tell everyone at this run."""
    with writing(run):
        (run / "endpoints").mkdir(exist_ok=True)
        write_whole(run / "endpoints" / f"{endpoint.nonce}.json", pretty(endpoint))


def withdraw(run: Path, endpoint: Endpoint) -> None:
    """It is no longer there."""
    (run / "endpoints" / f"{endpoint.nonce}.json").unlink(missing_ok=True)


def shared_endpoints(run: Path) -> dict[str, Endpoint]:
    """The servers that every worker may ask, by nonce."""
    found = {}
    for path in sorted((run / "endpoints").glob("[!.]*.json")):
        try:
            endpoint = _decoder.decode(path.read_bytes())
        except FileNotFoundError:
            continue  # withdrawn just now
        if endpoint.shared:
            found[endpoint.nonce] = endpoint
    return found
