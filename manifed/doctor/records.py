"""The config, and the data that a site would bring to it; nothing here leaves this machine."""

import stat
from collections.abc import Iterator
from pathlib import Path

from manifed.doctor.finding import Finding, fail, ok, warn
from manifed.errors import ConfigError
from manifed.experiment.load import load, sha256
from manifed.experiment.schema import Experiment
from manifed.problems.dataset import SiteData
from manifed.problems.problem_specs import NUM_EXAMPLES
from manifed.problems.records import InvalidRecord
from manifed.problems.spec import check_pair
from manifed.site.protocol import BadFrame, Introduction, Question, Refusal, about, ask

SECONDS = 10.0


def config_at(path: Path) -> tuple[Experiment | None, Finding]:
    """The config of a file, and its hash, which nodes and sites are pinned to."""
    try:
        config = load(path)
    except ConfigError as error:
        return None, fail("config", f"{path}: {error}", "mend the config")
    return config, ok("config", f"{path}, sha256 {sha256(config)}")


def data_file(
    config: Experiment | None, path: Path, partition: int | None = None
) -> Iterator[Finding]:
    """A site's file: who can read it, and whether the config can be computed from it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        yield fail("data", f"{path} cannot be read ({error.strerror})", "name this site's own file")
        return
    if mode & 0o077:
        yield warn("data", f"{path} has mode {mode:04o}: other users can read it",
                   f"chmod 600 {path}")  # fmt: skip
    if config is None:
        return
    if not isinstance(config.data, SiteData):
        yield fail("data", f"the config reads data.kind = {config.data.kind!r}, no file of a site",
                   "use data = { kind = \"file\", ... }")  # fmt: skip
        return
    try:
        check_pair(config.problem, config.data)
        found = config.data.read(path)
        meta = {**config.data.meta, NUM_EXAMPLES: len(found)}
        examples = config.problem.prepare(found, meta)
        config.problem.check_records(examples)
    except (InvalidRecord, OSError, ValueError, RuntimeError) as error:
        yield fail("data", f"{error}", "mend or remove the record; nobody else sees this line")
        return
    yield _number(config, len(examples), path, partition)


def _number(config: Experiment, count: int, path: Path, partition: int | None) -> Finding:
    """The number of examples against N_i, public; only here, where the file is."""
    declared = config.federation.num_examples
    privacy = config.privacy
    is_any = privacy.kind != "none" and privacy.neighboring_relation == "add-or-remove"
    said = f"{path} holds {count} valid examples of the declared shape"
    if declared is None:
        return ok("data", f"{said}; the site declares its own num-examples")
    own = declared if partition is None else declared[partition : partition + 1]
    if count in own:
        return ok("data", f"{said}, as federation.num_examples declares")
    if is_any:
        return ok("data", f"{said}; N_i only normalises under add-or-remove")
    return fail("data", f"{said}, federation.num_examples declares {list(own)[:10]}",
                "declare what is there: this site would be absent")  # fmt: skip


def site_socket(config: Experiment | None, path: Path) -> Finding:
    """Whether the site's own process answers, and answers for this config."""
    mend = "start it: manifed site --socket ..., and let this user in (its group)"
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return fail("site", f"{path} is no socket", mend)
        question = Question("", "") if config is None else about(config)
        reply, _ = ask(path, question, {}, SECONDS)
    except (OSError, BadFrame) as error:
        return fail("site", f"{path} does not answer ({error})", mend)
    if isinstance(reply, Introduction):
        return ok("site", f"{path} answers for this config as client {reply.partition}")
    if config is None:
        return ok("site", f"{path} answers")
    why = reply.reason if isinstance(reply, Refusal) else "an answer to nothing"
    return fail("site", f"{path} refuses this config: {why}",
                f"its owner allows it: manifed site --allow-config {sha256(config)}")  # fmt: skip
