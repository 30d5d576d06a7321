"""A page follows a run that is being written."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.sample_runs import Pen, fill, make, rollout
from support.viewing import Served

COUNT = """
window.listening = 0;
const add = EventTarget.prototype.addEventListener, remove = EventTarget.prototype.removeEventListener;
const lasting = (target) => target === window || target === document || target instanceof MediaQueryList;
EventTarget.prototype.addEventListener = function (...given) {
  if (lasting(this)) window.listening += 1;
  return add.apply(this, given);
};
EventTarget.prototype.removeEventListener = function (...given) {
  if (lasting(this)) window.listening -= 1;
  return remove.apply(this, given);
};
"""
ROOT = Path(__file__).parents[3]
ROLLBOOK = [sys.executable, "-c", "from rollbook.cli.main import main; main()"]
TASKS = 150
SUMS = f"""
from rollbook import Environment, Task

class Sums(Environment):
    def tasks(self):
        for i in range({TASKS}):
            yield Task(id=f"sum-{{i}}", prompt=f"What is {{i}} + {{i}}?", answer=str(2 * i))

    async def verify(self, task, rollout):
        return rollout.text.endswith(f"#### {{task.answer}}")
"""


@pytest.fixture
def slow_run(tmp_path):
    """A run of real workers against an endpoint that takes its time."""
    (tmp_path / "sums.py").write_text(SUMS)
    (tmp_path / "runs").mkdir()
    command = [sys.executable, str(ROOT / "benchmarks" / "mock.py"), "--latency-ms", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as endpoint:
        url = endpoint.stdout.readline().strip()
        arguments = ["run", "sums.py:Sums", "-m", url, "-k", "1", "-c", "1", "-o", "runs/going"]
        run = subprocess.Popen(
            [*ROLLBOOK, *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            while not (tmp_path / "runs" / "going" / "run.json").exists():
                assert run.poll() is None
            yield tmp_path / "runs", run
        finally:
            run.kill()
            run.wait()
            endpoint.terminate()


def scored(page):
    return int(page.locator(".head .progress").inner_text().split("/")[0].replace(",", ""))


def test_a_page_follows_a_run_while_it_writes(look, slow_run):
    folder, run = slow_run
    with Served(folder) as server:
        looked = look(server)
        page = looked.go("#/run/going")
        first = scored(page)
        page.wait_for_function(
            "n => parseInt(document.querySelector('.head .progress').innerText) > n", arg=first, timeout=30_000
        )
        run.wait(60)
        page.wait_for_selector(f".head .progress:has-text('{TASKS} / {TASKS}')", timeout=30_000)
        page.wait_for_selector(".head .state.finished", timeout=30_000)
        assert page.locator("table .cell.pending").count() == 0
        assert looked.complaints == []
        looked.context.close()


def test_what_was_chosen_stays_chosen_while_the_table_grows(look, tmp_path):
    pen = Pen(make(tmp_path / "runs" / "growing", tasks=5, samples=2))
    with Served(tmp_path / "runs") as server:
        looked = look(server)
        page = looked.go("#/run/growing")
        page.wait_for_timeout(1200)
        page.keyboard.press("j")
        page.keyboard.press("j")
        pen.score(rollout(pen.book, 0, 0))
        page.wait_for_selector("table .cell.scored", timeout=30_000)
        assert page.locator("tr.at th a").inner_text() == "area-1"
        looked.context.close()


def test_a_live_page_keeps_what_one_has_in_hand_and_holds_on_to_nothing(look, tmp_path):
    pen = Pen(make(tmp_path / "runs" / "growing", tasks=9, samples=2))
    with Served(tmp_path / "runs") as server:
        looked = look(server)
        page = looked.page
        page.add_init_script(COUNT)
        looked.go("#/run/growing")
        page.wait_for_timeout(1200)
        page.click("summary:has-text('All numbers')")
        page.focus("table.tasks a:text-is('area-2')")
        counts = []
        for row in range(4):
            pen.score(rollout(pen.book, row, 0))
            page.wait_for_selector(f".head .progress:has-text('{row + 1} / 18')", timeout=30_000)
            page.wait_for_timeout(900)
            counts.append(page.evaluate("window.listening"))
        assert page.locator("details.more").get_attribute("open") is not None
        assert page.evaluate("document.activeElement.textContent") == "area-2"
        assert counts[-1] == counts[0]
        assert page.locator("figure canvas").count() == 3
        looked.context.close()


def test_what_is_selected_stays_until_it_is_let_go(look, tmp_path):
    pen = Pen(make(tmp_path / "runs" / "growing", tasks=3, samples=2))
    with Served(tmp_path / "runs") as server:
        looked = look(server)
        page = looked.go("#/run/growing")
        page.wait_for_timeout(1200)
        page.evaluate("getSelection().selectAllChildren(document.querySelector('.head h1'))")
        pen.score(rollout(pen.book, 0, 0))
        page.wait_for_timeout(2500)
        assert page.evaluate("String(getSelection())") == "growing"
        page.evaluate("getSelection().removeAllRanges()")
        page.wait_for_selector(".head .progress:has-text('1 / 6')", timeout=30_000)
        looked.context.close()


def test_a_run_that_was_put_in_its_place_is_shown_as_itself(look, tmp_path):
    fill(make(tmp_path / "runs" / "x", tasks=3, samples=2, model="old-model"))
    with Served(tmp_path / "runs") as server:
        looked = look(server)
        page = looked.go("#/run/x")
        assert "old-model" in page.locator(".head").inner_text()
        shutil.rmtree(tmp_path / "runs" / "x")
        make(tmp_path / "runs" / "x", tasks=3, samples=2, model="new-model")
        page.wait_for_selector(".head:has-text('new-model')", timeout=30_000)
        assert page.locator("table .cell.scored").count() == 0
        looked.context.close()
