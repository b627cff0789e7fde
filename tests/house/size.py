"""How large the house is: tokens, names and modules, a package a line.

    python -m tests.house.size [--json] [--check]

Tokens are those of Python's tokenizer over `ast.unparse` of every module without its docstrings, so
neither packing lines nor deleting comments changes the number. A file that is not Python counts one
token for four characters, and so does a string of more than 200 characters. Names are those that a
module defines at its top. `make check` fails beyond the ceilings of budget.toml, which only fall.
"""

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ("manifed", "app", "strategies", "clients")
REST = ("extras/manifed_extras", "extras/benchmarks", "reproduction", "benchmarks")
TOOLS = ("tools",)
TESTS = ("tests", "extras/tests")
OURS = (*HOUSE, "manifed_extras", "extras", "reproduction", "benchmarks", "tests")
LONG_STRING = 200
CHARACTERS = 4
SILENT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
          tokenize.ENCODING, tokenize.COMMENT)  # fmt: skip
QUICKSTART = """
import sys, tempfile
from manifed.cli.main import main
try:
    main(["run", "configs/quickstart.toml", "--set", "federation.num_rounds=2", "--set",
          "output.quiet=true", "--out", tempfile.mkdtemp() + "/run"])
except SystemExit as end:
    assert not end.code, end.code
print(sum(name.split(".")[0] == "manifed" for name in sys.modules))
"""


COUNTED = ("tokens", "modules", "names", "public", "largest")
"""What is counted of a module and of a package; the last are the tokens of its largest module."""


def tokens_of(source):
    """Of a module, without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]
    found = list(tokenize.generate_tokens(io.StringIO(ast.unparse(tree)).readline))
    long = sum(
        len(one.string) // CHARACTERS
        for one in found
        if one.type == tokenize.STRING and len(one.string) > LONG_STRING
    )
    return long + sum(one.type not in SILENT for one in found)


def _is_text(statement):
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def names_of(source):
    """What a module defines at its top: functions, classes and variables."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [
                name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)
            ]
    return found


def files_of(folder):
    """What git would ship of it; a link is counted where it leads."""
    shown = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", folder],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = [ROOT / line for line in shown.stdout.splitlines()]
    yield from (path for path in paths if path.is_file() and not path.is_symlink())


def sizes_of(folders):
    """By package: a folder of ``manifed``, or one beside it."""
    found = {}
    for path in (one for folder in folders for one in files_of(folder)):
        parts = path.relative_to(ROOT).parts
        package = "/".join(parts[:2]) if parts[0] == "manifed" and len(parts) > 2 else parts[0]
        of_files = found.setdefault(package, [])
        if path.suffix == ".py":
            of_files.append(size_of(path.read_text()))
        elif folders == HOUSE:
            text = len(path.read_bytes()) // CHARACTERS
            of_files.append(dict.fromkeys(COUNTED, 0) | {"tokens": text})
    return {package: together(of_files) for package, of_files in found.items() if of_files}


def size_of(source):
    """Of a module."""
    tokens = tokens_of(source)
    names = names_of(source)
    public = sum(not name.startswith("_") for name in names)
    return dict(zip(COUNTED, (tokens, 1, len(names), public, tokens), strict=True))


def together(sizes):
    """All as one."""
    return {key: (max if key == "largest" else sum)(one[key] for one in sizes) for key in COUNTED}


def imported():
    """Modules of ours that a quickstart of two rounds imports."""
    done = subprocess.run(
        [sys.executable, "-c", QUICKSTART], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1])


def private_imports():
    """Names with an underscore that another module imports, a line each."""
    found = []
    for path in (one for folder in (*HOUSE, *REST, *TOOLS) for one in files_of(folder)):
        if path.suffix == ".py":
            found += [
                f"{path.relative_to(ROOT)}: {node.module}.{name.name}"
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS
                for name in node.names
                if name.name.startswith("_") and not name.name.startswith("__")
            ]
    return found


def excesses(totals, count):
    """Where the ceilings of budget.toml are passed, a line each."""
    ceilings = tomllib.loads(Path(__file__).with_name("budget.toml").read_text())
    found = totals | {"house": totals["house"] | {"imported": count}}
    return [
        f"{name}.{what}: expected at most {most} (tests/house/budget.toml), got {found[name][what]}"
        for name, most_of in ceilings.items()
        for what, most in most_of.items()
        if found[name][what] > most
    ] + [f"{line}: expected no import of a private name" for line in private_imports()]


def main(arguments=None):
    """Print it; with --check print what is too much, and return 1 if anything is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--check", action="store_true", help="fail beyond tests/house/budget.toml")
    given = parser.parse_args(arguments)
    house = sizes_of(HOUSE)
    rest = sizes_of(REST)
    totals = {
        "house": together(house.values()),
        "rest": together(rest.values()),
        "tests": together(sizes_of(TESTS).values()),
        "tools": together(sizes_of(TOOLS).values()),
        "house and rest": together([*house.values(), *rest.values()]),
    }
    count = imported()
    if given.check:
        lines = excesses(totals, count)
        print(*(lines or ["The house is within its budget."]), sep="\n")
        return bool(lines)
    lines = {**house, **rest, **totals}
    if given.json:
        print(json.dumps(lines | {"imported": count}))
        return 0
    print(f"{'':28s}", *(f"{key:>8s}" for key in COUNTED))
    for name, one in lines.items():
        print(f"{name:28s}", *(f"{one[key]:8d}" for key in COUNTED))
    print(f"the quickstart imports {count} modules of manifed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
