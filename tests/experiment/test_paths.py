"""A user's path into an experiment is read off the schema, whatever the kinds are called."""

import pytest
from pydantic import ValidationError

from manifed.errors import ConfigError
from manifed.experiment.load import parse
from manifed.experiment.paths import options, place_of, table_at
from manifed.experiment.plugins import Kinds
from manifed.experiment.schema import Experiment

BASE = {
    "name": "a",
    "problem": {"kind": "principal-eigenvector"},
    "data": {"kind": "digits"},
    "federation": {"num_clients": 2, "num_rounds": 2},
    "training": {"kind": "rsgd", "step_size": 0.1},
}


def unions(model, location=(), path=()):
    """Every kind of every table: its location with tags, the user's path, the kind's model."""
    for name, field in model.model_fields.items():
        found = options(field.rebuild_annotation())
        for kind, home in found.items():
            tag = (kind,) if len(found) > 1 or isinstance(home, Kinds) else ()
            here = (*location, name, *tag), (*path, name)
            model = table_at(found, kind)
            yield *here, model
            yield from unions(model, *here)


FOUND = list(unions(Experiment))


def test_tags_of_every_union_are_left_out_of_the_users_path():
    for location, path, kind in FOUND:
        for field in kind.model_fields:
            place = place_of((*location, field), Experiment)
            assert place.path == ".".join((*path, field))


def test_a_field_with_the_name_of_a_tag_stays():
    assert place_of(("training", "projected", "projected"), Experiment).path == "training.projected"


def test_the_schema_has_many_unions():
    assert len(FOUND) > 40


def test_no_location_of_pydantic_reaches_the_user_with_a_tag():
    for section, body in (
        ("training", {"kind": "rsvrg", "step_size": -1.0, "inner_steps": 0}),
        ("privacy", {"kind": "client-level", "l2_norm_clip": -1.0, "noise": {"kind": "target"}}),
    ):
        with pytest.raises(ValidationError) as raw:
            Experiment.model_validate(BASE | {section: body})
        assert any(body["kind"] in error["loc"] for error in raw.value.errors())
        with pytest.raises(ConfigError) as caught:
            parse(BASE | {section: body})
        assert body["kind"] not in str(caught.value).split(":")[0]
