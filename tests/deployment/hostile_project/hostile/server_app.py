"""Sends the bundle's client to every node and writes down what it brings back."""

import json
import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 4:
        time.sleep(0.1)
    asked = [Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes]
    found = [
        json.loads(str(reply.content.config_records["loot"]["json"]))
        for reply in grid.send_and_receive(asked, timeout=300.0)
        if not reply.has_error()
    ]
    Path(str(context.run_config["out"])).write_text(json.dumps(found))
