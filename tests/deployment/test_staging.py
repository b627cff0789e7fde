import io
import zipfile

from app.processes import stage
from tests.fresh import ROOT

FAB_LIMIT = 10_485_760


def test_the_bundle_of_this_repository_has_the_code_and_the_configs_and_is_small(
    tmp_path,
):
    from flwr.cli.build import build_fab_from_disk

    bundle = build_fab_from_disk(stage(ROOT, tmp_path / "staged"))
    names = set(zipfile.ZipFile(io.BytesIO(bundle)).namelist())
    expected = {
        path.relative_to(ROOT).as_posix()
        for folder, pattern in (("app", "*.py"), ("configs", "*.toml"), ("manifed", "*.py"))
        for path in (ROOT / folder).rglob(pattern)
    }
    assert {"configs/quickstart.toml", "app/server_app.py"} <= expected <= names
    assert not [name for name in names if name.split("/")[0] in {"tests", "runs", ".venv"}]
    assert len(bundle) < FAB_LIMIT / 4
