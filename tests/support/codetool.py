"""Talking to a code environment in tests, one sample or many."""

from contextlib import contextmanager

import pytest

from rollbook.sandbox import Sandbox, SandboxError
from rollbook.trainers.nemo_rl import CodeEnvironment


@contextmanager
def code_environment(**settings):
    """An environment in this process; the test is skipped where there is no sandbox."""
    try:
        with Sandbox(size=1):
            pass
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    env = CodeEnvironment(settings)
    try:
        yield env
    finally:
        env.shutdown()


def run_on(session):
    """Turn after turn, until one raises: what was killed may not be dead just yet."""
    while True:
        session.run_sync("1")


def log(content):
    """A conversation that ends with this."""
    return [{"role": "user", "content": "Solve it."}, {"role": "assistant", "content": content}]


def code(text):
    """A message that holds this code."""
    return f"<code>{text}</code>"


class Talk:
    """One sample's turns: every one gets the metadata that the last one gave back, as a trainer does it."""

    def __init__(self, env, **metadata):
        self.env, self.metadata = env, metadata

    def say(self, message):
        """What the environment observes of a message."""
        back = self.env.step([log(message)], [self.metadata])
        self.metadata = back.metadata[0]
        return back.observations[0]["content"]

    def run(self, text):
        """What it observes of code, as one line of text."""
        content = self.say(code(text))
        assert (content.count("<result>"), content.count("</result>")) == (1, 1)
        return content.partition("<result>")[2].partition("</result>")[0].strip()
