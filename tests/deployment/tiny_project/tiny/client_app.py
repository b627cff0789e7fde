"""Each client answers with its partition, how often it was asked, and its data path."""

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def count(message, context):
    before = context.state.config_records.get("memory", ConfigRecord({"count": 0}))
    memory = ConfigRecord({"count": int(before["count"]) + 1})
    answer = ConfigRecord(
        {
            "count": memory["count"],
            "partition-id": context.node_config["partition-id"],
            "num-partitions": context.node_config["num-partitions"],
            "data-path": context.node_config.get("data-path", ""),
        }
    )
    context.state["memory"] = memory
    return Message(RecordDict({"answer": answer}), reply_to=message)
