"""The site: ``make docs`` renders the pages of this repository, as they are, with Sphinx.

The source folder is the repository, so that links between pages, configs and measured tables are
the same here and on a forge. Nothing is fetched: Furo brings its style, and formulas (`$...$`)
become MathML when the site is built.
"""

import json
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from docutils import nodes
from latex2mathml.converter import convert
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import typing as sphinx_typing
from sphinx.util.typing import get_type_hints
from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "manifed"
version = release = version_of("manifed")
author = "The manifed authors"
html_title = f"manifed {version}"
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = [
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/**",
    "benchmarks/**/*.md",
    "tests/**/*.md",
    "extras/README.md",
    "extras/docs/*.md",
    "extras/benchmarks/**/*.md",
]
exclude_patterns = [".*", "**/.*", "**/__pycache__", "**/*.py", "build", "runs", "manifed"]
html_theme = "furo"
html_extra_path = ["site", "reference/config.schema.json"]
html_copy_source = False
pygments_style, pygments_dark_style = "default", "github-dark-high-contrast"
html_static_path = ["static"]
html_css_files = ["tables.css"]
html_theme_options = {"footer_icons": []}

html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath", "html_image"]
myst_dmath_allow_space = False
myst_dmath_allow_digits = False
myst_heading_anchors = 3
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]

default_role = "py:obj"
add_module_names = False
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
autodoc_default_options = {"members": True, "exclude-members": "model_config, model_post_init"}
napoleon_use_rtype = False


class NotebookParser(MystParser):
    """A notebook as a page: its text, its code, and what the code said and drew."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Cells as Markdown; a picture goes beside the page's other images."""
        cells = json.loads(inputstring)["cells"]
        super().parse("\n\n".join(self._shown(cell) for cell in cells), document)

    def _shown(self, cell: dict[str, Any]) -> str:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            return source
        said = [self._said(output) for output in cell["outputs"]]
        return "\n\n".join([f"```python\n{source}\n```", *said])

    def _said(self, output: dict[str, Any]) -> str:
        data = output.get("data", {})
        if "image/png" in data:
            picture = "".join(data["image/png"].split())
            return f"![The figure that this cell draws](data:image/png;base64,{picture})"
        return f"```text\n{''.join(output.get('text') or data['text/plain'])}\n```"


def plain_prose(
    _app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Docstrings are prose with names in backquotes: a star is a star, a bar is a bar.

    Napoleon takes words before a colon in an attribute's first line for its type: it gets a line
    that shows nothing.
    """
    text = "" if lines[0].startswith("Alias for field number") else "\n".join(lines)
    parts = re.split(r"(``.+?``|`[^`]*`)", text, flags=re.DOTALL)
    parts[::2] = [re.sub(r"([*|\\]|_\b)", r"\\\1", part) for part in parts[::2]]
    parts[2::2] = [re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2]]
    lines[:] = "".join(parts).split("\n")
    if what in ("attribute", "data", "property"):
        lines.insert(0, "\\")


def plain_types(
    _app: Sphinx,
    _what: str,
    _name: str,
    _object: object,
    _options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """What pydantic reads beside a type tells a reader nothing; a default may be made anew."""
    prefix = r"~?(?:\w+\.)*"
    beside = re.compile(
        rf"{prefix}Annotated\[([^\[\],]*)(?:, {prefix}\w+\((?:[^()]|\([^()]*\))*\))+\]"
    )
    return signature and beside.sub(r"\1", signature).replace("<factory>", "..."), returns


def bare(annotation: Any) -> Any:
    """A type without what pydantic reads beside it."""
    if get_origin(annotation) is Annotated:
        return bare(annotation.__origin__)
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(map(bare, get_args(annotation)))]  # noqa: UP007  of a computed tuple
    return annotation


def hints_of(found: Any, *spaces: Any, **_: Any) -> dict[str, Any]:
    """The types of an object's attributes."""
    return {name: bare(kind) for name, kind in get_type_hints(found, *spaces).items()}


def check_links(app: Sphinx, name: str, source: list[str]) -> None:
    """Say which link leads to a file that is there and is no page; Sphinx says "not found"."""
    page = Path(app.env.doc2path(name))
    for link in re.findall(r"\]\(([^)\s#:]+\.md)(?:#[^)\s]*)?\)", source[0]):
        target = (page.parent / link).resolve()
        if (
            target.is_file()
            and str(target.relative_to(ROOT).with_suffix("")) not in app.env.found_docs
        ):
            raise ExtensionError(
                f"{page.relative_to(ROOT)}: links to {link}, which is no page of the site: link to "
                "a file below docs/, benchmarks/ or tests/, or add it to include_patterns of "
                "docs/conf.py"
            )


def write_mathml(page: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula, which a browser shows without a script or a font from elsewhere."""
    is_block = isinstance(node, nodes.math_block)
    found = convert(node.astext(), display="block" if is_block else "inline")
    if "\\" in found or "<mi>&</mi>" in found:
        raise ExtensionError(
            f"{page.builder.current_docname}: latex2mathml does not know a command of "
            f"{node.astext()!r}"
        )
    page.body.append(f'<div class="math">{found}</div>' if is_block else found)
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Notebooks are pages; docstrings are read before their sections are."""
    sphinx_typing.get_type_hints = hints_of
    for name, module in list(sys.modules.items()):
        if name.startswith("sphinx.ext.autodoc") and hasattr(module, "get_type_hints"):
            module.get_type_hints = hints_of
    app.add_html_math_renderer("mathml", (write_mathml, None), (write_mathml, None))
    app.connect("source-read", check_links)
    app.connect("autodoc-process-docstring", plain_prose, priority=400)
    app.connect("autodoc-process-signature", plain_types)
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
