import io
import zipfile
from pathlib import Path

import pytest

from app.staging import stage

REPOSITORY = Path(__file__).parents[2]
FAB_LIMIT = 10_485_760


def _tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("app/__init__.py", "app/deep/a.py", "configs/x.toml", "runs/r/manifest.json"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    for name in ("app/__pycache__/a.py", ".venv/lib/app/b.py", "tests/test_a.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "pyproject.toml").write_text(
        '[tool.flwr.app]\nfab-include = ["app/**/*.py", "configs/**/*.toml"]\n'
    )
    return root


def test_only_what_fab_include_names_is_copied(project: Path, tmp_path: Path) -> None:
    before = _tree(project)
    staged = stage(project, tmp_path / "staged")
    assert set(_tree(staged)) == {
        "pyproject.toml", "app/__init__.py", "app/deep/a.py", "configs/x.toml",
    }  # fmt: skip
    assert _tree(project) == before


def test_an_app_without_fab_include_is_built_where_it_lies(
    tiny_project: Path, tmp_path: Path
) -> None:
    assert stage(tiny_project, tmp_path / "staged") == tiny_project
    assert not (tmp_path / "staged").exists()


def test_the_bundle_of_this_repository_has_the_code_and_the_configs_and_is_small(
    tmp_path: Path,
) -> None:
    from flwr.cli.build import build_fab_from_disk

    bundle = build_fab_from_disk(stage(REPOSITORY, tmp_path / "staged"))
    names = set(zipfile.ZipFile(io.BytesIO(bundle)).namelist())
    expected = {
        path.relative_to(REPOSITORY).as_posix()
        for folder, pattern in (("app", "*.py"), ("configs", "*.toml"), ("manifed", "*.py"))
        for path in (REPOSITORY / folder).rglob(pattern)
    }
    assert {"configs/quickstart.toml", "app/server_app.py"} <= expected <= names
    assert not [name for name in names if name.split("/")[0] in {"tests", "runs", ".venv"}]
    assert len(bundle) < FAB_LIMIT / 4


def test_a_working_copys_clutter_does_not_get_into_the_bundle_or_break_its_limits(
    tmp_path: Path,
) -> None:
    from flwr.cli.build import build_fab_from_disk

    clean = build_fab_from_disk(stage(REPOSITORY, tmp_path / "staged"))
    copy = stage(REPOSITORY, tmp_path / "copy")
    (copy / ".gitignore").write_bytes((REPOSITORY / ".gitignore").read_bytes())
    deep = "/".join("abcdefghijklmn")
    for name in (f".venv/{deep}/x.py", f"runs/{deep}/x.json", ".git/x.json", "tests/y.json"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(b"1" * FAB_LIMIT)
    assert build_fab_from_disk(copy) == clean
