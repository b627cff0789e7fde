"""Writes docs/reference/config.schema.json for editors: python docs/reference/write_schema.py.

pydantic writes the JSON Schema of an experiment. This file adds what pydantic cannot see: the kinds
of a part and plug-ins (`manifed.experiment.plugins.Kinds`), the texts of the config reference, and
the short forms that a config may use.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from manifed.experiment.plugins import Kinds
from manifed.experiment.schema import Experiment

sys.path.insert(0, str(Path(__file__).parent))

import write_config as reference

Table = dict[str, Any]
PLUGIN: Table = {
    "description": 'A class of your own, "package.module:Class" (docs/extending.md). An editor '
    "does not know its keys.",
    "type": "object",
    "properties": {"kind": {"type": "string", "pattern": "^[^:]+:[^:]+$"}},
    "required": ["kind"],
}
AUTO: Table = {
    "description": "The method that `manifed plan` finds for the budget (docs/choosing.md).",
    "type": "object",
    "properties": {"kind": {"const": "auto"}},
    "required": ["kind"],
}
SHORT: Table = {
    "type": "number",
    "exclusiveMinimum": 0,
    "description": "The short form of a target, with delta and without noise. It is a release.",
}
PATHS = "One path with {partition}, the number of the client, in place of a list."
FOLLOWS = {
    "Federation": ("partition", "num_rounds"),
    "Gossip": ("num_nodes",),
    "Decor": ("num_nodes", "pair_keys"),
    "GrowingSamples": ("num_nodes",),
    "RFedAGS": ("participation",),
    "ExampleLevel": ("l2_norm_clip", "noise"),
    "ClientLevel": ("l2_norm_clip", "noise"),
}
"""Required keys that may be left out of a file, since other keys give their values."""


class Schema(GenerateJsonSchema):
    """Knows kinds, plug-ins, and the meaning of keys."""

    def function_plain_schema(self, schema: Any) -> Table:
        """The tables that may stand where a part is told by its kind."""
        kinds = getattr(schema["function"]["function"], "__self__", None)
        if not isinstance(kinds, Kinds):
            return super().function_plain_schema(schema)
        models = [kinds.model(kind).__pydantic_core_schema__ for kind in kinds.homes]
        found = {"anyOf": [*map(self.generate_inner, models), PLUGIN]}
        return found if len(models) == 1 else {**found, "required": ["kind"]}

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> Table:
        """A union, which takes its kind from the file; ``evaluation`` alone has a usual one."""
        found = super().tagged_union_schema(schema)
        found.pop("discriminator", None)
        return found if "oracle" in schema["choices"] else {**found, "required": ["kind"]}

    def model_schema(self, schema: core_schema.ModelSchema) -> Table:
        """A table, with the meaning of its keys."""
        found = super().model_schema(schema)
        cls = schema["cls"]
        found["description"] = reference.sentence_of(cls)
        required = set(found.pop("required", ())) - {*FOLLOWS.get(cls.__name__, ())}
        if required:
            found["required"] = sorted(required)
        for name, key in found["properties"].items():
            key.pop("title", None)
            if name != "kind" and (meaning := reference.meaning_of(cls, name)):
                key["description"] = " ".join(meaning.split())
        if cls.__name__ in ("ExampleLevel", "ClientLevel"):
            found["properties"]["epsilon"] = SHORT
            found["anyOf"] = [{"required": ["noise"]}, {"required": ["epsilon", "delta"]}]
        if cls.__name__ == "FileData":
            paths = found["properties"]["paths"]
            several = {"type": paths.pop("type"), "items": paths.pop("items")}
            paths["anyOf"] = [several, {"type": "string", "description": PATHS}]
        return found


def text() -> str:
    """The file."""
    found = Experiment.model_json_schema(schema_generator=Schema)
    found["properties"]["training"]["anyOf"].append(AUTO)
    found = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **found,
        "title": "A config of manifed",
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    reference.write(text(), "config.schema.json", __doc__)
