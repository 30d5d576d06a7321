"""A real Chromium: the one on the PATH, driven by Playwright. Without either these tests are skipped, and say so."""

import shutil

import pytest

from support.sample_runs import HOSTILE, Pen, make, rollout, showcase
from support.viewing import Served

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: make test-browser installs it")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("NO CHROMIUM ON THE PATH: the viewer was not looked at (on Debian: apt install chromium)")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def viewer(tmp_path_factory):
    folder = showcase(tmp_path_factory.mktemp("browser") / "runs", tasks=60, samples=4)
    hostile = Pen(make(folder / "hostile", tasks=1, samples=1))
    hostile.score(rollout(hostile.book, 0, 0, text=HOSTILE))
    with Served(folder) as server:
        yield server


class Looked:
    """A page and what it did: what it asked for, and what it complained about."""

    def __init__(self, browser, server, **options):
        self.server = server
        self.context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        self.context.set_default_timeout(60_000)
        self.page = self.context.new_page()
        self.asked, self.complaints = [], []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)

    def go(self, address=""):
        """Open an address of the page and wait until it is there."""
        self.page.goto(self.server.url + address)
        self.there()
        return self.page

    def there(self):
        self.page.wait_for_selector("main[aria-busy=false]")

    @property
    def elsewhere(self):
        """What was asked of anyone but our server."""
        own = f"http://127.0.0.1:{self.server.port}/"
        return [url for url in self.asked if not url.startswith((own, "data:", "file:"))]


@pytest.fixture
def look(browser, viewer):
    opened = []

    def make_look(server=viewer, **options):
        opened.append(Looked(browser, server, **options))
        return opened[-1]

    yield make_look
    for each in opened:
        each.context.close()
