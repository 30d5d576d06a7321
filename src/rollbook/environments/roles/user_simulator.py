"""`UserSimulator`: an environment whose user is played by the model of the role `user`, from a persona and a goal."""

from __future__ import annotations

from typing import ClassVar

from rollbook.core import Message, Rollout, Task
from rollbook.environments.answers.extraction import strip_thinking
from rollbook.environments.environment import Environment, EnvironmentState, ReplyMessage
from rollbook.errors import RolloutFailed, UsageError

USER_PROMPT = """You play a person who talks to an assistant. Stay in this role; you are never the assistant.

{persona}

What you want:
{goal}

Write only the next message of this person: short, in plain words, one point at a time. Say only what the person would \
say, and give details when the assistant asks for them. Do not make up facts that are not given here. When what you \
want is done, or the assistant has made clear that it will not do it, write {done} and nothing else."""

GREETING = "Hello. How can I help you?"
"""What the simulated user is answering with the first message of the task: many models expect this order."""
ROLE = "user"


class UserSimulator(Environment):
    """A mixin with `reply`: after every answer of the policy, the model of the role `user` writes the next message.

    A task has the first message of the user, and the fields `goal` and, if wanted, `persona`. The conversation ends
    when the user is done, or at a limit; then the rollout is scored as it is. All methods that share the state are
    async.
    """

    roles = (ROLE,)
    max_user_turns: ClassVar[int] = 12
    """How many messages the simulated user writes at most in a rollout."""
    max_user_tokens: ClassVar[int] = 4096
    """How many tokens these have together at most; the conversation ends after the one that reaches it."""
    max_message_tokens: ClassVar[int] = 512
    """How many tokens one of them has at most, thoughts included."""
    user_temperature: ClassVar[float] = 1.0
    done_word: ClassVar[str] = "[DONE]"
    """What the simulated user writes when the conversation is over."""

    def describe_user(self, task: Task) -> str:
        """Return the instructions of the model that plays the user; by default made of `persona` and `goal`."""
        goal = task.fields.get("goal")
        if not isinstance(goal, str) or not goal.strip():
            raise UsageError(f"task {task.id!r} has no goal for its user: Task(..., goal=TEXT), or write describe_user")
        persona = task.fields.get("persona") or "The person is polite and a little impatient."
        return USER_PROMPT.format(persona=persona, goal=goal.strip(), done=self.done_word)

    async def reply(self, task: Task, rollout: Rollout, state: EnvironmentState) -> ReplyMessage:
        """Return the next message of the simulated user; None when it is done or a limit is reached."""
        calls = [call for call in rollout.role_calls if call.role == ROLE]
        tokens = sum(call.completion_tokens for call in calls)
        if len(calls) >= self.max_user_turns or tokens >= self.max_user_tokens:
            return None
        call = await self.model(ROLE).ask(
            self.show_conversation(task, rollout),
            temperature=self.user_temperature,
            max_tokens=min(self.max_message_tokens, self.max_user_tokens - tokens),
        )
        if self.done_word in call.text:
            return None
        if not call.text:
            raise RolloutFailed("role_error", "reply", "the simulated user wrote nothing")
        return call.text

    def show_conversation(self, task: Task, rollout: Rollout) -> list[Message]:
        """Return the conversation as its user sees it: without tools and system messages, and from the other side."""
        shown = [Message("system", self.describe_user(task)), Message("user", GREETING)]
        for message in rollout.messages:
            text = strip_thinking(message.text).strip() if message.role == "assistant" else message.text
            if text and message.role in ("user", "assistant"):
                shown.append(Message("assistant" if message.role == "user" else "user", text))
        return shown
