"""The site of the documentation: `make docs` builds it, and a warning is an error."""

import re
from collections.abc import Iterator
from typing import Any

project = "fractune"
author = "the developers of fractune"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = "fractune"
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 4
highlight_language = "none"  # blocks of four spaces are commands, files and programs
autodoc_typehints = "none"  # signatures have them
autodoc_member_order = "bysource"

_OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)+((?:benchmarks|deploy|examples|protos|scripts|tests)/[^)#]*|[A-Z]+\.md)\)"
)
"""a link to a file of the repository that is not on the site"""
_DECISIONS, _ALL_DECISIONS = "decisions/README", "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"
_COMMANDS, _NAMES = "<!-- commands -->", "<!-- names -->"


def setup(app: Any) -> None:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _as_rst)


def _read(app: Any, page: str, source: list[str]) -> None:
    """Name files of the repository in place of links to them, and fill in what is generated."""
    del app
    if page == _DECISIONS:
        source[0] += _ALL_DECISIONS
    source[0] = _OUTSIDE.sub(r"\1 (`\2`)", source[0])
    for mark, lines in ((_COMMANDS, _commands), (_NAMES, _names)):
        if mark in source[0]:
            source[0] = source[0].replace(mark, "\n".join(lines()))


def _as_rst(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text: names between backticks are code, and nothing else is markup."""
    del app, what, name, obj, options
    lines[:] = [re.sub(r"`([^`]+)`", r"``\1``", re.sub(r"([*|])", r"\\\1", line)) for line in lines]


def _commands() -> Iterator[str]:
    """A section for each command, as `--help` shows it."""
    import typer

    from fractune.cli import build_app
    from fractune.cli.group import COMMANDS

    whole: Any = typer.main.get_command(build_app(""))
    for name in sorted(COMMANDS):
        yield from _help([name], whole.commands[name])


def _help(path: list[str], command: Any) -> Iterator[str]:
    import click

    context = click.Context(command, info_name=" ".join(["fractune", *path]), terminal_width=88, max_content_width=88)
    with context:
        text = command.get_help(context)
    yield from ("", f"## fractune {' '.join(path)}", "", "```text", *text.splitlines(), "```", "")
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _help([*path, name], below)


def _names() -> Iterator[str]:
    """A section for each public name, and for each error."""
    import inspect

    import fractune

    yield "```{eval-rst}"
    for name in fractune.__all__:
        found = getattr(fractune, name)
        kind = "class" if inspect.isclass(found) else "function" if inspect.isfunction(found) else ""
        if kind:
            yield f".. auto{kind}:: fractune.{name}"
            yield from (["   :members:", ""] if kind == "class" else [""])
    yield from (".. automodule:: fractune.errors", "")
    for name in fractune.errors.__all__:
        yield from (f".. autoexception:: fractune.errors.{name}", "")
    yield "```"
