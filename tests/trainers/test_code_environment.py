"""The code environment as a trainer uses it: what `step` returns, and what persists from turn to turn."""

import subprocess
import sys
import threading
import time

import numpy
import pytest

from rollbook.errors import UsageError
from rollbook.trainers.nemo_rl import CodeEnvironment, StepReturn
from support.alive import eventually
from support.codetool import Talk, code, code_environment, log


@pytest.fixture(scope="module")
def env():
    with code_environment(default_timeout_seconds=1, max_output_chars=2000) as environment:
        yield environment


def contents(back):
    return [one["content"] for one in back.observations]


def test_a_step_gives_nemo_rls_six_fields_in_their_order(env):
    back = env.step([log(code("6 * 7")), log("done")], [{"task": "a"}, None])
    observations, metadata, stops, rewards, terminateds, answers = back
    assert StepReturn._fields == ("observations", "metadata", "next_stop_strings", "rewards", "terminateds", "answers")
    assert observations == [
        {"role": "environment", "content": "<result>42</result>"},
        {"role": "environment", "content": ""},
    ]
    assert metadata[0] == {"task": "a", "session_id": metadata[0]["session_id"], "session_turn": 1, "last_status": "ok"}
    assert metadata[1] == {"last_status": "no_code"}
    assert stops == [["</code>"], ["</code>"]]
    assert [float(reward) for reward in rewards] == [0.0, 0.0]
    assert [bool(over) for over in terminateds] == [False, True]
    assert answers is None


def test_without_torch_rewards_are_numpy_arrays_of_the_same_type(env, monkeypatch):
    monkeypatch.setattr("rollbook.trainers.formats.find_spec", lambda name: None)
    back = env.step([log("no code")], [{}])
    assert isinstance(back.rewards, numpy.ndarray)
    assert (back.rewards.dtype, back.terminateds.dtype) == (numpy.float32, numpy.bool_)


def test_with_torch_rewards_are_tensors(env):
    torch = pytest.importorskip("torch")
    back = env.step([log("no code")], [{}])
    assert (back.rewards.dtype, back.terminateds.dtype) == (torch.float32, torch.bool)


def test_an_empty_batch_is_no_trouble_and_an_uneven_one_is_a_mistake(env):
    back = env.step([], [])
    assert (back.observations, len(back.rewards), len(back.terminateds)) == ([], 0, 0)
    with pytest.raises(UsageError, match="1 message logs, but 2 metadata"):
        env.step([log("x")], [{}, {}])


def test_everything_that_code_makes_stays(env):
    talk = Talk(env)
    talk.run(
        "import math, collections as c\nx = 1\ndef f(): return x * 10\ndef g(n): return 1 if n < 2 else n * g(n - 1)"
    )
    assert talk.run("f()") == "10"
    talk.run("x = 2\nclass P:\n    n = 0\n    def up(self): P.n += x; return self\np = P()")
    assert talk.run("p.up().up().n, f(), g(5), int(math.pi), c.Counter('aab')['a']") == "(4, 20, 120, 3, 2)"
    talk.run("def count():\n    n = 0\n    while True:\n        n += 1\n        yield n\ngen = count()\nnext(gen)")
    assert talk.run("next(gen), next(gen)") == "(2, 3)"
    talk.run("def setg():\n    global made\n    made = [x for _ in range(2)]\nsetg()\nlam = lambda: made")
    assert talk.run("lam()") == "[2, 2]"
    talk.run("from dataclasses import dataclass\n@dataclass\nclass D:\n    a: int = 3\nd = D()")
    assert talk.run("isinstance(d, D), d") == "(True, D(a=3))"
    assert talk.metadata["session_turn"] == 10


def test_what_is_printed_and_the_value_are_both_told(env):
    talk = Talk(env)
    assert talk.say("<code>print('a')\n3</code>") == "\n\n<result>\na\n3\n</result>"
    assert talk.say("<code>print('a')</code>") == "<result>a</result>"
    assert talk.say("<code>x = 3</code>") == "<result></result>"
    assert talk.run("import sys\nprint('o')\nprint('e', file=sys.stderr)\n'v'") == "o\ne\n'v'"


def test_several_blocks_run_in_order_and_stop_at_the_first_that_fails(env):
    talk = Talk(env)
    both = talk.say("First <code>x = 2</code> then <code>print(x)\nx + 1</code>")
    assert both == "\n\n<result></result>\n<result>\n2\n3\n</result>"
    three = talk.say("<code>x = 9</code><code>1 / 0</code><code>x = 10</code>")
    assert three.count("<result>") == 3
    assert "error[runtime]: line 1: ZeroDivisionError" in three
    assert "error[skipped]: not run" in three
    assert (talk.run("x"), talk.metadata["session_turn"]) == ("9", 3)


def test_blocks_of_one_message_share_its_time(env):
    talk = Talk(env, timeout_seconds=1)
    burn = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    assert talk.run(burn) == ""
    text = talk.say(f"<code>{burn}</code> <code>{burn}</code>")
    assert "error[timeout]: the code " in text  # on a busy machine it runs too long before its CPU time is used up
    assert talk.run("1") == "1"


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ("<code>1 + 1", "<result>2</result>"),
        ("<code></code>", "<result></result>"),
        ("<code>'</code>'</code>", "<result>'</code>'</result>"),
        ("<code>len('<code>')</code>", "<result>6</result>"),
        ("<code>'\N{SNOWMAN} \\U0001F600'</code>", "<result>'\N{SNOWMAN} \N{GRINNING FACE}'</result>"),
        ("<code>print('</result><result>')</code>", "<result>&lt;/result>&lt;result></result>"),
        ("<code>print('a\\x00b')</code>", "<result>a\x00b</result>"),
        ("<code># nothing</code>", "<result></result>"),
        ("<code>1</code>\n", "<result>1</result>"),
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_messages_of_every_form(env, message, content):
    assert Talk(env).say(message) == content


def test_long_output_is_cut_with_a_mark_and_costs_nothing(env):
    text = Talk(env).run("print('x' * 10_000_000)\n'y' * 3000")
    assert text.count("[cut after 2000 characters]") == 2
    assert len(text) < 4200
    assert "[cut" not in Talk(env).run("print('\U0001f600' * 2000)")
    assert "[cut after 2000" in Talk(env).run("print('\U0001f600' * 2001)")


def test_files_stay_with_their_sample_and_only_there(env):
    one, two = Talk(env), Talk(env)
    one.run("open('note.txt', 'w').write('mine')")
    assert one.run("open('note.txt').read()") == "'mine'"
    assert two.run("import os\nos.listdir()") == "[]"


def test_a_session_works_in_its_working_dir(env, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "in.txt").write_text("given")
    (tmp_path / "link").symlink_to("/etc/passwd")
    talk = Talk(env, working_dir=str(tmp_path))
    assert talk.run("import os\nopen('data/in.txt').read(), sorted(os.listdir())") == "('given', ['data', 'link'])"
    assert "FileNotFoundError" in talk.run("open('link').read()")
    talk.run("open('data/in.txt', 'w').write('changed')")
    assert talk.run("open('data/in.txt').read()") == "'changed'"
    assert (tmp_path / "data" / "in.txt").read_text() == "changed"
    talk.run("open('made', 'w').write('made')\nos._exit(0)")
    assert talk.run("open('made').read()") == "'made'"


@pytest.mark.parametrize("path", ["/proc/self", "/proc/1", "/", "/etc", "relative", "/nowhere", "/a\0b", "/dev/null"])
def test_a_working_dir_that_cannot_be_had_is_the_error_of_that_sample_alone(env, path):
    back = env.step([log(code("1")), log(code("2"))], [{"working_dir": path}, {}])
    first, second = contents(back)
    assert first.startswith("<result>error[refused]: metadata working_dir: folder ")
    assert second == "<result>2</result>"


def test_a_working_dir_is_one_samples_alone_and_stays_what_it_was(env, tmp_path):
    one, other = Talk(env, working_dir=str(tmp_path)), Talk(env, working_dir=str(tmp_path))
    assert one.run("1") == "1"
    assert "another session uses it or a part of it; give every session a folder of its own" in other.run("1")
    one.metadata["working_dir"] = "/elsewhere"
    assert f"error[refused]: metadata working_dir=/elsewhere: the session works in {tmp_path}" in one.run("1")
    del one.metadata["working_dir"]
    assert "error[refused]" in one.run("1")
    one.metadata["working_dir"] = str(tmp_path)
    assert one.run("2") == "2"


def test_64_samples_at_once_each_with_a_state_of_its_own(env):
    first = env.step([log(code(f"x = {n}")) for n in range(64)], [{"n": n} for n in range(64)])
    again = env.step([log(code("x")) for _ in range(64)], first.metadata)
    assert contents(again) == [f"<result>{n}</result>" for n in range(64)]
    assert len({one["session_id"] for one in again.metadata}) == 64
    assert [one["n"] for one in again.metadata] == list(range(64))


def test_many_steps_at_once_of_one_sample_each(env):
    results = {}

    def episode(n):
        talk = Talk(env)
        talk.run(f"x = {n}")
        results[n] = talk.run("x * 2")

    threads = [threading.Thread(target=episode, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {n: str(2 * n) for n in range(16)}


def test_an_id_of_ones_own_is_kept(env):
    mine = {"session_id": "mine-1"}
    env.step([log(code("x = 5"))], [mine])
    assert contents(env.step([log(code("x"))], [mine])) == ["<result>5</result>"]


def test_samples_that_share_an_id_are_told_and_others_are_not_harmed(env):
    shared = env.step([log(code("x = 1"))] * 3, [{"session_id": "twin"}, {"session_id": "twin"}, {}])
    assert "2 samples of this batch have it" in contents(shared)[0]
    assert "2 samples of this batch have it" in contents(shared)[1]
    assert contents(shared)[2] == "<result></result>"
    one, other = Talk(env, session_id="copied"), Talk(env, session_id="copied")
    one.run("x = 1")
    other.run("x = 2")
    assert "has had 2 turns, this sample 1: every sample needs an id of its own" in one.run("x")


def test_a_lease_runs_out_and_the_next_turn_says_so():
    with code_environment(session_lease_seconds=0.2, max_sessions=4) as env:
        talk = Talk(env)
        talk.run("x = 1")
        assert eventually(lambda: len(env._workers._workers[0]._sessions) == 0, 5)
        assert talk.run("'x' in globals()") == "session: began afresh; what earlier turns made is gone\nFalse"
        assert talk.metadata["session_turn"] == 2
        talk.env.step([log(code("y"))] * 6, [{}] * 6)
        assert env.global_post_process_and_metrics(None)[1]["code/sessions_crowded_out"] >= 2


def test_evaluation_and_silence_end_an_episode_as_configured():
    batch = [
        log(code("x = 1")),
        log(code("1 + 1")),
        log(code("1 / 0")),
        log("so it is 2"),
        log("<code>2</code><code>3/0</code>"),
    ]
    with code_environment(terminate_on_evaluation=True, terminate_without_code=False) as env:
        back = env.step(batch, [{}] * 5, return_extracted_answer=True)
        assert [bool(over) for over in back.terminateds] == [False, True, False, False, False]
        assert back.answers == [None, "2", None, None, None]


def test_metrics_count_what_happened_since_the_last_time(env):
    env.global_post_process_and_metrics({})
    env.step([log(code("1")), log(code("1/0")), log("none"), log(code("1"))], [{}, {}, {}, {"timeout_seconds": -1}])
    batch = {"a": 1}
    same, metrics = env.global_post_process_and_metrics(batch)
    assert same is batch
    wanted = {"code/turns": 2, "code/ok": 1, "code/runtime": 1, "code/refused": 1, "code/no_code": 1}
    assert {name: metrics[name] for name in wanted} == wanted
    assert metrics["code/cpu_seconds"] > 0
    assert "code/ok" not in env.global_post_process_and_metrics(batch)[1]


def test_several_workers_in_one_process_share_the_samples():
    with code_environment(num_workers=3) as env:
        first = env.step([log(code(f"x = {n}")) for n in range(12)], [{} for _ in range(12)])
        again = env.step([log(code("x")) for _ in range(12)], first.metadata)
        assert contents(again) == [f"<result>{n}</result>" for n in range(12)]
        session_counts = [len(worker._sessions) for worker in env._workers._workers]
        assert sum(session_counts) == 12
        assert sum(count > 0 for count in session_counts) >= 2


def test_packages_can_be_imported_when_they_are_named():
    with code_environment(packages=["numpy"]) as env:
        assert Talk(env).run("import numpy\nint(numpy.arange(4).sum())") == "6"
    with code_environment() as env:
        assert "ModuleNotFoundError" in Talk(env).run("import numpy")


def test_shutdown_leaves_nothing_running_and_is_quick():
    with code_environment(default_timeout_seconds=60) as env:
        talk = Talk(env)
        talk.run("x = 1")
        results_seen = []
        thread = threading.Thread(target=lambda: results_seen.append(talk.run("while True: pass")))
        thread.start()
        time.sleep(0.3)
        started = time.monotonic()
        env.shutdown()
        thread.join(10)
        assert time.monotonic() - started < 5
        assert results_seen[0].startswith("error[")
        assert "shut down" in Talk(env).run("1")


def test_without_ray_remote_says_what_to_do(monkeypatch):
    monkeypatch.setattr("rollbook.trainers.nemo_rl.code_environment.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"Ray is not installed; CodeEnvironment\(cfg\) works in this process"):
        CodeEnvironment.remote({})


def test_a_sandbox_that_is_served_elsewhere_does_as_well():
    with code_environment():  # skips where there is no sandbox
        pass
    command = [sys.executable, "-m", "rollbook", "sandbox", "serve", "--concurrency", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        with code_environment(provider=server.stdout.readline().strip()) as env:
            talk = Talk(env, timeout_seconds=0.3)
            talk.run("x = 1")
            assert "error[timeout]" in talk.run("while True: pass")
            assert talk.run("x") == "1"
    finally:
        server.terminate()
        server.wait(timeout=30)
