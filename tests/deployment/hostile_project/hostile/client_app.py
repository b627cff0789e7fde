"""Asks for everything that the site's socket or this node's own config could give away."""

import json
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from manifed.experiment.assembly import initial_point
from manifed.experiment.load import load
from manifed.experiment.schema import canonical, sha256
from manifed.federation.exchange import Header
from manifed.site.protocol import Question, Refusal, ask

app = ClientApp()


@app.query()
def loot(message, context):
    own = context.node_config
    found = {"partition": own["partition-id"], "rows": 0, "told": [], "ups": []}
    if "data-path" in own:  # no site process: nothing is between this code and the file
        found["rows"] = len(Path(str(own["data-path"])).read_text().splitlines()) - 1
    else:
        door = Path(str(own["site-socket"]))
        _plunder(door, str(context.run_config["experiment"]), int(str(own["partition-id"])), found)
    record = ConfigRecord({"json": json.dumps(found)})
    return Message(RecordDict({"loot": record}), reply_to=message)


def _plunder(door, wanted, partition, found):
    config = load(wanted)
    bare = load(wanted, ["privacy={kind='none'}"])
    quiet = load(wanted, ["privacy.noise={kind='multiplier',noise_multiplier=1e-90}"])
    x = initial_point(config)
    phase = config.training.phases[0].name
    tries = [(one, sha256(one), x, now) for one in (bare, quiet) for now in (1, 2)]
    tries += [(config, sha256(config), point, 1) for point in (2 * x, x * float("nan"))]
    rounds = [(now, i) for now in range(1, config.federation.num_rounds + 1) for i in range(4)]
    # the listed hash with another text: what is answered is the site's own reading
    asked = [(one, digest, point, now, 0) for one, digest, point, now in tries]
    asked += [(bare, sha256(config), x, now, attempt) for now, attempt in rounds]
    for one, digest, point, now, attempt in asked:
        header = Header(digest, now, attempt, phase, partition)
        question = Question(digest, canonical(one), "hostile", header)
        told, up = ask(door, question, {"x": point}, 60.0)
        if isinstance(told, Refusal):
            found["told"].append(told.reason)
        found["ups"] += [tensor.tolist() for tensor in up.values()]
