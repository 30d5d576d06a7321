"""How a browser comes in: by any link, and with a cookie that goes nowhere else."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@pytest.fixture
def neighbour():
    """Another server on this machine, and the cookies that it is sent."""
    sent = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(self.headers.get("Cookie"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    # A server of one thread would wait for ever, in shutdown, for a connection that Chromium opened ahead of need.
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", sent
        server.shutdown()
        thread.join()


def test_a_link_on_another_site_opens_the_page(look, viewer):
    looked = look()
    page = looked.page
    page.goto(f"data:text/html,<a href='{viewer.url}'>open</a>")
    page.click("a")
    page.wait_for_selector("table tbody tr")
    page.reload()
    page.wait_for_selector("table tbody tr")
    assert "token" not in page.url


def test_another_server_on_this_machine_is_not_sent_the_cookie(look, neighbour):
    address, sent = neighbour
    looked = look()
    page = looked.go()
    page.goto(address)
    assert set(sent) == {None}
    page.go_back()
    page.wait_for_selector("table tbody tr")
