"""A user's path into an experiment is read off the schema, whatever the kinds are called."""

from manifed.experiment.paths import options, place_of, table_at
from manifed.experiment.plugins import Kinds
from manifed.experiment.schema import Experiment


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


def test_tags_of_every_union_are_left_out_of_the_users_path():
    found = list(unions(Experiment))
    assert len(found) > 40
    for location, path, kind in found:
        for field in kind.model_fields:
            assert place_of((*location, field), Experiment).path == ".".join((*path, field))
    # a field with the name of a tag stays
    assert place_of(("training", "projected", "projected"), Experiment).path == "training.projected"
