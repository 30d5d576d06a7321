"""The tools of a task's MCP servers."""

from __future__ import annotations

import pytest

from rollbook import RolloutFailed
from rollbook.environments.harbor.tool_servers import read_tools

BASH = {"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}


def test_a_tool_with_the_name_of_another_is_a_mistake_of_the_image_and_not_tried_again() -> None:
    assert list(read_tools([BASH], {}, "files")) == ["bash"]
    with pytest.raises(RolloutFailed, match="MCP server files names 'bash', and so does the agent: rename") as caught:
        read_tools([BASH], {"bash": "the agent"}, "files")
    assert caught.value.kind == "image_error"
