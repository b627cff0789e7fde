"""Asks every client ``rounds`` times and writes what they said to ``output.directory``."""

import json
import os
import shlex
import time
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    given = dict(item.split("=", 1) for item in shlex.split(str(context.run_config["overrides"])))
    wanted = int(given["clients"])
    if "message" in given:
        raise RuntimeError(given["message"])
    while len(nodes := list(grid.get_node_ids())) < wanted:
        time.sleep(0.1)
    started = time.time()
    for server_round in range(int(given["rounds"])):
        questions = [
            Message(RecordDict(), dst_node_id=node, message_type="query") for node in nodes
        ]
        replies = list(grid.send_and_receive(questions))
        print(f"round {server_round} replies {len(replies)} after {time.time() - started:.1f} s")
    answers = [dict(reply.content.config_records["answer"]) for reply in replies]
    result = {
        "answers": sorted(answers, key=lambda answer: answer["partition-id"]),
        "experiment": context.run_config["experiment"],
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }
    folder = Path(given["output.directory"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(result))
