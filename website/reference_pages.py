"""The reference pages that are generated from the code, so that they cannot disagree with it.

Each function returns a page as Markdown. `hooks.py` adds the pages to the site; `tests/test_site.py` checks them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

import msgspec
import typer

import rollbook
from rollbook import errors
from rollbook.cli import COMMANDS, build_app
from rollbook.cli.help_pages import group_options
from rollbook.clusters.profile import ClusterProfile
from rollbook.core import FAILURE_KINDS
from rollbook.core.schema import generate_schemas
from rollbook.engine.blends import Entry

EXIT_CODES = {
    0: "Every requested rollout is scored, or the command did what it was asked to do.",
    1: "A bug in Rollbook, with its traceback, or `rollbook doctor` found that something does not work.",
    130: "Ctrl-C ended the command. What was scored is kept; `rollbook resume` continues.",
}
"""Exit codes that no exception class defines."""


def make_pages() -> dict[str, str]:
    """Return every generated page by its path in the site."""
    makers: dict[str, Callable[[], str]] = {
        "reference/commands.md": make_commands_page,
        "reference/failure-kinds.md": make_failure_page,
        "reference/exit-codes.md": make_exit_code_page,
        "reference/schemas.md": make_schema_page,
        "reference/cluster-profile.md": make_profile_page,
        "reference/blend-file.md": make_blend_page,
        "reference/python-api.md": make_api_page,
    }
    return {path: make() for path, make in makers.items()}


def make_commands_page() -> str:
    """Return every command with its arguments and options."""
    lines = ["# Commands", "", "Every command, argument and option. This page is generated from the code.", ""]
    for name, entry in COMMANDS.items():
        command: Any = typer.main.get_command(build_app(name)).commands[name]  # type: ignore[attr-defined]
        lines += [f"## rollbook {name}", "", entry.help, ""]
        for title, each in _list_subcommands(name, command):
            lines += [f"### {title}", "", each.help or "", ""] if title else []
            lines += _format_parameters(each)
    return "\n".join(lines)


def _list_subcommands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield "", command
        return
    for child, each in children.items():
        yield f"rollbook {name} {child}", each


def _format_parameters(command: Any) -> Iterator[str]:
    shown = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    if arguments:
        yield from _format_table("argument", "meaning", [(each.metavar or each.name, each.help) for each in arguments])
    options = [each for each in shown if each.param_type_name == "option"]
    for title, members in group_options(options).items() if options else ():
        yield from _format_table(title, "meaning", [_describe_option(each) for each in members])


def _describe_option(option: Any) -> tuple[str, str]:
    names = ", ".join(sorted(option.opts, key=len)) + "".join(f" / {name}" for name in option.secondary_opts)
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    default = option.default
    plain = option.show_default and default not in (None, "", []) and not isinstance(default, bool)
    suffix = f" Default: `{default}`." if plain and not callable(default) else ""
    return names + value, f"{option.help or ''}{suffix}"


def make_failure_page() -> str:
    """Return the table of failure kinds."""
    rows = [
        (kind, each.side, str(each.attempts), str(each.http_status), each.hint or "read the message of the failure")
        for kind, each in FAILURE_KINDS.items()
    ]
    head = (
        "# Failure kinds\n\nA failure has no reward. `infra` failures are retried by `rollbook resume`; `data` failures"
        " are retried only with `--retry`. [Failures](../failures.md) explains how to handle them. This page is"
        " generated from the code.\n"
    )
    return head + "\n" + "\n".join(_format_rows(("kind", "side", "attempts a round", "gateway status", "advice"), rows))


def make_exit_code_page() -> str:
    """Return the exit codes, and the exceptions that cause them."""
    found: dict[int, list[str]] = {code: [text] for code, text in EXIT_CODES.items()}
    for name, each in vars(errors).items():
        if _has_own_exit_code(each):
            found.setdefault(each.exit_code, []).append(f"`{name}`: {_first_line(each)}")
    rows = [(str(code), "<br>".join(texts)) for code, texts in sorted(found.items())]
    head = "# Exit codes\n\nThe exit codes of `rollbook`. This page is generated from the code.\n\n"
    tree = inspect.cleandoc(errors.__doc__ or "")
    return head + "\n".join(_format_rows(("code", "meaning"), rows)) + f"\n## Exceptions\n\n```text\n{tree}\n```\n"


def _has_own_exit_code(value: object) -> bool:
    known = inspect.isclass(value) and issubclass(value, errors.RollbookError) and value is not errors.RollbookError
    return known and "exit_code" in vars(value)


def make_schema_page() -> str:
    """Return the JSON Schema of each file of a run directory."""
    lines = [
        "# Schemas",
        "",
        "The JSON Schemas of the files of a [run directory](../run-directory.md). They are part of the package:"
        " `rollbook/core/schemas`.",
        "",
    ]
    for name, schema in generate_schemas().items():
        lines += [f"## {name}.json", "", '??? note "Schema"', "", "    ```json"]
        lines += [f"    {line}" for line in json.dumps(schema, indent=2).splitlines()] + ["    ```", ""]
    return "\n".join(lines)


def make_profile_page() -> str:
    """Return the keys of a cluster profile."""
    return _make_struct_page("Cluster profile", "`cluster.yaml`, for [Slurm](../clusters.md)", ClusterProfile)


def make_blend_page() -> str:
    """Return the keys of an environment in a blend."""
    return _make_struct_page("Blend file", "one environment in a [blend](../blends.md)", Entry)


def _make_struct_page(title: str, what: str, struct: type[msgspec.Struct]) -> str:
    hints = get_type_hints(struct)
    rows = [(f"`{each.name}`", f"`{_name_type(hints[each.name])}`", _show_default(each)) for each in _fields(struct)]
    head = f"# {title}\n\nThe keys of {what}. This page is generated from the code.\n\n{inspect.getdoc(struct)}\n\n"
    return head + "\n".join(_format_rows(("key", "type", "default"), rows))


def _fields(struct: type[msgspec.Struct]) -> tuple[Any, ...]:
    return msgspec.structs.fields(struct)


def _show_default(field: Any) -> str:
    if field.required:
        return "required"
    default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    empty = default in (None, [], {}) or isinstance(default, msgspec.Struct)
    return "" if empty else f"`{json.dumps(default)}`"


def _name_type(hint: object) -> str:
    name = hint.__name__ if isinstance(hint, type) and not getattr(hint, "__args__", None) else str(hint)
    for prefix in ("typing.", "rollbook.clusters.profile.", "rollbook.core.json.", "NoneType"):
        name = name.replace(prefix, "None" if prefix == "NoneType" else "")
    return name.replace("|", "or")


def make_api_page() -> str:
    """Return the page of public Python names; mkdocstrings fills it in."""
    lines = ["# Python API", "", "Every name that `import rollbook` offers.", ""]
    for name in rollbook.__all__:
        if not name.startswith("__"):
            lines += [f"## {name}", "", f"::: {find_definition(name)}", ""]
    return "\n".join(lines)


def find_definition(name: str) -> str:
    """Return the full path of a public name's definition, which is where its documentation is."""
    value = getattr(rollbook, name)
    module, attribute = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}.{attribute}" if module and attribute else f"rollbook.{name}"


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _format_table(first: str, second: str, rows: list[tuple[str, Any]]) -> Iterator[str]:
    yield from _format_rows((first, second), [(f"`{name}`", text or "") for name, text in rows])


def _format_rows(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "| " + " | ".join("---" for _ in head) + " |"
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


def make_llms_text(titles: Mapping[str, str], summary: str) -> str:
    """Return llms.txt: what Rollbook is and the list of pages, for language models that read the site."""
    pages = [f"- [{title}]({path})" for path, title in titles.items()]
    return "\n".join(["# Rollbook", "", f"> {summary}", "", "## Pages", "", *pages, ""])
