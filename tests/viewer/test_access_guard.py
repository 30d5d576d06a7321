import re

import pytest

from rollbook.viewer.server import is_own_host
from support.viewing import TOKEN


def test_without_the_token_nothing_is_shown(served):
    for path in ("/", "/app.css", "/api/runs", "/api/live?run=baseline", "/nothing", "/api/runs?token=wrong"):
        status, headers, body = served.ask(path, Accept="*/*")
        assert status == 401, path
        assert b"Calculus" not in body
        assert "Set-Cookie" not in headers


def test_the_token_in_the_address_becomes_a_strict_cookie(served):
    status, headers, body = served.ask(f"/?token={TOKEN}", Accept="*/*")
    cookie, place = headers["Set-Cookie"], re.search(rb'src="(.*)js/door.js"', body)[1].decode()
    assert status == 200
    assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict"))
    for path in (place, f"{place}js/main.js", f"{place}api/runs"):
        assert served.ask(path, Cookie=cookie.partition(";")[0])[0] == 200
        assert served.ask(path, Accept="*/*")[0] == 401


def test_what_is_asked_with_the_token_is_answered_at_once(served):
    status, headers, body = served.ask(f"/api/runs?token={TOKEN}", Accept="*/*")
    assert (status, headers["Content-Type"].partition(";")[0]) == (200, "application/json")
    assert b"baseline" in body


def test_no_other_server_on_this_machine_is_sent_the_cookie(served):
    """A browser sends a cookie to every port of a host, but only below its path, which nobody else knows."""
    _, headers, _ = served.ask(f"/?token={TOKEN}", Accept="*/*")
    path = re.search(r"Path=(/\w{24}/)", headers["Set-Cookie"])[1]
    assert TOKEN not in path


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", ""]
)
def test_another_host_is_not_answered(served, host):
    """A page that has its own name point at this machine sends that name."""
    headers = {"Host": host.format(port=served.port), "Authorization": f"Bearer {TOKEN}"}
    assert served.ask("/api/runs", **headers)[0] == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_another_origin_is_not_answered(served, origin):
    headers = {"Origin": origin.format(port=served.port), "Authorization": f"Bearer {TOKEN}"}
    status, answered, _ = served.ask("/api/runs", **headers)
    assert status == 403
    assert not any(name.lower().startswith("access-control") for name in answered)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_may_not_fetch(served, site):
    assert served.ask("/api/runs", Sec_Fetch_Site=site, Authorization=f"Bearer {TOKEN}")[0] == 403


def test_our_own_page_may(served):
    own = f"http://localhost:{served.port}"
    headers = {"Host": own.removeprefix("http://"), "Origin": own, "Sec-Fetch-Site": "same-origin"}
    assert served.ask("/api/runs", **headers, Authorization=f"Bearer {TOKEN}")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(served, method):
    assert served.ask("/api/runs", method)[0] == 405


def test_every_answer_has_the_policy(served):
    for path in ("/", "/js/main.js", "/api/runs", "/api/run", "/nothing"):
        _, headers, _ = served.ask(path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("host", "port", "ours"),
    [
        ("127.0.0.1", 80, True),
        ("localhost:80", 80, True),
        ("[::1]", 80, True),
        ("[::1]:8000", 8000, True),
        ("127.0.0.1", 8000, False),
        ("evil.example", 80, False),
        ("", 80, False),
    ],
)
def test_a_browser_leaves_port_80_out(host, port, ours):
    assert is_own_host(host, port) is ours
