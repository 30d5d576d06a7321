"""The help pages: plain text in which options and commands are listed in sections.

They are not typer's panels: those import rich, which takes longer than all the rest of `rollbook --help`, and their
boxes leave little room on a narrow terminal.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

MAX_UNGROUPED = 14
"""A command with no more options than this lists them in one section."""
NAME_COLUMN = 27
OTHER_OPTIONS = "Options"


class SectionedCommand(TyperCommand):
    """A command whose options are listed in the sections that `rich_help_panel` names."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the name of the command in its usage line."""
        arguments = [each for each in self.params if each.param_type_name == "argument"]
        return ["[OPTIONS]", *(_format_argument(each) for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options."""
        _write_parameters(self.get_params(ctx), formatter)


class SectionedGroup(TyperGroup):
    """A command with subcommands, which are listed in the sections that `rich_help_panel` names."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands, then the options."""
        self.format_commands(ctx, formatter)
        _write_parameters(self.get_params(ctx), formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the subcommands with their help, section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            title = getattr(command, "rich_help_panel", None)
            rows = sections.setdefault(title if isinstance(title, str) else "Commands", [])
            rows.append((name, (command.help or "").partition("\n")[0]))
        widest = max(map(len, self.commands))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in rows])


def _write_parameters(parameters: list[Any], formatter: Any) -> None:
    shown = [each for each in parameters if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    _write_section("Arguments", arguments, formatter)
    for title, members in group_options(options).items():
        _write_section(title, members, formatter)


def group_options(options: list[Any]) -> dict[str, list[Any]]:
    """Return options by the title of their section; what has no section of its own comes last."""
    if len(options) <= MAX_UNGROUPED:
        return {OTHER_OPTIONS: options}
    from rollbook.core import GROUPS

    titles = [*GROUPS.values(), OTHER_OPTIONS]
    sections: dict[str, list[Any]] = {title: [] for title in titles}
    for option in options:
        sections.setdefault(option.rich_help_panel or OTHER_OPTIONS, []).append(option)
    return {title: members for title, members in sections.items() if members}


def _write_section(title: str, members: list[Any], formatter: Any) -> None:
    if members:
        with formatter.section(title):
            rows = [(_format_names(each).ljust(NAME_COLUMN), _format_help(each)) for each in members]
            formatter.write_dl(rows, col_max=NAME_COLUMN)


def _format_names(parameter: Any) -> str:
    """Return the names of an option, short ones first, with what stands for its value."""
    value = parameter.metavar or parameter.name.upper()
    if parameter.param_type_name == "argument":
        return str(value)
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        return f"{names} / {parameter.secondary_opts[0]}"
    return names if parameter.is_flag else f"{names} {value}"


def _format_argument(argument: Any) -> str:
    name = _format_names(argument)
    return name if argument.required else f"[{name}]"


def _format_help(parameter: Any) -> str:
    text = str(parameter.help or "")
    if parameter.required and parameter.param_type_name == "option":
        return f"{text} [required]"
    default = parameter.default
    if not parameter.show_default or default in (None, "", []) or isinstance(default, bool) or callable(default):
        return text
    return f"{text} [default: {format(default, 'g') if isinstance(default, float) else default}]"
