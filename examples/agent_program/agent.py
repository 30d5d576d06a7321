"""An agent in plain Python: it answers, then checks its answer in a second call."""

import json
import os
import urllib.request


def ask(messages: list[dict[str, str]]) -> dict[str, str]:
    """Call the model; Rollbook sets OPENAI_BASE_URL, and the model name is ignored."""
    body = json.dumps({"model": "any", "messages": messages}).encode()
    with urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body) as reply:
        message: dict[str, str] = json.load(reply)["choices"][0]["message"]
        return message


with open(os.environ["ROLLBOOK_TASK"]) as file:
    task = json.load(file)
draft = ask(task["messages"])
check = {"role": "user", "content": f"Check your answer. {task['prompt']}"}
final = ask([*task["messages"], draft, check])
with open(os.environ["ROLLBOOK_ANSWER"], "w") as file:
    file.write(final["content"])
