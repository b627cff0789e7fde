"""Trains and evaluates on the rows of one client."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from manifed.flower.guard_mod import guard_mod
from mine.task import fit, network, rows

mod = guard_mod(
    clip=1.0, noise_multiplier=2.0, delta=1e-5, max_epsilon=8.0, ledger="site-ledger.jsonl"
)
app = ClientApp(mods=[mod])


def received(message, context):
    """The model that came, and this client's rows."""
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model, *rows(int(context.node_config["partition-id"]))


@app.train()
def train(message, context):
    model, x, y = received(message, context)
    loss = fit(model, x, y, float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message, context):
    model, x, y = received(message, context)
    with torch.no_grad():
        right = float((model.eval()(x).argmax(dim=1) == y).float().mean())
    metrics = MetricRecord({"eval_acc": right, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
