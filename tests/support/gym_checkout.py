"""A folder that looks like a checkout of NeMo Gym, with servers that start as Gym's do and in no time."""

from pathlib import Path

APP = """
import json, os, pathlib, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

NAME = os.environ["NEMO_GYM_CONFIG_PATH"]
CONFIG = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])
(block,) = next(iter(CONFIG[NAME].values())).values()
HERE = pathlib.Path(CONFIG["here"])
starts = HERE / f"{NAME}.starts"
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
(HERE / f"{NAME}.config").write_text(json.dumps(CONFIG))
(HERE / f"{NAME}.pid").write_text(f"{os.getpid()}\\n")
COOKIE = f"Toy___{block.get('cookie', NAME)}"
seen = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, value, status=200):
        raw = json.dumps(value).encode()
        session = (self.headers.get("Cookie") or "").partition("=")[2] or f"{os.getpid()}-{len(seen)}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Set-Cookie", f"{COOKIE}={session}; path=/")
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self):
        self.say({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/seed_session":
            seen.add(len(seen))
            self.say({})
        elif self.path == "/dies" and not (HERE / "died").exists():
            (HERE / "died").touch()
            os._exit(9)
        elif self.path == "/verify":
            self.say({"reward": float(block.get("reward", 1.0)), "by": NAME})
        else:
            self.say("fine")


print(f"({NAME}) starting on {block['port']}", flush=True)
if block.get("broken"):
    sys.exit("ValueError: this server is broken")
if block.get("taken") and len(starts.read_text()) <= block["taken"]:
    sys.exit("[Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use")
ThreadingHTTPServer((block["host"], block["port"]), Handler).serve_forever()
"""


def make_checkout(folder: Path) -> Path:
    """A checkout with a resources server and a model server called toy."""
    home = folder / "Gym"
    (home / "nemo_gym").mkdir(parents=True)
    (home / "nemo_gym" / "__init__.py").write_text("import ray\n")
    for kind in ("resources_servers", "responses_api_models"):
        (home / kind / "toy").mkdir(parents=True)
        (home / kind / "toy" / "app.py").write_text(APP)
    return home


def toy(**settings: object) -> dict[str, object]:
    """The block of a resources server."""
    return {"resources_servers": {"toy": {"entrypoint": "app.py", "domain": "other", **settings}}}


def write_config(home: Path, **blocks: object) -> str:
    """A configuration in the checkout; gives the spec that runs it."""
    import yaml

    path = home / "config.yaml"
    path.write_text(yaml.safe_dump({"here": str(home), **blocks}))
    return f"gym:{path}"
