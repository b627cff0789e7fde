import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from manifed.experiment.load import parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LIBRARY = {"manifed"}
APPLICATION = {"app", "strategies", "clients"}
BESIDE = {"tests", "benchmarks", "reproduction", "extras", "manifed_extras"}
PACKAGES = {path.parent.name for path in ROOT.glob("*/__init__.py")}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def targets():
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_wheel_is_the_library_and_the_bundle_adds_the_application():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    bundle = {pattern.split("/")[0] for pattern in PROJECT["tool"]["flwr"]["app"]["fab-include"]}
    first_party = PROJECT["tool"]["ruff"]["lint"]["isort"]["known-first-party"]
    assert set(wheel) == LIBRARY
    assert bundle - {"README.md", "configs"} == LIBRARY | APPLICATION
    assert set(PROJECT["tool"]["importlinter"]["root_packages"]) == LIBRARY | APPLICATION
    found = PACKAGES | {"tests", "benchmarks", "extras", "manifed_extras"}
    assert found == LIBRARY | APPLICATION | BESIDE
    assert set(first_party) == LIBRARY | APPLICATION | BESIDE


def test_the_pinned_versions_are_those_that_the_project_admits():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    split = (line.split("==") for line in lines if not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in split}
    extras = PROJECT["project"]["optional-dependencies"]
    for text in [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["docs"]]:
        requirement = Requirement(text)
        assert Version(pins[canonicalize_name(requirement.name)]) in requirement.specifier


def test_the_promised_pythons_are_those_that_are_checked():
    project = PROJECT["project"]
    promised = re.findall(r":: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    (newer,) = re.findall(r"^NEWER := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert promised == [PROJECT["tool"]["pyright"]["pythonVersion"], *newer.split()]
    assert project["requires-python"] == f">={promised[0]}"


def test_make_explains_each_target_that_the_pages_name():
    shown = subprocess.run(["make", "-C", ROOT], check=True, capture_output=True, text=True).stdout
    for page in PAGES:
        named = re.findall(r"`make ((?:[a-z]+ ?)+)", page.read_text())
        for target in {word for words in named for word in words.split()}:
            assert target in targets(), f"{page.name}: make {target}"
    assert all(f"make {target} " in shown for target in targets())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_within_the_repository_is_broken(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_config_of_the_readme_is_a_valid_experiment():
    (text,) = blocks(ROOT / "README.md", "toml")
    experiment = parse({"name": "readme", **tomllib.loads(text)})
    assert experiment.federation.num_clients == 10
