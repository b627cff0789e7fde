"""Whatever stands in a config, it ends in an experiment or in one line that names the field."""

import contextlib
import copy
import functools
import math
import operator
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifed.errors import ConfigError
from manifed.experiment.load import dump, load, parse
from manifed.flower.run_config import find
from tests.fresh import QUICKSTART

BASES = {
    "quickstart": [],
    "client-level": [
        "privacy={kind='client-level',l2_norm_clip=1.0,delta=1e-2,"
        "noise={kind='multiplier',noise_multiplier=1.0},"
        "adaptive={quantile_noise_multiplier=2.0}}",
        "federation.cohort={kind='poisson',sampling_probability=0.5}",
    ],
    "rsvrg": [
        "training={kind='rsvrg',step_size=0.1,inner_steps=3,"
        "minibatch={kind='poisson',batch_size=8}}"
    ],
    "projected": [
        "privacy={kind='none'}",
        "training={kind='projected',step_size=0.1,local_steps=2}",
    ],
}
BAD = (
    None, True, "", "x" * 300, "a\nb", "5", -1, 0, 1 << 62, 10**400, -0.0, 5e-324, 1e-200, 1e308,
    -1e308, math.nan, math.inf, -math.inf, [], {}, [1], {"kind": "no"}, {"kind": 5}, {"kind": []},
    [[[]]], {"a": {"b": 1}},
)  # fmt: skip


@functools.cache
def table(name):
    return dump(load(QUICKSTART, BASES[name]))


def paths(node, path=()):
    for key, value in node.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from paths(value, (*path, key))


def copied(node, path):
    """A copy of a table, and the table in it that holds the last key of a path."""
    node = copy.deepcopy(node)
    return node, functools.reduce(operator.getitem, path[:-1], node)


def put(node, path, value):
    node, at = copied(node, path)
    at[path[-1]] = value
    return node


def verdict(found):
    """None for an experiment, else the one line of its error."""
    try:
        parse(found)
    except ConfigError as error:
        line = str(error)
        assert line.strip()
        assert "\n" not in line
        assert len(line) < 1200
        return line
    return None


@pytest.mark.parametrize("name", BASES)
def test_every_bad_value_in_every_place_is_an_experiment_or_one_line(name):
    base = table(name)
    refused = 0
    for path in paths(base):
        for value in BAD:
            line = verdict(put(base, path, value))
            refused += line is not None
            if line is not None and not isinstance(value, dict | list):
                assert any(part in line for part in path), (path, value, line)
    assert refused >= 500


@pytest.mark.parametrize("name", BASES)
def test_every_missing_and_every_unknown_key_is_an_experiment_or_one_line(name):
    base = table(name)
    for path in paths(base):
        less, at = copied(base, path)
        del at[path[-1]]
        line = verdict(less)
        assert line is None or path[-1] in line or "kind" in line or path[0] in line
        more = verdict(put(base, (*path[:-1], path[-1] + "x"), 1))
        assert more is not None
        assert path[-1] + "x" in more
        assert "unknown key" in more


LONG = "k" * 5_000_000


@pytest.mark.parametrize(
    ("override", "culprit"),
    [
        (f"{LONG}=1", "kkk: unknown key"), (f"data.{LONG}=1", "kkk: unknown key"), (LONG, "kkk'"),
        (f"training.kind={LONG}", "training.kind: "), (f"training.kind={LONG}:X", "training.kind"),
        (f"training.kind=json:{LONG}", "training.kind"), (f"privacy.noise.kind={LONG}", "noise"),
        (f"data={{kind='file',examples='rows',columns=['a'],source='{LONG}'}}", "source"),
        (f"data.{'a.' * 20_000}b=1", "nested"), (f"data=[{'[1],' * 100_000}]", "data"),
    ],
    ids=range(10),
)  # fmt: skip
def test_what_is_long_is_shortened_in_the_one_line_of_its_error(override, culprit):
    with pytest.raises(ConfigError) as caught:
        load(QUICKSTART, [override])
    line = str(caught.value)
    assert culprit in line
    assert len(line) <= 2000
    assert "\n" not in line


def test_a_config_that_is_no_regular_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    cases = {"/dev/null": "no regular file", tmp_path / "pipe.toml": "no regular file",
             tmp_path: "a folder", "a\0b": "a name that no file can have",
             "a" * 300: "File name too long", "/" + "a" * 300: "File name too long"}  # fmt: skip
    for path, found in cases.items():
        with pytest.raises(ConfigError, match=f"Expected a readable config file, got .*: {found}"):
            load(find(str(path)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.binary(max_size=80))
def test_any_file_is_an_experiment_or_one_line(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=60))
def test_any_override_is_an_experiment_or_a_config_error(text):
    with contextlib.suppress(ConfigError):
        load(QUICKSTART, [text])
