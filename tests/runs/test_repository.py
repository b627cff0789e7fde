import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from manifed.cli.launch import engine
from manifed.errors import ConfigError, check_linux
from tests.fresh import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
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
    ours = LIBRARY | APPLICATION | BESIDE
    assert PACKAGES | {"tests", "benchmarks", "extras", "manifed_extras"} == ours
    assert set(first_party) == ours


def test_the_pinned_versions_are_those_that_the_project_admits():
    lines = re.findall("^([^#=]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pins = {canonicalize_name(name): version for name, version in lines}
    extras = PROJECT["project"]["optional-dependencies"]
    named = [
        text for name in extras if name not in {"all", "examples", "peers"} for text in extras[name]
    ]
    for text in [*PROJECT["project"]["dependencies"], *named]:
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


def test_the_licence_is_an_spdx_expression_beside_its_text():
    project = PROJECT["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (
        "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    )
    assert all(set(author) <= {"name", "email"} for author in project["authors"])


def test_the_citation_names_this_version_and_the_five_papers():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = PROJECT["project"]
    assert found["cff-version"] == "1.2.0"
    assert (found["title"], found["version"]) == (project["name"], project["version"])
    assert found["license"] == project["license"]
    assert [one["name"] for one in found["authors"]] == [one["name"] for one in project["authors"]]
    assert len(found["references"]) == 5
    for paper in found["references"]:
        assert paper["title"]
        assert all(author["family-names"] for author in paper["authors"])
        assert paper["notes"]


def test_a_privacy_bug_is_reported_by_the_security_page_not_by_an_open_issue():
    page = (ROOT / "SECURITY.md").read_text()
    titles = ["What is a privacy bug", "How to report one", "What is out of scope"]
    assert re.findall("^## (.*)$", page, re.MULTILINE) == titles
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    templates = {path.stem: path.read_text() for path in folder.glob("*.md")}
    assert set(templates) == {"bug", "privacy_bug", "feature"}
    for text in templates.values():
        _, head, _ = text.split("---\n", 2)
        assert {"name", "about", "title", "labels"} == set(yaml.safe_load(head))
    assert "SECURITY.md" in templates["privacy_bug"]
    assert yaml.safe_load((folder / "config.yml").read_text()) == {"blank_issues_enabled": True}


def test_the_workflow_runs_the_whole_gate_on_the_first_promised_python():
    (path,) = (ROOT / ".github" / "workflows").glob("*.yml")
    (job,) = yaml.safe_load(path.read_text())["jobs"].values()
    promised = PROJECT["tool"]["pyright"]["pythonVersion"]
    assert job["container"].startswith(f"python:{promised}-")
    assert job["timeout-minutes"] == 90
    (gate,) = [step for step in job["steps"] if step.get("run") == ".ci/run"]
    assert int(gate["env"]["GATE_SECONDS"]) < 60 * job["timeout-minutes"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_what_needs_linux_says_so_on_another_platform_in_one_line(monkeypatch):
    check_linux("a part")
    monkeypatch.setattr("manifed.errors.sys.platform", "darwin")
    for refused in (lambda: engine("ray"), lambda: check_linux("engine.kind: 'ray'")):
        with pytest.raises(ConfigError, match=r"^engine.kind: 'ray': expected Linux, got 'darwin'"):
            refused()


def test_on_windows_the_import_names_the_subsystem_for_linux():
    program = "import sys; sys.path.insert(0, sys.argv[1]); sys.platform = 'win32'; import manifed"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, ROOT], check=False, capture_output=True, text=True
    )
    said = "ImportError: manifed runs on Linux, got Windows: use its Linux subsystem (WSL 2)"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, said)
