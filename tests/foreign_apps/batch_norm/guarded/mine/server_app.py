"""Trains for some rounds and saves the model."""

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam

from manifed.flower.guard import guard
from mine.task import network

app = ServerApp()


@app.main()
def main(grid, context):
    strategy = FedAdam(fraction_train=float(context.run_config["fraction-train"]))
    strategy = guard(
        strategy, population=4, clip=1.0, noise_multiplier=1.0, delta=1e-3, max_epsilon=20.0,
        frozen=("*running_*", "*num_batches_tracked"), evaluate="skip", ledger="ledger.jsonl",
    )  # fmt: skip
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        train_config=ConfigRecord({"lr": float(context.run_config["lr"])}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")
    print(strategy.text)
    strategy.close()
