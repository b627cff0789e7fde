"""Trains for some rounds and saves the model."""

from math import inf

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from mine.task import network

app = ServerApp()


class ByLoss(FedAvg):
    """Asks the two clients whose last loss was largest, those that told none first."""

    def __init__(self, **named):
        super().__init__(**named)
        self.losses = {}

    def configure_train(self, server_round, arrays, config, grid):
        nodes = sorted(grid.get_node_ids(), key=lambda node: -self.losses.get(node, inf))
        record = RecordDict({"arrays": arrays, "config": config})
        return [Message(record, dst_node_id=node, message_type="train") for node in nodes[:2]]

    def aggregate_train(self, server_round, replies):
        came = [reply for reply in replies if not reply.has_error()]
        for reply in came:
            self.losses[reply.metadata.src_node_id] = reply.content["metrics"]["train_loss"]
        return super().aggregate_train(server_round, came)


@app.main()
def main(grid, context):
    strategy = ByLoss(fraction_train=float(context.run_config["fraction-train"]))
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        train_config=ConfigRecord({"lr": float(context.run_config["lr"])}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
